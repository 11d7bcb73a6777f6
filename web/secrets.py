"""Client secrets: keys that expire, for pages that must not see the real one."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from duplex.settings import SettingsPatch, Substitution
from media.clock import Clock
from web.errors import ApiError

PREFIX: Final = "ek_"
"""Of every secret, and of no API key."""

MAX_SECRETS: Final = 4096
"""In force at a time."""


@dataclass(frozen=True, slots=True)
class Secret:
    """What a secret stands for."""

    client: str
    """Who had it made: its sessions count as theirs."""
    expires: float
    """Monotonic seconds."""
    patch: SettingsPatch
    """The settings that its sessions begin with."""
    substitutions: tuple[Substitution, ...]


class Secrets:
    """The secrets in force. Only digests are kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_digest: dict[bytes, Secret] = {}

    def make(
        self,
        client: str,
        seconds: float,
        patch: SettingsPatch,
        substitutions: tuple[Substitution, ...],
    ) -> str:
        """A new secret, in force for so long. Raises ApiError 429 if there are too many."""
        now = self._clock.now()
        if len(self._by_digest) >= MAX_SECRETS:
            kept = {key: found for key, found in self._by_digest.items() if found.expires > now}
            self._by_digest = kept
        if len(self._by_digest) >= MAX_SECRETS:
            raise ApiError(
                429,
                "too_many_secrets",
                f"{MAX_SECRETS} client secrets are in force. Let some expire.",
                type="rate_limit_error",
            )
        value = PREFIX + secrets.token_urlsafe(32)
        self._by_digest[_digest(value)] = Secret(client, now + seconds, patch, substitutions)
        return value

    def find(self, value: str) -> Secret | None:
        """What a secret stands for; None if it isn't one, or has expired."""
        digest = _digest(value)
        secret = self._by_digest.get(digest)
        if secret is not None and secret.expires <= self._clock.now():
            del self._by_digest[digest]
            return None
        return secret


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest()
