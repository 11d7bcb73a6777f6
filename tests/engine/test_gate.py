"""The gate between an engine and other work on its device."""

import subprocess
import sys

import numpy as np

from engine.api import Frame, OpenParams
from engine.core import EngineCore
from engine.echo import FRAME_SIZE, EchoModel
from engine.gate import Gate
from engine.messages import Feed, Open, Outputs
from engine.serve import serve

OTHER = """
import sys
from engine.gate import Gate
gate = Gate.at(sys.argv[1])
print("there", flush=True)
print("waited" if gate.wait(60) > 0 else "passed", flush=True)
"""


def test_another_process_waits_until_it_opens():
    gate = Gate()
    gate.closed = True
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, gate.path], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "there\n"
        gate.closed = False
        assert other.stdout.readline() in ("waited\n", "passed\n")
        assert other.wait(20) == 0


def test_a_wait_is_bounded_and_an_open_gate_costs_none():
    gate = Gate()
    assert gate.wait(60) == 0
    gate.closed = True
    assert gate.wait(0.01) >= 0.01
    gate.close()
    gate.close()
    assert not gate.closed


def test_it_opens_when_the_last_engine_has_nothing_ready():
    first = Gate()
    second = Gate(first.memory, 1)
    second.closed = True
    first.closed = True
    first.closed = False
    assert first.closed
    second.closed = False
    assert not first.closed
    assert not second.closed


class WatchingPort:
    """Gives what it was told to, and notes whether the gate is closed."""

    def __init__(self, gate, turns):
        self.gate = gate
        self.turns = iter(turns)
        self.seen = []

    def receive(self, *, wait_s):
        self.seen.append(("receive", self.gate.closed))
        return next(self.turns, None)

    def send(self, event):
        if isinstance(event, Outputs):
            self.seen.append(("send", self.gate.closed))


class WatchingModel(EchoModel):
    gate = None
    seen = None

    def step(self, rows, pcm):
        self.seen.append(("step", self.gate.closed))
        return super().step(rows, pcm)


def test_it_is_closed_while_frames_are_ready_and_only_then():
    gate = Gate()
    pcm = np.zeros(FRAME_SIZE, np.float32)
    feed = Feed([Frame(0, 0, 0, pcm), Frame(0, 0, 1, pcm)], 0.0)
    port = WatchingPort(gate, [[Open(0, OpenParams())], [], [feed], [], []])
    model = WatchingModel(1)
    model.gate, model.seen = gate, port.seen
    serve(EngineCore(model), port, gate)
    once = [("step", True), ("send", True)]
    opening = [("receive", False)] * 3
    assert port.seen == [*opening, *once, ("receive", True), *once, *[("receive", False)] * 2]
