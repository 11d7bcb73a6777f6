"""Lets the simulated arm reach for targets by asking a server: `python -m recipes.robot.reach`.

The server is `duplex serve echo --policy recipes.robot.policy:make`; see the README beside this.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from clients.robot import RobotPolicyClient, connect
from recipes.robot.arm import Floats, hand, random_joints, random_target, render, step
from recipes.robot.plot import path_svg
from recipes.robot.policy import IMAGE, JOINTS

Episode = tuple[Floats, Floats]
"""Joints [T, 2], and the target [2]."""


async def reach(
    policy: RobotPolicyClient, joints: Floats, target: Floats, *, asks: int, use: int
) -> Episode:
    """Asks for actions `asks` times and carries out the first `use` of each reply."""
    await policy.reset()
    path = [joints]
    for _ in range(asks):
        observation = {IMAGE: render(joints, target), JOINTS: joints.astype(np.float32)}
        reply = await policy.infer(observation)
        for speeds in cast(Floats, reply["actions"])[:use]:
            joints = step(joints, speeds)
            path.append(joints)
    return np.stack(path), target


async def episodes(
    url: str, count: int, *, seed: int = 0, asks: int = 20, use: int = 4, api_key: str | None = None
) -> list[Episode]:
    """Reaches for `count` targets, one after the other."""
    rng = np.random.default_rng(seed)
    starts, targets = random_joints(rng, count), random_target(rng, count)
    async with connect(url, api_key=api_key) as policy:
        return [
            await reach(policy, start, target, asks=asks, use=use)
            for start, target in zip(starts, targets, strict=True)
        ]


def misses(done: list[Episode]) -> Floats:
    """Metres between hand and target at the end of each episode."""
    gaps: Floats = np.array([np.linalg.norm(hand(path[-1]) - target) for path, target in done])
    return gaps


def main(
    url: Annotated[str, typer.Option(help="The server.")] = "ws://127.0.0.1:8091",
    count: Annotated[int, typer.Option("--episodes", help="Targets to reach for.", min=1)] = 20,
    plot: Annotated[Path | None, typer.Option(help="Draw the first six paths, as SVG.")] = None,
    seed: int = 1,
) -> None:
    """Reaches for targets and says how near the hand came."""
    done = asyncio.run(episodes(url, count, seed=seed))
    gaps = 100 * misses(done)
    print(f"{count} episodes with an arm of 190 cm: the hand ends {np.median(gaps):.1f} cm")
    print(f"from its target (median), {gaps.max():.1f} cm at most")
    if plot is not None:
        plot.write_text(path_svg(done[:6], "A two-joint arm reaches for what it sees"), "utf-8")
        print(f"{plot}: the paths of the first {min(6, count)}")


if __name__ == "__main__":
    typer.run(main)
