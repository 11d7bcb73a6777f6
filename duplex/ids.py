"""Identifiers: random, prefixed by what they name, never used twice."""

from __future__ import annotations

import secrets


def new_id(kind: str) -> str:
    """`kind` and 96 random bits, such as sess_3f…."""
    return f"{kind}_{secrets.token_hex(12)}"
