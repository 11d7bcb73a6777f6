"""One caller's audio into the model's frames: decode, resample, frame, and silence when it stops.

Media time is counted in samples; deadlines are absolute on a clock that is passed in, so nothing
here waits. Input has one of two clocks:

- the client's: no audio, no frame; a socket that sends too fast is simply not read;
- the server's: a caller who stops sending is fed silence in real time, and the model goes on.
"""

from __future__ import annotations

import math

import numpy as np

from media.formats import AudioFormat, BadAudio, Pcm, decode
from media.framing import Framer
from media.resample import Resampler

SILENCE_AFTER_S = 0.160
"""A server clock's patience with a caller who sends nothing."""

MAX_CATCH_UP_FRAMES = 25
"""Silence due at once, at most; what is missed beyond that is skipped."""


_ROUNDING = 1e-6  # of a frame: what sums of seconds may be off by


class InputClock:
    """Frames of one caller, and what became of them.

    A server clock gives a frame as soon as it is complete: to hold it back would only add delay.
    What it bounds is how far the frames given run ahead of real time (`max_backlog_frames`):
    audio that comes in a burst after silence has taken its place would otherwise delay the
    conversation for good. Of a burst the oldest frames are dropped.
    """

    def __init__(
        self,
        frame_size: int,
        sample_rate: int,
        *,
        server_clocked: bool = False,
        silence_after_s: float = SILENCE_AFTER_S,
        max_backlog_frames: int | None = None,
    ) -> None:
        """Frames of `frame_size` samples at `sample_rate` Hz.

        `max_backlog_frames` (server clock only, at least 2) is for senders in real time; None
        drops nothing, for clients that may send a whole utterance at once.
        """
        if max_backlog_frames is not None and (max_backlog_frames < 2 or not server_clocked):
            raise ValueError("max_backlog_frames needs a server clock and is at least 2")
        self.sample_rate = sample_rate
        self.server_clocked = server_clocked
        self.samples_in = 0
        """Samples taken, at the caller's rate."""
        self.frames_out = 0
        """Frames given, silence included."""
        self.padded_samples = 0
        """Zeros that completed a frame the caller had begun, at `sample_rate`."""
        self.cleared_samples = 0
        """Samples that `clear` dropped, at `sample_rate`."""
        self.concealed = 0
        """Frames of silence in place of audio that did not come."""
        self.late = 0
        """Frames of audio that came when silence had taken their place, kept or not."""
        self.dropped = 0
        """Frames of audio over the backlog."""
        self.skipped = 0
        """Frames of silence never fed because nobody asked for them in time."""
        self._framer = Framer(frame_size)
        self._resampler: Resampler | None = None
        self._frame_s = frame_size / sample_rate
        self._silence_after_s = silence_after_s
        self._max_backlog = max_backlog_frames
        self._silence = np.zeros(frame_size, np.float32)
        self._silence.setflags(write=False)
        self._deadline: float | None = None
        self._given_until = -math.inf  # when real time reaches the end of what has been given
        self._stood_in = 0  # silence that late audio may still come for

    @property
    def next_deadline(self) -> float | None:
        """When `due` has the next frame of silence; None while there is nothing to wait for."""
        return self._deadline

    @property
    def source_rate(self) -> int | None:
        """The caller's sample rate in Hz, from the first audio on."""
        return self._resampler.source_rate if self._resampler else None

    def start(self, now: float) -> None:
        """Begins a server clock before any audio, for callers who may stay mute."""
        if self.server_clocked and self._deadline is None:
            self._deadline = now + self._silence_after_s

    def wait(self, now: float) -> None:
        """Puts off the silence that is due: the caller's audio was given, and isn't fed yet."""
        if self._deadline is not None:
            self._deadline = now + self._silence_after_s

    def push(self, data: bytes, format: AudioFormat, rate: int, now: float = 0.0) -> list[Pcm]:
        """Takes a chunk of any size; gives the frames it completes, [frame_size] each.

        `now` matters to a server clock. Raises BadAudio for bytes that are no audio of this
        format and for a rate (Hz) that is not spoken or not the session's; nothing has changed
        then.
        """
        return self.push_pcm(decode(format, data), rate, now)

    def push_pcm(self, pcm: Pcm, rate: int, now: float = 0.0) -> list[Pcm]:
        """`push` for audio that is decoded already."""
        resampler = self._resampler
        if resampler is None:
            resampler = self._resampler = Resampler(rate, self.sample_rate)
        elif rate != resampler.source_rate:
            raise BadAudio(
                f"sample rate changed from {resampler.source_rate} to {rate} Hz within the session"
            )
        self.samples_in += len(pcm)
        frames = self._framer.push(resampler.push(pcm))
        if self.server_clocked and len(pcm):
            frames = self._on_time(frames, now)
        self.frames_out += len(frames)
        return frames

    def due(self, now: float) -> list[Pcm]:
        """Silence that is due: what completes a frame the caller had begun, then whole frames."""
        deadline = self._deadline
        if deadline is None or now < deadline:
            return []
        count = 1 + math.floor((now - deadline) / self._frame_s)
        surplus = max(0, count - MAX_CATCH_UP_FRAMES)
        self.skipped += surplus
        frames: list[Pcm] = []
        for _ in range(count - surplus):
            frames += self._tail() or self._conceal()
        self._deadline = deadline + count * self._frame_s
        self._given_until = self._deadline
        self.frames_out += len(frames)
        return frames

    def flush(self) -> list[Pcm]:
        """Ends the input: the samples that are left, padded with zeros to a frame."""
        self._deadline = None
        frames = self._tail()
        self.frames_out += len(frames)
        return frames

    def clear(self) -> None:
        """Drops the samples that are no whole frame yet; frames that were given are gone."""
        if self._resampler:
            self.cleared_samples += len(self._resampler.flush())
        self.cleared_samples += self._framer.clear()

    def _on_time(self, frames: list[Pcm], now: float) -> list[Pcm]:
        self._deadline = now + self._silence_after_s
        if self._max_backlog is None:
            return frames
        ahead = max(0.0, self._given_until - now)
        if ahead == 0.0:
            self._stood_in = 0
        elif self._stood_in:
            late = min(self._stood_in, len(frames) - (ahead < self._frame_s / 2))
            self._stood_in -= max(0, late)
            self.late += max(0, late)
        room = max(0, math.floor(self._max_backlog - ahead / self._frame_s + _ROUNDING))
        surplus = max(0, len(frames) - room)
        self.dropped += surplus
        kept = frames[surplus:]
        self._given_until = now + ahead + len(kept) * self._frame_s
        self._deadline = max(self._deadline, self._given_until)
        return kept

    def _tail(self) -> list[Pcm]:
        frames = self._framer.push(self._resampler.flush()) if self._resampler else []
        waiting = self._framer.waiting
        last = self._framer.flush()
        if last is not None:
            self.padded_samples += len(last) - waiting
            frames.append(last)
        return frames

    def _conceal(self) -> list[Pcm]:
        self.concealed += 1
        self._stood_in += 1
        return [self._silence]
