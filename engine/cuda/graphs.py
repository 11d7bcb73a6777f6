"""Chains of launches, captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from engine.cuda.launch import INTERPRETED


class Graphs:
    """CUDA graphs by name, which share one pool of memory. Without a GPU they are plain calls."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Callable[[], object]] = {}
        self._pool = None if INTERPRETED else torch.cuda.graph_pool_handle()

    def __len__(self) -> int:
        return len(self._calls)

    def capture(self, key: Hashable, chain: Callable[[], None]) -> None:
        """Runs a chain of launches once, so that its kernels are compiled, and captures it."""
        if INTERPRETED:
            self._calls[key] = chain
            return
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            chain()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            chain()
        self._calls[key] = graph.replay

    def __call__(self, key: Hashable) -> None:
        """Enqueues what was captured as `key`."""
        self._calls[key]()
