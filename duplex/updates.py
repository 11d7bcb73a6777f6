"""How a session's settings change: whole, or not at all."""

from __future__ import annotations

import asyncio
import binascii
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from duplex.commands import UpdateSession
from duplex.errors import SessionError
from duplex.events import SessionUpdated
from duplex.settings import EncodedAudio, Substitution
from media.clips import read_clip
from media.formats import BadAudio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duplex.session import Session
    from duplex.settings import Settings, SettingsPatch

_MAX_REFERENCE_S = 30.0
_MAX_SUBSTITUTIONS = 64
"""Of those, the latest are told."""

_FIXED_ONCE_BEGUN = (
    "voice",
    "persona",
    "voice_audio",
    "seed",
    "text_temperature",
    "text_top_k",
    "audio_temperature",
    "audio_top_k",
    "input_clock",
)


async def update(session: Session, command: UpdateSession) -> None:
    """Applies the patch; the first update takes the slot. Raises SessionError, naming the field
    as the client wrote it; nothing has changed then.
    """
    before = session.settings
    patch = await _decoded(command.patch, session.runtime.spec.sample_rate)
    settings, limits = _within_limits(session, before.patched(patch), command)
    _check_fixed(session, settings, command)
    if not session.opened or settings.open_params() != before.open_params():
        await _open(session, settings, command)
    session.apply(settings)
    _note(session.substitutions, command.written, (*command.substitutions, *limits))
    session.start()
    session.emit(
        SessionUpdated(settings=settings, substitutions=tuple(session.substitutions.values()))
    )


def _check_fixed(session: Session, settings: Settings, command: UpdateSession) -> None:
    before, patch = session.settings, command.patch
    for name in _FIXED_ONCE_BEGUN if session.begun else ():
        if getattr(patch, name) is not UNSET and getattr(settings, name) != getattr(before, name):
            raise _fixed(command, name)
    rate = session.intake.rate
    if rate is not None and settings.input_rate not in (rate, before.input_rate):
        raise _fixed(command, "input_rate")


def _fixed(command: UpdateSession, name: str) -> SessionError:
    path = _path(command, name)
    return SessionError("invalid_value", f"{path} is fixed once audio has been sent.", param=path)


def _within_limits(
    session: Session, settings: Settings, command: UpdateSession
) -> tuple[Settings, list[Substitution]]:
    """The settings as far as this session can have them, and what is in force instead."""
    substitutions = []
    wanted, most = settings.idle_timeout_s, session.max_idle_s
    if most is not None and (wanted is None or wanted > most):
        settings = msgspec.structs.replace(settings, idle_timeout_s=most)
        substitutions.append(
            Substitution(
                _path(command, "idle_timeout_s"),
                "null" if wanted is None else f"{wanted:g}",
                f"{most:g}",
                "This server's limit.",
            )
        )
    if settings.max_output_tokens is not None and not session.responses.bounded:
        asked = str(settings.max_output_tokens)
        settings = msgspec.structs.replace(settings, max_output_tokens=None)
        substitutions.append(
            Substitution(
                _path(command, "max_output_tokens"),
                asked,
                "inf",
                "The session is one response.",
            )
        )
    return settings, substitutions


def _path(command: UpdateSession, name: str) -> str:
    """The setting as the client wrote it."""
    recording = command.patch.voice_audio
    if name == "voice_audio" and isinstance(recording, EncodedAudio):
        return recording.param
    return command.paths.get(name, name)


async def _open(session: Session, settings: Settings, command: UpdateSession) -> None:
    """Takes a slot for the settings; if the model refuses them, the session keeps what it had."""
    had = session.opened
    try:
        await session.open(settings)
    except SessionError as error:
        if error.param is not None:
            error.param = _path(command, error.param)
        if had and not error.fatal:
            await session.open(session.settings)
        raise


def _note(
    noted: dict[str, Substitution], written: Iterable[str], substitutions: Iterable[Substitution]
) -> None:
    """Keeps the substitutions in force: what the client has written anew is as it says now."""
    for path in written:
        for field in [field for field in noted if field == path or field.startswith(f"{path}.")]:
            del noted[field]
    for substitution in substitutions:
        noted.pop(substitution.field, None)
        noted[substitution.field] = substitution
    while len(noted) > _MAX_SUBSTITUTIONS:
        del noted[next(iter(noted))]


async def _decoded(patch: SettingsPatch, rate: int) -> SettingsPatch:
    """The patch with its recording, if it has one, as samples."""
    recording = patch.voice_audio
    if not isinstance(recording, EncodedAudio):
        return patch
    try:
        samples = await asyncio.to_thread(_samples, recording.base64, rate)
    except BadAudio as error:
        message = f"{recording.param}: {error}."
        raise SessionError("bad_audio", message, param=recording.param) from error
    return msgspec.structs.replace(patch, voice_audio=samples)


def _samples(base64: str, rate: int) -> bytes:
    """A file in base64 as float32 mono samples."""
    try:
        file = binascii.a2b_base64(base64, strict_mode=True)
    except ValueError as error:
        raise BadAudio(f"no base64 ({error})") from error
    return read_clip(file, rate, max_s=_MAX_REFERENCE_S).astype("<f4", copy=False).tobytes()
