"""The agent's utterances: a continuous stream of frames, cut where it is silent. Pure."""

from __future__ import annotations

import enum

import numpy as np

from engine.api import Pcm

SILENCE_DBFS = -50.0
"""A frame below this level, and without text, is silent."""


class Speech(enum.Enum):
    """What a frame is to the agent's speech."""

    SILENT = enum.auto()
    """Nobody speaks, nobody just has."""
    BEGINS = enum.auto()
    GOES_ON = enum.auto()
    """In an utterance, or in a pause too short to end it."""
    ENDED = enum.auto()
    """The pause has become the end; the frame is no part of the utterance."""


class Utterances:
    """Tells for each frame whether the agent begins, goes on or has ended an utterance."""

    def __init__(self, silence_frames: int, silence_dbfs: float = SILENCE_DBFS) -> None:
        if silence_frames < 1:
            raise ValueError(f"silence_frames must be at least 1, not {silence_frames}")
        self.speaking = False
        self._silence_frames = silence_frames
        self._power = 10 ** (silence_dbfs / 10)
        self._silent = 0

    def hear(self, pcm: Pcm, text: str) -> Speech:
        """Takes the agent's next frame [frame_size]."""
        voiced = bool(text) or float(np.dot(pcm, pcm)) > self._power * len(pcm)
        if voiced:
            self._silent = 0
            if self.speaking:
                return Speech.GOES_ON
            self.speaking = True
            return Speech.BEGINS
        if not self.speaking:
            return Speech.SILENT
        self._silent += 1
        if self._silent < self._silence_frames:
            return Speech.GOES_ON
        self.speaking, self._silent = False, 0
        return Speech.ENDED
