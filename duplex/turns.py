"""The user's turns, from the probability of speech in each short window of audio. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

_HYSTERESIS = 0.15
"""Speech ends below the threshold by this much, so that a level near it doesn't flicker."""


class TurnDetection(msgspec.Struct, frozen=True, kw_only=True):
    """`server_vad` of the Realtime API, with its defaults."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None

    def patched(self, patch: TurnDetectionPatch) -> TurnDetection:
        """This with what the patch sets."""
        changes = {
            name: value
            for name in patch.__struct_fields__
            if (value := getattr(patch, name)) is not UNSET
        }
        return msgspec.structs.replace(self, **changes)


class TurnDetectionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to turn detection; what is UNSET stays as it is."""

    threshold: float | UnsetType = UNSET
    prefix_padding_ms: int | UnsetType = UNSET
    silence_duration_ms: int | UnsetType = UNSET
    create_response: bool | UnsetType = UNSET
    interrupt_response: bool | UnsetType = UNSET
    idle_timeout_ms: int | UnsetType | None = UNSET


class SpeechStarted(msgspec.Struct, frozen=True):
    """The user speaks; `at_ms` is where the turn's audio begins, padding included."""

    at_ms: float


class SpeechStopped(msgspec.Struct, frozen=True):
    """The user's turn is over; `at_ms` is where its audio ends, the silence included."""

    at_ms: float


class SpeechTimeout(msgspec.Struct, frozen=True):
    """Nobody has spoken for `idle_timeout_ms`."""

    from_ms: float
    to_ms: float


Turn = SpeechStarted | SpeechStopped | SpeechTimeout


class UserTurns:
    """Cuts the user's stream into turns. Media time in milliseconds from the session's start."""

    def __init__(self, detection: TurnDetection, now_ms: float = 0.0) -> None:
        self.detection = detection
        self.now_ms = now_ms
        """Where the audio heard so far ends."""
        self.speaking_since: float | None = None
        """When the speech under way began; None while the user is silent."""
        self._silent_ms = 0.0
        self._quiet_since = self._ended_at = now_ms

    @property
    def speech_ms(self) -> float:
        """How long the user has been speaking, without the silence after the last word."""
        if self.speaking_since is None:
            return 0.0
        return self.now_ms - self._silent_ms - self.speaking_since

    def hear(self, probability: float, window_ms: float) -> Turn | None:
        """Takes the next window; says what changed with it."""
        detection, began = self.detection, self.now_ms
        self.now_ms = began + window_ms
        if self.speaking_since is None:
            if probability >= detection.threshold:
                self.speaking_since, self._silent_ms = began, 0.0
                return SpeechStarted(max(self._ended_at, began - detection.prefix_padding_ms))
            return self._timeout()
        if probability >= detection.threshold - _HYSTERESIS:
            self._silent_ms = 0.0
            return None
        self._silent_ms += window_ms
        if self._silent_ms < detection.silence_duration_ms:
            return None
        self.speaking_since, self._silent_ms = None, 0.0
        self._ended_at = self._quiet_since = self.now_ms
        return SpeechStopped(self.now_ms)

    def agent_spoke(self) -> None:
        """Starts the idle timeout anew: it runs from the end of what the agent said."""
        self._quiet_since = self.now_ms

    def commit(self) -> None:
        """The client has ended the turn under way itself; speech that goes on begins another."""
        self.speaking_since, self._silent_ms = None, 0.0
        self._ended_at = self._quiet_since = self.now_ms

    def _timeout(self) -> Turn | None:
        limit = self.detection.idle_timeout_ms
        if limit is None or self.now_ms - self._quiet_since < limit:
            return None
        since, self._quiet_since = self._quiet_since, self.now_ms
        return SpeechTimeout(since, self.now_ms)
