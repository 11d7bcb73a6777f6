"""Trains the policy: `python -m recipes.robot.train arm.safetensors`, under a minute on a CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.progress import track
from safetensors.torch import save_file

from recipes.robot.arm import expert, joints_for, random_joints, random_target, render
from recipes.robot.network import HORIZON, Network

_SCENES = 4_000
_BATCH = 64


def train(steps: int = 1_200, seed: int = 0, scenes: int = _SCENES) -> tuple[Network, float]:
    """A network that imitates the expert, and its mean absolute error in radians a second on
    scenes that it never saw.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    images, joints, actions = _scenes(rng, scenes)
    held_out = _scenes(rng, 256)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for _ in track(range(steps), "training", transient=True):
        rows = torch.from_numpy(rng.integers(scenes, size=_BATCH))
        error = network(images[rows], joints[rows]) - actions[rows]
        optimizer.zero_grad()
        loss = torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.2)
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    with torch.inference_mode():
        missed = network(held_out[0], held_out[1]) - held_out[2]
    return network, float(missed.abs().mean())


def _scenes(
    rng: np.random.Generator, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, joints and the expert's actions. Half of the poses are near their target, where the
    hand is slow and must be exact.
    """
    targets = random_target(rng, count)
    joints = random_joints(rng, count)
    near = rng.random(count) < 0.5
    joints[near] = joints_for(targets[near]) + rng.normal(0, 0.15, (near.sum(), 2))
    images = np.concatenate(
        [render(joints[at : at + 256], targets[at : at + 256]) for at in range(0, count, 256)]
    )
    actions = expert(joints, targets, HORIZON)
    return (
        torch.from_numpy(images),
        torch.from_numpy(joints.astype(np.float32)),
        torch.from_numpy(actions.astype(np.float32)),
    )


def main(
    out: Annotated[Path, typer.Argument(help="Where the weights go, as safetensors.")],
    steps: Annotated[int, typer.Option(help="Batches to learn from.")] = 1_200,
    seed: int = 0,
) -> None:
    """Trains the arm's policy."""
    began = time.perf_counter()
    network, error = train(steps, seed)
    save_file(network.state_dict(), out)
    print(f"{out}: {time.perf_counter() - began:.0f} s, error {error:.3f} rad/s")


if __name__ == "__main__":
    typer.run(main)
