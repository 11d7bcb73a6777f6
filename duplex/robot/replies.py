"""What OpenPI clients are answered. No I/O; runs in the policy's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.policy import BadObservation, Inference, PolicyError
from media.ndarray_msgpack import CodecError, packb

INVALID: Final = packb({"type": "error", "message": "Invalid request payload"})
"""For what is no request. The session goes on."""
RESET: Final = packb({"status": "reset successful"})
INTERNAL_ERROR: Final = "Internal inference error"


def inference_reply(inference: Inference, *, infer_ms: float, prev_total_ms: float | None) -> bytes:
    """The policy's fields, with its time and the server's.

    `infer_ms` is from the request's arrival to its result, `prev_total_ms` from the arrival of the
    request before to the sending of its reply; absent with the first. Raises PolicyError for what
    can't be sent.
    """
    timing = inference.fields.get("policy_timing")
    policy_timing = dict(timing) if isinstance(timing, Mapping) else {}
    policy_timing.setdefault("infer_ms", 1e3 * inference.seconds)
    server_timing = {"infer_ms": infer_ms}
    if prev_total_ms is not None:
        server_timing["prev_total_ms"] = prev_total_ms
    more = {"policy_timing": policy_timing, "server_timing": server_timing}
    try:
        return packb(inference.fields | more)
    except CodecError as error:
        raise PolicyError(f"the policy's result can't be sent: {error}") from error


def failure_text(error: Exception) -> str:
    """What a robot is told of an inference that failed."""
    if isinstance(error, BadObservation) and str(error):
        return str(error)
    return INTERNAL_ERROR
