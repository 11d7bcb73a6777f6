"""Sample rate conversion: a live stream that holds back about a millisecond, and whole clips.

Live, FFmpeg's resampler (`aresample`, 32 taps) keeps its filter's history between chunks, so
where a stream is cut changes no bit of what comes out. Whole clips go through soxr at its very
high quality, whose delay (up to 38 ms) does not matter there.
"""

from __future__ import annotations

import av
import numpy as np
import soxr
from av.filter import Graph

from media.formats import Pcm, UnsupportedFormat

MIN_RATE = 8000
MAX_RATE = 48000

_EMPTY: Pcm = np.zeros(0, np.float32)


class Resampler:
    """A stream of mono samples from one rate to another.

    After `flush`, n samples in have given exactly ceil(n * target_rate / source_rate) out. Equal
    rates are passed through without a copy.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        """Rates in Hz. Raises UnsupportedFormat outside 8 to 48 kHz."""
        check_rate(source_rate)
        check_rate(target_rate)
        self.source_rate = source_rate
        self.target_rate = target_rate
        self._identity = source_rate == target_rate
        self._graph: Graph | None = None
        self._taken = 0
        self._given = 0

    def push(self, pcm: Pcm) -> Pcm:
        """Takes samples [n]; gives what is ready, which may be nothing."""
        if self._identity:
            return pcm
        if len(pcm) == 0:
            return _EMPTY
        self._taken += len(pcm)
        out = self._convert(pcm)
        self._given += len(out)
        return out

    def flush(self) -> Pcm:
        """Ends the stream: gives the samples held back. The next push begins a new stream."""
        if self._taken == 0:
            return _EMPTY
        missing = -(-self._taken * self.target_rate // self.source_rate) - self._given
        # Silence of 20 ms is longer than the filter at every rate, so it drives all of it out.
        out = self._convert(np.zeros(self.source_rate // 50, np.float32))[:missing]
        self._graph = None
        self._taken = self._given = 0
        return out

    def _convert(self, pcm: Pcm) -> Pcm:
        graph = self._graph
        if graph is None:
            graph = self._graph = _graph(self.source_rate, self.target_rate)
        frame = av.AudioFrame("flt", "mono", len(pcm))
        frame.sample_rate = self.source_rate
        frame.planes[0].update(pcm.astype(np.float32, copy=False).tobytes())
        graph.push(frame)
        try:
            # Each frame gives one or none. To ask for more would raise, and that costs as much as
            # the whole conversion.
            ready = graph.pull()
        except BlockingIOError:  # how FFmpeg says that it wants more input
            return _EMPTY
        assert isinstance(ready, av.AudioFrame)
        return np.frombuffer(memoryview(ready.planes[0]), np.float32, ready.samples)


def resample_offline(pcm: Pcm, source_rate: int, target_rate: int) -> Pcm:
    """A whole clip [n] at another rate (any rates, Hz), at soxr's very high quality."""
    if source_rate == target_rate:
        return pcm
    out: Pcm = soxr.resample(pcm, source_rate, target_rate, quality="VHQ")
    return out


def check_rate(rate: int) -> None:
    """Raises UnsupportedFormat unless a live stream may have this rate (Hz)."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise UnsupportedFormat(f"sample rate {rate} Hz is not within {MIN_RATE} to {MAX_RATE} Hz")


def _graph(source_rate: int, target_rate: int) -> Graph:
    graph = Graph()
    graph.threads = 1  # FFmpeg would otherwise start one thread a core for each stream
    source = graph.add_abuffer(sample_rate=source_rate, format="flt", layout="mono")
    resample = graph.add("aresample", str(target_rate))
    graph.link_nodes(source, resample, graph.add("abuffersink")).configure()
    return graph
