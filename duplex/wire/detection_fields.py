"""Reads turn detection off the realtime wire: `server_vad`, or what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from duplex.turns import TurnDetectionPatch
from duplex.wire.fields import Reader, boolean, integer, number, refuse

_EAGERNESS = ("low", "medium", "high", "auto")

_FIELDS: dict[str, Callable[[str, object], object]] = {
    "threshold": partial(number, low=0.0, high=1.0),
    "prefix_padding_ms": partial(integer, low=0, high=5_000),
    "silence_duration_ms": partial(integer, low=0, high=60_000),
    "create_response": boolean,
    "interrupt_response": boolean,
    "idle_timeout_ms": partial(integer, low=1_000, high=600_000),
}


def turn_detection(reader: Reader, path: str, value: object) -> None:
    """Null turns it off; an object changes what it names."""
    if value is None:
        reader.set("turn_detection", path, None)
        return
    if not isinstance(value, Mapping):
        refuse(path, f"{path} must be an object or null.", "invalid_type")
    kind = value.get("type", "server_vad")
    if kind == "semantic_vad":
        reader.substitute(f"{path}.type", kind, "server_vad", "There is no end-of-turn model here.")
    elif kind != "server_vad":
        refuse(f"{path}.type", f"Unknown turn detection {kind!r}.", "unsupported_turn_detection")
    changes: dict[str, object] = {}
    for name, item in value.items():
        at, convert = f"{path}.{name}", _FIELDS.get(name)
        if convert is not None and item is not None:
            changes[name] = convert(at, item)
        elif name == "idle_timeout_ms":
            changes[name] = None
        elif name == "eagerness" and kind == "semantic_vad":
            if item is not None and item not in _EAGERNESS:
                refuse(at, f"{at} must be one of {', '.join(_EAGERNESS)}.")
        elif convert is None and name != "type":
            refuse(at, f"Unknown setting {at}.", "unknown_parameter")
    if changes.get("create_response") is False:
        changes["create_response"] = True
        reader.substitute(
            f"{path}.create_response", False, "true", "The model speaks when it will."
        )
    reader.set("turn_detection", path, msgspec.convert(changes, TurnDetectionPatch))
