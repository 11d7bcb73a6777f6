"""What the processes of one server say to each other, as JSON over HTTP on sockets of their own."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from duplex.errors import SessionError
from duplex.settings import SettingsPatch, Substitution
from web.errors import ErrorDetail
from web.secrets import Secret

HUB: Final = "hub"
"""The name of the hub's socket; those of the workers' are their homes."""

CLIENT_HEADER: Final = "Duplex-Client"
"""Who sent a request that is passed on, as the worker that let it in knows."""

HOME: Final = re.compile(r"\d+-\d+")
"""A worker's number, and how many have had it before."""


class Place(msgspec.Struct, frozen=True):
    """A connection of a client's at a worker."""

    home: str
    client: str


class Home(msgspec.Struct, frozen=True):
    """What may be a worker's home."""

    name: str


class NewSecret(msgspec.Struct, frozen=True):
    """A client secret to be made."""

    client: str
    seconds: float
    patch: SettingsPatch
    substitutions: tuple[Substitution, ...]


class SecretValue(msgspec.Struct, frozen=True):
    """A client secret as its holder shows it."""

    value: str


class FoundSecret(msgspec.Struct, frozen=True):
    """None: it isn't one, or has expired."""

    secret: Secret | None


class Yes(msgspec.Struct, frozen=True):
    """An answer to a question."""

    yes: bool


class Held(msgspec.Struct, frozen=True):
    """Since when (monotonic seconds) a worker holds the session that it has held for longest."""

    since: float | None


class Resume(msgspec.Struct, frozen=True):
    """A session is asked for by a client that another worker has."""

    session_id: str
    resume_token: str
    last_seq: int


class Resumed(msgspec.Struct, frozen=True):
    """What has become of it. Neither: from now on, the session's messages."""

    error: ErrorDetail | None = None
    resync: str | None = None
    """The session has ended, and why."""

    @classmethod
    def refused(cls, error: SessionError) -> Resumed:
        """There was no resuming it."""
        return cls(
            ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code)
        )
