"""What a session can be told: protocol-neutral, checked, and changed whole or not at all."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from duplex.turns import TurnDetection, TurnDetectionPatch
from engine.api import EngineSpec, OpenParams
from media.formats import AudioFormat

OverlapPolicy = Literal["listen_only", "barge_in_on_speech"]
PlaybackCommitPolicy = Literal["ack_only", "commit_all_on_done"]
InputClockMode = Literal["client", "server"]


G711 = frozenset((AudioFormat.G711_ULAW, AudioFormat.G711_ALAW))
G711_RATE = 8_000
"""Samples a second of G.711, unless a client says otherwise."""
_PCM_RATE = 24_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A session's settings in force."""

    voice: str | None = None
    persona: str | None = None
    voice_audio: bytes | None = None
    """A reference recording: float32 mono at the engine's rate."""
    seed: int | None = None
    text_temperature: float | None = None
    text_top_k: int | None = None
    audio_temperature: float | None = None
    audio_top_k: int | None = None
    input_format: AudioFormat = AudioFormat.PCM16
    input_rate: int = _PCM_RATE
    output_format: AudioFormat = AudioFormat.PCM16
    output_text_only: bool = False
    max_output_tokens: int | None = None
    """Frames that an utterance may have, each a token; None: as many as the agent likes."""
    overlap_policy: OverlapPolicy = "listen_only"
    playback_commit_policy: PlaybackCommitPolicy = "ack_only"
    input_clock: InputClockMode = "client"
    turn_detection: TurnDetection | None = None
    overlap_short_ack_ms: int = 500
    """Speech over the agent's that ends by then is an acknowledgement and interrupts nothing."""
    overlap_barge_in_ms: int = 600
    """Speech over the agent's that lasts so long interrupts it, if the policy is to."""
    idle_timeout_s: float | None = None
    stage_metrics: bool = False

    def patched(self, patch: SettingsPatch) -> Settings:
        """These settings with what the patch sets, and what follows from it."""
        changes = {
            name: value
            for name in patch.__struct_fields__
            if (value := getattr(patch, name)) is not UNSET
        }
        if isinstance(patch.turn_detection, TurnDetectionPatch):
            in_force = self.turn_detection or TurnDetection()
            changes["turn_detection"] = in_force.patched(patch.turn_detection)
        input_format = changes.get("input_format", self.input_format)
        if "input_rate" not in changes and (input_format in G711) != (self.input_format in G711):
            changes["input_rate"] = G711_RATE if input_format in G711 else _PCM_RATE
        return msgspec.structs.replace(self, **changes)

    def open_params(self) -> OpenParams:
        """What the engine is asked for."""
        return OpenParams(
            voice=self.voice,
            persona=self.persona,
            voice_audio=self.voice_audio,
            seed=self.seed,
            text_temperature=self.text_temperature,
            text_top_k=self.text_top_k,
            audio_temperature=self.audio_temperature,
            audio_top_k=self.audio_top_k,
        )


class EncodedAudio(msgspec.Struct, frozen=True):
    """A recording as a client sent it: a file in base64, in the field `param`."""

    param: str
    base64: str


class SettingsPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to settings; what is UNSET stays as it is."""

    voice: str | UnsetType | None = UNSET
    persona: str | UnsetType | None = UNSET
    voice_audio: bytes | EncodedAudio | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    text_temperature: float | UnsetType | None = UNSET
    text_top_k: int | UnsetType | None = UNSET
    audio_temperature: float | UnsetType | None = UNSET
    audio_top_k: int | UnsetType | None = UNSET
    input_format: AudioFormat | UnsetType = UNSET
    input_rate: int | UnsetType = UNSET
    output_format: AudioFormat | UnsetType = UNSET
    output_text_only: bool | UnsetType = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    overlap_policy: OverlapPolicy | UnsetType = UNSET
    playback_commit_policy: PlaybackCommitPolicy | UnsetType = UNSET
    input_clock: InputClockMode | UnsetType = UNSET
    turn_detection: TurnDetectionPatch | UnsetType | None = UNSET
    overlap_short_ack_ms: int | UnsetType = UNSET
    overlap_barge_in_ms: int | UnsetType = UNSET
    idle_timeout_s: float | UnsetType | None = UNSET
    stage_metrics: bool | UnsetType = UNSET


class Substitution(msgspec.Struct, frozen=True):
    """A setting that was asked for and isn't available here, and what is in force instead."""

    field: str
    requested: str
    in_force: str | None
    reason: str


class ResponseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one response is made under: the session's settings, but for what its request said."""

    text_only: bool = False
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    """The client's own notes."""
    substitutions: tuple[Substitution, ...] = ()


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this server's model can do, as section 2 of the protocol names it. Honest: never a
    yes for what isn't there.
    """

    implementation_level: str
    chunk_period_ms: int
    input_modes: tuple[str, ...]
    supports_multi_session: bool
    supports_multi_session_same_replica: bool
    supports_barge_in: bool
    supports_playback_ack: bool
    supports_session_resume: bool
    supports_audio_truncate: bool
    required_input_modalities: tuple[str, ...]
    optional_input_modalities: tuple[str, ...]
    max_sessions: int

    @classmethod
    def of(cls, spec: EngineSpec, *, resume: bool = False) -> Capabilities:
        """The capabilities of a lockstep engine on a server with or without resume."""
        return cls(
            implementation_level="model_native_duplex",
            chunk_period_ms=round(1000 * spec.frame_s),
            input_modes=("append_audio_chunk",),
            supports_multi_session=spec.slots > 1,
            supports_multi_session_same_replica=spec.slots > 1,
            supports_barge_in=False,
            supports_playback_ack=True,
            supports_session_resume=resume,
            supports_audio_truncate=True,
            required_input_modalities=("audio",),
            optional_input_modalities=("video",) if spec.video else (),
            max_sessions=spec.slots,
        )
