"""Metrics of several processes in one scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "worker"


def merged(central: bytes, workers: Mapping[str, bytes]) -> bytes:
    """One text: what is central as it is, and what each worker told with a label of its own.

    They aren't added up: a worker that is started again counts from 0, and a sum over workers
    that drops looks like a restart of all of them.
    """
    families: dict[str, Metric] = {}
    for metric in _parsed(central):
        families[metric.name] = metric
    for worker, text in workers.items():
        for metric in _parsed(text):
            family = families.setdefault(
                metric.name, Metric(metric.name, metric.documentation, metric.type)
            )
            for sample in metric.samples:
                labels = sample.labels | {LABEL: worker}
                family.add_sample(sample.name, labels, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _parsed(text: bytes) -> Iterator[Metric]:
    return iter(text_string_to_metric_families(text.decode()))
