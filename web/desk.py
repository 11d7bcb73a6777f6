"""What all sockets of a server share, however many processes carry them: places and secrets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from duplex.config import ServeConfig
from duplex.settings import SettingsPatch, Substitution
from media.clock import Clock
from web.limits import ConnectionLimit
from web.secrets import Secret, Secrets


class Desk(Protocol):
    """Where connections ask for admission."""

    @property
    def open(self) -> int:
        """Connections that this process has at the moment."""
        ...

    async def hold(self, client: str) -> AbstractContextManager[None]:
        """A place for one connection of a client, until the context ends.

        Raises ApiError 429 if there is none.
        """
        ...

    async def make_secret(
        self,
        client: str,
        seconds: float,
        patch: SettingsPatch,
        substitutions: tuple[Substitution, ...],
    ) -> str:
        """A new client secret, in force for so long. Raises ApiError 429 if there are too many."""
        ...

    async def find_secret(self, value: str) -> Secret | None:
        """What a secret stands for; None if it isn't one, or has expired."""
        ...


class LocalDesk:
    """Implements `Desk` in this process."""

    def __init__(self, config: ServeConfig, clock: Clock) -> None:
        self.connections = ConnectionLimit(
            config.max_connections, config.max_connections_per_client
        )
        self.secrets = Secrets(clock)

    @property
    def open(self) -> int:
        """Connections that this process has at the moment."""
        return self.connections.open

    async def hold(self, client: str) -> AbstractContextManager[None]:
        """Raises ApiError 429 as the context begins."""
        return self.connections.hold(client)

    async def make_secret(
        self,
        client: str,
        seconds: float,
        patch: SettingsPatch,
        substitutions: tuple[Substitution, ...],
    ) -> str:
        """A new client secret. Raises ApiError 429 if there are too many."""
        return self.secrets.make(client, seconds, patch, substitutions)

    async def find_secret(self, value: str) -> Secret | None:
        """What a secret stands for."""
        return self.secrets.find(value)
