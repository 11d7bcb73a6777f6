"""The policy's process: reads what robots send, asks the policy, writes what robots get.

`duplex.robot.bootstrap` starts it, in whichever interpreter the policy wants. Requests that wait
when the policy is free go through it together if it has `infer_batch`.
"""

from __future__ import annotations

import json
import logging
import time

from duplex.robot.pipe import Kind, Message, Port
from duplex.robot.replies import RESET, failure_text, inference_reply
from duplex.robot.session import InvalidRequest, Reset, RobotSession
from engine.policy import Inference, PolicyError, PolicyRunner, Request, load_policy
from media.ndarray_msgpack import CodecError, packb, unpackb

logger = logging.getLogger("duplex.robot.policy")


def run(port: Port) -> None:
    """Loads the policy that the owner names, and serves it until the owner says stop.

    Raises EOFError or ConnectionError when the owner is gone before.
    """
    start = json.loads(port.receive().payload)
    try:
        policy = load_policy(start["policy"], start["options"])
        metadata = _metadata(policy)
    except PolicyError as error:
        if error.__cause__ is not None:
            logger.error("the policy can't be loaded", exc_info=error.__cause__)
        port.send(Message(Kind.UNABLE, payload=str(error).encode()))
        return
    port.send(Message(Kind.LOADED, payload=metadata))
    try:
        Worker(policy, port).serve()
    finally:
        policy.close()


class Worker:
    """One policy and the sessions of the robots that use it."""

    def __init__(self, policy: PolicyRunner, port: Port) -> None:
        self._policy = policy
        self._port = port
        self._sessions: dict[int, RobotSession] = {}
        self._batch: list[tuple[Message, Request]] = []

    def serve(self) -> None:
        """Works until the owner says stop."""
        while self._take(self._port.receive()):
            while self._batch and len(self._batch) < self._policy.max_batch and self._port.waiting:
                if not self._take(self._port.receive()):
                    return
            self._infer()

    def _take(self, message: Message) -> bool:
        """Takes in a message; False if it is the last."""
        if message.kind is Kind.STOP:
            return False
        if message.kind is Kind.LEAVE:
            session = self._sessions.pop(message.connection, None)
            if session is not None:
                session.end()
                self._end_state(session)
            return True
        session = self._sessions.get(message.connection)
        if session is None:
            session = self._sessions[message.connection] = RobotSession(message.connection)
        try:
            request = session.read(message.payload)
        except InvalidRequest as error:
            self._port.send(Message(Kind.INVALID, message.connection, str(error).encode()))
            return True
        self._end_state(session)
        if isinstance(request, Reset):
            self._port.send(Message(Kind.REPLY, message.connection, RESET))
        else:
            self._batch.append((message, request))
        return True

    def _infer(self) -> None:
        """Answers those that wait, and forgets what they sent."""
        batch, self._batch = self._batch, []
        outcomes = self._policy.run([request for _, request in batch])
        for (asked, _), outcome in zip(batch, outcomes, strict=True):
            self._port.send(_answer(asked, outcome))

    def _end_state(self, session: RobotSession) -> None:
        state = session.take_ended()
        if state is None:
            return
        try:
            self._policy.end_session(state)
        except Exception:
            logger.exception("the policy's end_session(%r) failed", state)


def _answer(asked: Message, outcome: Inference | Exception) -> Message:
    if isinstance(outcome, Inference):
        infer_ms = 1e3 * (time.monotonic() - asked.arrived)
        try:
            reply = inference_reply(outcome, infer_ms=infer_ms, prev_total_ms=asked.prev_total_ms)
            return Message(Kind.REPLY, asked.connection, reply)
        except PolicyError as error:
            outcome = error
    logger.error("robot %d: inference failed", asked.connection, exc_info=outcome)
    return Message(Kind.FAILED, asked.connection, failure_text(outcome).encode())


def _metadata(policy: PolicyRunner) -> bytes:
    """As robots get it, and can read it."""
    try:
        packed = packb(policy.metadata)
        unpackb(packed)
    except CodecError as error:
        raise PolicyError(f"the policy's metadata can't be sent: {error}") from error
    return packed
