"""What `fixed` promises, the same bits whoever shares the batch, and what it costs."""

from __future__ import annotations

import hashlib
import random
import time
from dataclasses import dataclass, field

import torch

from engine.api import OpenParams, Pcm
from engine.model import LockstepModel
from recipes.bench.gpu.models import make_live, persona, sound, with_model
from recipes.bench.gpu.results import Case, Figures, Measured
from recipes.bench.gpu.step import fill, step_times

_STEPS = 500
_ALONE = 8
"""Sessions that are run again alone."""
_WRAPPED = 256
"""Frames of the context, so that rings go round within the steps."""


@dataclass(slots=True)
class _Life:
    """A session's parameters, and a digest of each answer."""

    number: int
    params: OpenParams
    answers: list[bytes] = field(default_factory=list)


def measure(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """For each case: sessions compared to themselves alone, and steps with and without `fixed`."""
    found: list[Measured] = []
    for case in cases:
        short = Case(case.sessions, case.kv, _WRAPPED, case.weights)
        same = with_model(
            device, short, lambda model: identity(model, seconds), fixed=True, tiny=tiny
        )
        print(f"  {short}: {same}", flush=True)
        found.append(Measured("fixed", short, same))
        rows = sorted({1, case.sessions})

        def medians(
            model: LockstepModel, case: Case = case, rows: list[int] = rows
        ) -> dict[int, float]:
            fill(model, case, tiny)
            return {count: float(step_times(model, count, seconds / 4)["p50_ms"]) for count in rows}

        times = {
            fixed: with_model(device, case, medians, fixed=fixed, tiny=tiny)
            for fixed in (False, True)
        }
        figures: Figures = {}
        for count in rows:
            ready, fixed_ms = times[False][count], times[True][count]
            figures[f"ready_{count}_ms"] = ready
            figures[f"fixed_{count}_ms"] = fixed_ms
            figures[f"cost_{count}_pct"] = 100 * (fixed_ms / ready - 1)
        print(f"  {case}: {figures}", flush=True)
        found.append(Measured("fixed", case, figures))
    return found


def identity(model: LockstepModel, seconds: float, steps: int = _STEPS) -> Figures:
    """Steps of sessions that join, pause and leave at random; then some of them alone.

    Raises AssertionError, naming the frame, if a session's sound or text is another then.
    """
    chance = random.Random(0)
    heard = sound(model, 97)
    live: dict[int, _Life] = {}
    lives: list[_Life] = []
    end = time.monotonic() + seconds
    done = 0
    while done < steps and (done < 10 or time.monotonic() < end):
        for row in range(model.spec.slots):
            if row in live and chance.random() < 0.01:
                del live[row]
                model.reset([row])
            elif row not in live and chance.random() < (1 if done == 0 else 0.05):
                number = len(lives)
                text = persona(20 + number % 50, number)
                lives.append(_Life(number, OpenParams(persona=text, seed=number)))
                make_live(model, row, lives[-1].params)
                live[row] = lives[-1]
        rows = [row for row in live if chance.random() < 0.9]
        if not rows:
            continue
        chance.shuffle(rows)
        _step(model, {row: live[row] for row in rows}, heard)
        done += 1
    for row in list(live):
        model.reset([row])
    lives.sort(key=lambda life: -len(life.answers))
    longest, rest = lives[: _ALONE // 2], lives[_ALONE // 2 :]
    sample = longest + chance.sample(rest, min(len(rest), _ALONE // 2))
    compared = 0
    for life in sample:
        again = _Life(life.number, life.params)
        row = chance.randrange(model.spec.slots)
        make_live(model, row, life.params)
        for index, answer in enumerate(life.answers):
            _step(model, {row: again}, heard)
            if again.answers[index] != answer:
                raise AssertionError(f"session {life.number} is another alone, at frame {index}")
            compared += 1
        model.reset([row])
    return {
        "steps": done,
        "lives": len(lives),
        "compared_sessions": len(sample),
        "compared_frames": compared,
        "identical": "yes",
    }


def _step(model: LockstepModel, batch: dict[int, _Life], heard: Pcm) -> None:
    places = [(life.number + len(life.answers)) % len(heard) for life in batch.values()]
    made = model.step(list(batch), heard[places])
    for life, pcm, text in zip(batch.values(), made.pcm, made.text, strict=True):
        life.answers.append(hashlib.blake2b(pcm.tobytes() + text.encode(), digest_size=8).digest())
