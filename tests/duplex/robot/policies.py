"""Policies for the tests, which run in processes of their own."""

import importlib
import os
import sys
import time
from pathlib import Path

import numpy as np


class Policy:
    """Says what it was asked, in numbers."""

    def __init__(self, **options):
        self.metadata = {"options": options, "python": sys.executable, "cube": np.zeros((2, 2))}
        self.options = options

    def infer(self, obs, reset=False):
        match obs.get("do"):
            case "fail":
                raise RuntimeError("a secret of the policy")
            case "refuse":
                from engine.policy import BadObservation

                raise BadObservation("do is not what I do")
            case "die":
                os._exit(3)
            case "wait":
                gate = Path(obs["gate"])
                gate.with_suffix(".waiting").touch()
                while not gate.exists():
                    time.sleep(0.001)
            case "import":
                importlib.import_module(obs["module"])
            case "give nothing":
                return None
        size = sum(value.nbytes for value in obs.values() if isinstance(value, np.ndarray))
        return {"actions": np.full((3, 2), obs.get("x", 0.0)), "reset": reset, "size": size}

    def close(self):
        if "closed" in self.options:
            Path(self.options["closed"]).touch()


class Batched(Policy):
    """Says how many were asked with it."""

    def infer_batch(self, observations, resets):
        results = [self.infer(obs, reset) for obs, reset in zip(observations, resets, strict=True)]
        return [result | {"batch": len(observations)} for result in results]


class Stateful(Policy):
    """Counts a robot's observations."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def infer(self, obs, reset=False, *, session):
        assert reset == (session not in self.counts)
        self.counts[session] = self.counts.get(session, 0) + 1
        return np.array([[self.counts[session], len(self.counts)]])

    def end_session(self, session):
        del self.counts[session]


class Unloadable:
    def __init__(self):
        raise OSError("no weights here")


def not_sendable():
    policy = Policy()
    policy.metadata = {"policy": policy}
    return policy
