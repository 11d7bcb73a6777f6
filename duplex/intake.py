"""The caller's audio on its way to the engine: framed, fed as there is room, and silence in its
place when the server keeps the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from duplex.commands import AppendAudio, AppendPcm
from duplex.errors import SessionError
from engine.api import Frame, Pcm
from media.formats import AudioFormat, BadAudio, check, decode, sample_width
from media.input_clock import InputClock

if TYPE_CHECKING:
    from duplex.session import Session
    from media.vad import VadStream

_UNREAD_FRAMES = 32
"""A client that paces itself and has so much to read is not read from."""
_UNHEARD_WINDOWS = 8
"""A caller who sends faster than speech can be looked for waits: the turns would come too late."""
_PIECE = 24_000
"""Samples that are decoded and resampled at a time: minutes in one chunk must not hold up the
event loop.
"""
_MAX_IMAGES = 2
"""Of one frame; older ones are forgotten."""


class Intake:
    """The way down of one session."""

    def __init__(self, session: Session, room: asyncio.Event, *, paced: bool) -> None:
        """`room` is set whenever an output has come or been read. `paced`: see `Session`."""
        self.fed = 0
        """Frames handed to the engine under the present lease."""
        self.heard = 0
        """Frames handed to the engine in all."""
        self._told = 0
        self._before = 0
        """Samples taken by input clocks before this one."""
        self._frames: deque[Pcm] = deque()
        """Taken from the caller, waiting for room. A socket that is lost meanwhile must not lose
        them: the caller will not repeat what was taken.
        """
        self._session = session
        self._room = room
        self._paced = paced
        self._clock = session.runtime.clock
        self._max_in_flight = session.runtime.spec.max_in_flight
        self._input = self._new_input()
        self._fed_at: deque[float] = deque()
        self._images: tuple[bytes, ...] = ()
        self._appending = False
        self._vad: VadStream | None = None
        self._silence: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """Frames fed whose outputs haven't come."""
        return len(self._fed_at)

    @property
    def rate(self) -> int | None:
        """The caller's samples a second, from the first audio on."""
        return self._input.source_rate

    @property
    def taken_samples(self) -> int:
        """The caller's samples that were taken, at the caller's rate."""
        return self._before + self._input.samples_in

    @property
    def padded_samples(self) -> int:
        """Silence that filled up frames, in samples at the engine's rate."""
        return self._input.padded_samples

    def heard_since_last(self) -> int:
        """Frames fed since this was asked last."""
        told, self._told = self._told, self.heard
        return self.heard - told

    async def append(self, command: AppendAudio | AppendPcm) -> None:
        """Takes a chunk; returns when all frames that it completes are fed.

        Raises SessionError for what is no audio; nothing has changed then.
        """
        session = self._session
        taken, rate = self._input, command.rate or session.settings.input_rate
        samples, pieces = _pieces(command, session.settings.input_format)
        try:
            frames = taken.push_pcm(next(pieces), rate, self._clock.now())
        except BadAudio as error:
            changed = command.rate is not None and self.rate not in (None, rate)
            param = "sample_rate_hz" if changed else "audio"
            raise SessionError("bad_audio", str(error), param=param) from error
        if isinstance(command, AppendAudio):
            self._images = (self._images + command.video)[-_MAX_IMAGES:]
        elif command.image is not None:
            self._images = (command.image,)
        session.user.sent(1000 * samples / rate)
        self.keep_time()
        self._appending = True
        try:
            await self._feed_all(frames)
            for piece in pieces:
                if session.over:
                    break
                await self._feed_all(taken.push_pcm(piece, rate, self._clock.now()))
        finally:
            self._appending = False

    def clear(self) -> None:
        """Drops what fills no frame yet; the model has heard the rest."""
        self._input.clear()
        self._images = ()

    def took(self, now: float) -> float:
        """An output has come; returns how long its frame was under way, in seconds."""
        self._room.set()
        return now - self._fed_at.popleft()

    def renew(self) -> None:
        """Begins anew with another input clock; what fills no frame yet is lost."""
        self._before += self._input.samples_in
        self._input = self._new_input()

    def restart(self) -> None:
        """The lease is given back: its outputs don't come, and another counts from 0."""
        self.fed = 0
        self._fed_at.clear()

    def keep_time(self) -> None:
        """With a server clock, feeds silence while the client sends nothing."""
        if not self._input.server_clocked or not self._session.opened:
            return
        if self._silence is None or self._silence.done():
            self._input.start(self._clock.now())
            name = f"clock-{self._session.id}"
            self._silence = self._session.runtime.spawn(self._feed_silence(), name)

    async def drain(self) -> None:
        """Feeds what the caller had sent, the padded tail included, and waits for the outputs."""
        await self._feed_all(self._input.flush())
        while self._fed_at and not self._session.over:
            self._room.clear()
            await self._room.wait()

    def stop_clock(self) -> None:
        """No more silence is fed. Idempotent."""
        if self._silence is not None:
            self._silence.cancel()

    def close(self) -> None:
        """No more speech is heard. Idempotent."""
        if self._vad is not None:
            self._vad.close()

    async def _feed_all(self, frames: list[Pcm]) -> None:
        """Hands frames to the engine, each as soon as there is room for it."""
        self._frames.extend(frames)
        while self._frames:
            if self._has_room():
                self._feed(self._frames.popleft())
            else:
                self._room.clear()
                await self._room.wait()

    def _feed(self, pcm: Pcm) -> None:
        session, runtime = self._session, self._session.runtime
        lease = session.lease
        if lease is None or session.over:
            return
        self._fed_at.append(self._clock.now())
        images, self._images = self._images, ()
        runtime.feed(Frame(lease.id, session.fence.epoch, self.fed, pcm, images))
        self.fed += 1
        self.heard += 1
        if session.user.wants_vad:
            if self._vad is None:
                rate = runtime.spec.sample_rate
                self._vad = runtime.vad.stream(rate, self._listen)
            self._vad.push(pcm)

    def _listen(self, probabilities: list[float]) -> None:
        """Takes the probabilities of speech in the next windows."""
        self._session.user.heard(probabilities)
        self._room.set()

    def _has_room(self) -> bool:
        """Whether a frame may be fed: not beyond the engine's limit, nor far ahead of what was
        looked at for speech or, while the client sets the pace, of what it has read of the answers.
        """
        session = self._session
        if session.over:
            return True
        if len(self._fed_at) >= self._max_in_flight:
            return False
        if self._vad is not None and len(self._vad.waiting) >= _UNHEARD_WINDOWS:
            return False
        at_leisure = self._paced or self._input.server_clocked or not session.live
        return at_leisure or session.outbox.audio < _UNREAD_FRAMES

    def _new_input(self) -> InputClock:
        spec, settings = self._session.runtime.spec, self._session.settings
        return InputClock(
            spec.frame_size,
            spec.sample_rate,
            server_clocked=settings.input_clock == "server" and not self._paced,
        )

    async def _feed_silence(self) -> None:
        while self._session.live and (deadline := self._input.next_deadline) is not None:
            await self._clock.sleep_until(deadline)
            if self._appending:  # what the caller said still waits for room
                self._input.wait(self._clock.now())
                continue
            frames = self._input.due(self._clock.now())
            self._session.runtime.metrics.concealed_frames += len(frames)
            await self._feed_all(frames)


def _pieces(command: AppendAudio | AppendPcm, usual: AudioFormat) -> tuple[int, Iterator[Pcm]]:
    """How many samples a chunk has, and the samples a piece at a time, one piece at least.

    The first piece raises BadAudio if any is bad.
    """
    if isinstance(command, AppendPcm):
        pcm = command.pcm
        starts = range(0, len(pcm) or 1, _PIECE)
        return len(pcm), (pcm[start : start + _PIECE] for start in starts)
    format, audio = command.format or usual, command.audio
    width = sample_width(format)
    return len(audio) // width, _decoded(format, audio, _PIECE * width)


def _decoded(format: AudioFormat, audio: bytes, size: int) -> Iterator[Pcm]:
    if len(audio) > size:  # which is rare: of a piece, to decode it is the check
        check(format, audio)
    whole = memoryview(audio)
    for start in range(0, len(audio) or 1, size):
        yield decode(format, whole[start : start + size])
