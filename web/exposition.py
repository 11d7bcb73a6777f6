"""The metrics as Prometheus text. Nothing is kept twice: each scrape reads the values where they
live (the engine's own gauges, the runtime's counters, the sockets' counters).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from duplex.chat import Chat
from duplex.metrics import Histogram, Metrics
from duplex.version import VERSION
from engine.api import EngineStats
from web.context import Context

CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(context: Context, engine: EngineStats | None) -> bytes:
    """The text of one scrape. Without an answer of the engine its metrics are absent."""
    return _text(chain(_central(context, engine), _own(context)), process=True)


def central_exposition(
    context: Context, engine: EngineStats | None, starts: Mapping[str, int]
) -> bytes:
    """What a server of several processes has once. `starts`: how often each worker was started."""
    family = CounterMetricFamily("duplex_worker_starts", "Starts of a worker.", labels=["worker"])
    for worker, count in starts.items():
        family.add_metric([worker], count)
    return _text(chain(_central(context, engine), (family,)), process=False)


def own_exposition(context: Context) -> bytes:
    """What each of the processes has for itself."""
    return _text(_own(context), process=True)


def _text(families: Iterator[Metric], *, process: bool) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    if process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


def _central(context: Context, engine: EngineStats | None) -> Iterator[Metric]:
    yield _labelled(GaugeMetricFamily, "build", "This server's version.", "version", {VERSION: 1})
    yield _gauge("ready", "1 while sessions can be opened.", context.runtime.not_ready is None)
    if engine is not None:
        yield from _engine(engine)
    yield from _chat(context.runtime.chat, engine)


def _own(context: Context) -> Iterator[Metric]:
    yield from _runtime(context.runtime.metrics)
    yield from _sessions(context)
    yield from _sockets(context)


def _engine(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge(
        "slots_max", "Slots: conversations that are taken at a time, as steps are now.", stats.slots
    )
    yield _gauge("slots_used", "Slots that are not free.", _used(stats))
    states = {"prefill": stats.prefill, "live": stats.live, "draining": stats.draining}
    yield _labelled(GaugeMetricFamily, "slots", "Slots by state.", "state", states)
    yield _gauge("engine_queued_frames", "Frames that wait for a step.", stats.queued_frames)
    yield _counter("engine_steps", "Steps of the model.", stats.steps)
    yield _counter("engine_frames", "Frames stepped.", stats.frames)
    yield _counter("engine_stale_frames", "Frames of leases that had ended.", stats.stale_frames)
    yield _counter("engine_restarts", "Times an engine was started again.", stats.restarts)
    yield _gauge("prefix_cache_bytes", "Prefilled prompts kept.", stats.prefix_cache_bytes)
    results = {"hit": stats.prefix_cache_hits, "miss": stats.prefix_cache_misses}
    yield _labelled(
        CounterMetricFamily, "prefix_cache_lookups", "Prompts looked up.", "result", results
    )
    yield from _devices(stats.engines or (stats,))


def _used(stats: EngineStats) -> int:
    return stats.prefill + stats.live + stats.draining


def _devices(engines: tuple[EngineStats, ...]) -> Iterator[Metric]:
    """Of each engine, whose device is the label; what is not known of one is absent."""

    def each(
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        value: Callable[[EngineStats], float | None],
    ) -> Metric:
        known = {e.device: value(e) for e in engines if e.up or name == "up"}
        values = {device: number for device, number in known.items() if number is not None}
        return _labelled(family, f"device_{name}", text, "device", values)

    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield each(gauge, "up", "1 while the engine answers.", lambda e: e.up)
    yield each(gauge, "slots_max", "Slots of the engine.", lambda e: e.slots)
    yield each(gauge, "slots_used", "Those not free.", _used)
    yield each(counter, "steps", "Steps of the model.", lambda e: e.steps)
    yield each(counter, "frames", "Frames stepped.", lambda e: e.frames)
    yield each(counter, "step_seconds", "Time spent in steps.", lambda e: e.step_seconds)
    yield each(gauge, "utilisation", "Part of the time in steps.", lambda e: e.utilisation)
    yield each(
        gauge, "latency_seconds", "Frames' predicted with one session more.", lambda e: e.latency_s
    )
    if any(e.pages for e in engines):
        yield each(gauge, "pages", "Memory that slots share, in pages.", lambda e: e.pages)
        yield each(gauge, "pages_free", "Those free.", lambda e: e.free_pages)


def _runtime(metrics: Metrics) -> Iterator[Metric]:
    yield _counter("frames_in", "Frames fed to the engine.", metrics.frames_in)
    yield _counter("frames_out", "Frames of audio routed to sessions.", metrics.frames_out)
    yield _counter("frames_late", "Outputs later than a frame lasts.", metrics.late_frames)
    yield _counter("frames_concealed", "Input frames made up.", metrics.concealed_frames)
    yield _counter("frames_dropped", "Output frames slow readers lost.", metrics.dropped_frames)
    yield _counter("frames_stale", "Outputs dropped by the fence.", metrics.stale_frames)
    yield _counter("frames_flushed", "Output frames interrupted.", metrics.flushed_frames)
    yield _counter("samples_padded", "Silence in last frames.", metrics.padded_samples)
    yield _counter("slow_readers", "Sessions whose reader didn't read.", metrics.slow_readers)
    yield _counter("engine_losses", "Times the engine died.", metrics.engine_losses)
    yield _counter("sessions_opened", "Sessions that got a slot.", metrics.sessions_opened)
    yield _labelled(
        CounterMetricFamily, "sessions_closed", "Sessions ended.", "reason", metrics.sessions_closed
    )
    yield _labelled(
        CounterMetricFamily, "sessions_refused", "Sessions refused.", "reason", metrics.refused
    )
    yield _labelled(
        CounterMetricFamily, "errors", "Errors told to clients.", "code", metrics.errors
    )
    yield _histogram("step_seconds", "One step of the model.", metrics.step_s)
    yield _histogram("step_rows", "Rows in a step.", metrics.step_rows)
    yield _histogram("frame_seconds", "From a frame's feeding to its output.", metrics.frame_s)


def _chat(chat: Chat, engine: EngineStats | None) -> Iterator[Metric]:
    yield _gauge("chat_requests_active", "Chat requests under way.", chat.active)
    yield _counter("chat_requests", "Chat requests admitted.", chat.admitted)
    yield _labelled(
        CounterMetricFamily, "chat_errors", "Chat requests refused or failed.", "code", chat.errors
    )
    if engine is not None:
        jobs = GaugeMetricFamily(
            "duplex_stage_jobs", "What is with each stage.", labels=["stage", "state"]
        )
        for stage in engine.stages:
            jobs.add_metric([stage.stage, "waiting"], stage.waiting)
            jobs.add_metric([stage.stage, "running"], stage.running)
            jobs.add_metric([stage.stage, "unread"], stage.unread)
        yield jobs


def _sessions(context: Context) -> Iterator[Metric]:
    sessions = list(context.runtime.sessions.values())
    yield _gauge("sessions", "Sessions, with and without a slot.", len(sessions))
    held = context.runtime.resumption.held
    yield _gauge("sessions_held", "Sessions that wait for their lost client.", held)
    depths = {
        "engine_in": sum(session.in_flight for session in sessions),
        "session_out": sum(len(session.outbox) for session in sessions),
        "session_out_audio": sum(session.outbox.audio for session in sessions),
    }
    yield _labelled(
        GaugeMetricFamily, "queue_depth", "What waits in each queue, in all.", "queue", depths
    )
    deepest = max((len(session.outbox) for session in sessions), default=0)
    yield _gauge("session_out_deepest", "Events that wait for the slowest reader.", deepest)


def _sockets(context: Context) -> Iterator[Metric]:
    counters = context.counters
    yield _gauge("connections", "WebSocket connections.", context.desk.open)
    messages = {"in": counters.messages_in, "out": counters.messages_out}
    yield _labelled(CounterMetricFamily, "messages", "WebSocket messages.", "direction", messages)
    size = {"in": counters.bytes_in, "out": counters.bytes_out}
    yield _labelled(
        CounterMetricFamily, "message_bytes", "Bytes of their content.", "direction", size
    )
    yield _counter("paused_reads", "Reads paused by the message rate.", counters.paused_reads)
    yield _counter("stalled_writes", "Connections that took nothing.", counters.stalled_writes)
    yield _counter("malformed", "Connections that sent what is no HTTP.", counters.malformed)
    yield _counter("samples_early", "Audio before its session was ready.", counters.early_samples)
    yield _labelled(
        CounterMetricFamily, "calls", "WebRTC calls ended.", "reason", counters.calls_ended
    )
    yield _labelled(
        CounterMetricFamily,
        "call_samples",
        "Samples at 24 kHz that ended calls lost or made up.",
        "fate",
        counters.call_samples,
    )
    yield _counter(
        "call_packets_refused",
        "Packets of sources beyond what a call may have.",
        counters.call_packets_refused,
    )
    yield _labelled(
        CounterMetricFamily,
        "robot_requests",
        "Robots' messages answered.",
        "result",
        counters.robot_requests,
    )
    yield _labelled(
        CounterMetricFamily, "requests_refused", "Refused at the door.", "code", counters.refused
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"duplex_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"duplex_{name}", text, value=value)


def _labelled(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    metric = family(f"duplex_{name}", text, labels=[label])
    for value_of_label, value in values.items():
        metric.add_metric([value_of_label], value)
    return metric


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets, count = [], 0
    for bound, observed in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        count += observed
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(count)))
    return HistogramMetricFamily(f"duplex_{name}", text, buckets=buckets, sum_value=histogram.total)
