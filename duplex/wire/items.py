"""Conversation items on the realtime wire, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duplex.conversation import Item, Part, PartType, Role
from duplex.errors import SessionError
from duplex.ids import new_id
from duplex.wire.fields import refuse
from duplex.wire.session_writer import Dialect

_ROLE_PARTS: dict[Role, tuple[PartType, ...]] = {
    "user": ("input_text", "input_audio"),
    "system": ("input_text",),
    "assistant": ("output_text", "output_audio"),
}
_BETA_NAMES: dict[PartType, str] = {"output_text": "text", "output_audio": "audio"}
_MAX_TEXT = 1 << 20


def read_item(value: Mapping[str, Any]) -> Item:
    """A client's item. Raises SessionError naming the field."""
    item_id = value.get("id")
    if item_id is None:
        item_id = new_id("item")
    elif not isinstance(item_id, str) or not 1 <= len(item_id) <= 128:
        refuse("item.id", "item.id must be a string of 1 to 128 characters.")
    kind = value.get("type", "message")
    if kind == "function_call":
        return Item(
            id=item_id,
            type="function_call",
            name=_text(value, "name"),
            arguments=_text(value, "arguments"),
            call_id=_text(value, "call_id", required=False) or new_id("call"),
        )
    if kind == "function_call_output":
        return Item(
            id=item_id,
            type="function_call_output",
            call_id=_text(value, "call_id"),
            output=_text(value, "output"),
        )
    if kind != "message":
        refuse("item.type", f"Unknown item type {kind!r}.")
    return _read_message(item_id, value)


def _read_message(item_id: str, value: Mapping[str, Any]) -> Item:
    named = value.get("role")
    role = next((role for role in _ROLE_PARTS if role == named), None)
    if role is None:
        refuse("item.role", "item.role must be user, assistant or system.")
    content = value.get("content")
    if not isinstance(content, list) or not content:
        refuse("item.content", "item.content must be a list of parts.")
    parts = [_read_part(f"item.content[{n}]", role, part) for n, part in enumerate(content)]
    return Item(id=item_id, role=role, parts=parts)


def _read_part(path: str, role: Role, value: object) -> Part:
    if not isinstance(value, Mapping):
        refuse(path, f"{path} must be an object.")
    named = value.get("type")
    for kind in _ROLE_PARTS[role]:
        if named == kind or named == _BETA_NAMES.get(kind):
            break
    else:
        allowed = ", ".join(_ROLE_PARTS[role])
        refuse(f"{path}.type", f"A part of a {role} message is {allowed}, not {named!r}.")
    if value.get("audio") is not None:
        refuse(f"{path}.audio", "The model hears what is appended to the input buffer only.")
    field = "text" if kind.endswith("text") else "transcript"
    text = value.get(field)
    if kind.endswith("text") and not isinstance(text, str):
        refuse(f"{path}.text", f"{path}.text must be a string.")
    if text is not None and (not isinstance(text, str) or len(text) > _MAX_TEXT):
        refuse(f"{path}.{field}", f"{path}.{field} must be a string of at most {_MAX_TEXT}.")
    return Part(type=kind, text=text)


def _text(value: Mapping[str, Any], name: str, *, required: bool = True) -> str:
    text = value.get(name, None if required else "")
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise SessionError("invalid_value", f"item.{name} must be a string.", param=f"item.{name}")
    return text


def present(**fields: Any) -> dict[str, Any]:
    """The fields that aren't null: some clients drop events with nulls silently."""
    return {name: value for name, value in fields.items() if value is not None}


def write_item(item: Item, dialect: Dialect) -> dict[str, Any]:
    """The item as the wire has it. No field is null but a user's missing transcript."""
    written: dict[str, Any] = {
        "id": item.id,
        "object": "realtime.item",
        "type": item.type,
        "status": item.status,
    }
    if item.type == "message":
        return written | {
            "role": item.role,
            "content": [write_part(part, dialect) for part in item.parts],
        }
    return written | present(
        name=item.name, call_id=item.call_id, arguments=item.arguments, output=item.output
    )


def write_part(part: Part, dialect: Dialect) -> dict[str, Any]:
    """A part as the wire has it; a user's speech without words has a null transcript, since
    OpenAI's own JavaScript client asks for it.
    """
    kind: str = part.type
    if dialect == "beta":
        kind = _BETA_NAMES.get(part.type, kind)
    if part.type.endswith("text"):
        return {"type": kind, "text": part.text or ""}
    transcript = part.text if part.type == "input_audio" else part.text or ""
    return {"type": kind, "transcript": transcript}
