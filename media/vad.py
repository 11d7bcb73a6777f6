"""Voice activity: the probability of speech in each 32 ms of a caller's audio.

Silero VAD's 16 kHz ONNX model (https://github.com/snakers4/silero-vad, MIT), run through
onnxruntime from the file that its package carries; the package itself is never imported, as that
would load torch. Its inputs, read from the file: `input` [batch, 64 samples of the window before
+ 512], `state` [2, batch, 128], `sr`; a batch gives each row what it gives alone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from media.formats import Pcm
from media.framing import Framer
from media.resample import Resampler

logger = logging.getLogger(__name__)

RATE = 16_000
WINDOW = 512
WINDOW_MS = 1000 * WINDOW / RATE
_CONTEXT = 64
_STATE = (2, 128)
_MAX_WAITING = 128
"""Windows of one caller, about four seconds; the oldest are lost beyond that."""


def model_path() -> Path:
    """Where the model file lies. Raises FileNotFoundError saying what to install."""
    found = importlib.util.find_spec("silero_vad")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "data" / "silero_vad_16k_op15.onnx"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "no voice activity model: install the package silero-vad (6.2 or later)"
    )


class VadStream:
    """One caller's audio. Belongs to the event loop of its `Vad`."""

    def __init__(
        self, vad: Vad, sample_rate: int, on_speech: Callable[[list[float]], None]
    ) -> None:
        self.dropped = 0
        """Windows lost because the model didn't keep up."""
        self.waiting: deque[Pcm] = deque()
        self.context = np.zeros(_CONTEXT, np.float32)
        self.state: npt.NDArray[np.float32] = np.zeros(_STATE, np.float32)
        self.on_speech = on_speech
        self.closed = False
        self._vad = vad
        self._resampler = Resampler(sample_rate, RATE)
        self._framer = Framer(WINDOW)

    def push(self, pcm: Pcm) -> None:
        """Takes audio [n] at the stream's rate; `on_speech` is called with what it gives."""
        windows = self._framer.push(self._resampler.push(pcm))
        if windows and not self.closed:
            for window in windows:
                if len(self.waiting) >= _MAX_WAITING:
                    self.waiting.popleft()
                    self.dropped += 1
                self.waiting.append(window)
            self._vad.wake(self)

    def close(self) -> None:
        """No more calls of `on_speech`. Idempotent."""
        self.closed = True
        self.waiting.clear()


class Vad:
    """The model on a thread of its own; windows of callers that wait together run as one batch."""

    def __init__(self) -> None:
        """Raises FileNotFoundError if the model isn't installed."""
        self._path = model_path()
        self._failing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready: queue.SimpleQueue[VadStream | None] = queue.SimpleQueue()

    def stream(self, sample_rate: int, on_speech: Callable[[list[float]], None]) -> VadStream:
        """A new caller, heard on the running loop, at a sample rate in Hz."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="vad", daemon=True)
            self._thread.start()
        return VadStream(self, sample_rate, on_speech)

    def wake(self, stream: VadStream) -> None:
        """Tells the thread that a stream has windows."""
        self._ready.put(stream)

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        if self._thread is not None:
            self._ready.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        session = _load(self._path)
        batch: dict[int, VadStream] = {}
        while True:
            stream = self._ready.get() if not batch else None
            if not batch and stream is None:
                return
            if stream is not None:
                batch[id(stream)] = stream
            while not self._ready.empty():
                another = self._ready.get()
                if another is None:
                    return
                batch[id(another)] = another
            self._step(session, list(batch.values()))
            batch = {key: stream for key, stream in batch.items() if stream.waiting}

    def _step(self, session: Any, streams: list[VadStream]) -> None:
        """One window of each stream."""
        taken: list[tuple[VadStream, Pcm]] = []
        for stream in streams:
            try:
                taken.append((stream, stream.waiting.popleft()))
            except IndexError:
                continue
        if not taken:
            return
        sound = np.stack([np.concatenate((stream.context, window)) for stream, window in taken])
        state = np.stack([stream.state for stream, _ in taken], axis=1)
        rate = np.array(RATE, np.int64)
        try:
            output, state = session.run(None, {"input": sound, "state": state, "sr": rate})
        except (
            Exception
        ):  # onnxruntime has errors of its own making; callers must not wait for ever
            if not self._failing:
                logger.exception("voice activity fails: what comes counts as silence")
            self._failing, output = True, np.zeros((len(taken), 1), np.float32)
        else:
            self._failing = False
        results: list[tuple[VadStream, float]] = []
        for row, (stream, window) in enumerate(taken):
            stream.context = window[-_CONTEXT:]
            stream.state = state[:, row]
            results.append((stream, float(output[row, 0])))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, results)


def _deliver(results: list[tuple[VadStream, float]]) -> None:
    for stream, probability in results:
        if not stream.closed:
            stream.on_speech([probability])


def _load(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
