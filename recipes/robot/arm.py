"""A planar arm of two joints, its camera, and the expert that a policy learns from.

Joints are in radians, [..., 2]: the shoulder from the x axis, the elbow from the upper arm. Points
are in metres, [..., 2]. Batches work everywhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Image = npt.NDArray[np.uint8]

UPPER: Final = 1.0
FORE: Final = 0.9
"""Lengths of the links in metres."""
STEP_S: Final = 0.05
"""Seconds between two actions."""
MAX_SPEED: Final = 2.0
"""Radians a second of each joint."""
LIMITS: Final = np.array([[-1.6, 3.2], [0.1, 3.0]])
"""Of each joint: the elbow bends one way."""
IMAGE_SIZE: Final = 32
"""Pixels of a side."""

_VIEW: Final = 2.1
"""Metres from the shoulder to each edge of the picture."""
_GAIN: Final = 4.0
_LINK_WIDTH: Final = 0.09
_TARGET_RADIUS: Final = 0.18


def hand(joints: Floats) -> Floats:
    """Where the hand is."""
    return elbow(joints) + FORE * _direction(joints.sum(-1))


def elbow(joints: Floats) -> Floats:
    """Where the elbow is."""
    return UPPER * _direction(joints[..., 0])


def joints_for(points: Floats) -> Floats:
    """The joints that bring the hand to points within reach."""
    squared = (points**2).sum(-1)
    cosine = (squared - UPPER**2 - FORE**2) / (2 * UPPER * FORE)
    bend = np.arccos(np.clip(cosine, -1, 1))
    lead = np.arctan2(FORE * np.sin(bend), UPPER + FORE * np.cos(bend))
    joints = np.stack([np.arctan2(points[..., 1], points[..., 0]) - lead, bend], -1)
    within: Floats = np.clip(joints, LIMITS[:, 0], LIMITS[:, 1])
    return within


def step(joints: Floats, speeds: Floats) -> Floats:
    """The joints after one action: speeds in radians a second, held for STEP_S."""
    moved = joints + STEP_S * np.clip(speeds, -MAX_SPEED, MAX_SPEED)
    within: Floats = np.clip(moved, LIMITS[:, 0], LIMITS[:, 1])
    return within


def expert(joints: Floats, target: Floats, horizon: int) -> Floats:
    """The next actions [..., horizon, 2] of one who knows where the target is."""
    goal, speeds = joints_for(target), []
    for _ in range(horizon):
        speeds.append(np.clip(_GAIN * (goal - joints), -MAX_SPEED, MAX_SPEED))
        joints = step(joints, speeds[-1])
    return np.stack(speeds, -2)


def random_target(rng: np.random.Generator, count: int) -> Floats:
    """Points [count, 2] within reach, above the shoulder."""
    radius, angle = rng.uniform(0.6, 1.7, count), rng.uniform(0.1, np.pi - 0.1, count)
    return radius[:, None] * _direction(angle)


def random_joints(rng: np.random.Generator, count: int) -> Floats:
    """Poses [count, 2] with the hand at such a point."""
    return joints_for(random_target(rng, count))


def render(joints: Floats, target: Floats) -> Image:
    """What the camera sees: [..., IMAGE_SIZE, IMAGE_SIZE, 3], the target in red."""
    axis = _VIEW * (2 * (np.arange(IMAGE_SIZE) + 0.5) / IMAGE_SIZE - 1)
    pixels = np.stack(np.meshgrid(axis, -axis), -1).reshape(-1, 2)
    middle, tip = elbow(joints), hand(joints)
    upper = _cover(_from_link(pixels, np.zeros_like(middle), middle), _LINK_WIDTH)
    fore = _cover(_from_link(pixels, middle, tip), _LINK_WIDTH)
    spot = _cover(np.linalg.norm(pixels - target[..., None, :], axis=-1), _TARGET_RADIUS)
    red = 0.9 - 0.9 * np.maximum(upper, fore) * (1 - spot)
    green = 0.9 - np.maximum.reduce([0.6 * upper, 0.3 * fore, 0.8 * spot])
    blue = 0.9 - np.maximum.reduce([0.1 * upper, 0.7 * fore, 0.8 * spot])
    image = np.stack([red, green, blue], -1)
    shape = (*joints.shape[:-1], IMAGE_SIZE, IMAGE_SIZE, 3)
    pixels_8bit: Image = (255 * np.clip(image, 0, 1)).astype(np.uint8)
    return pixels_8bit.reshape(shape)


def _direction(angle: Floats) -> Floats:
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def _from_link(pixels: Floats, start: Floats, end: Floats) -> Floats:
    """Distances [..., pixels] from a line between two points."""
    link, offset = (end - start)[..., None, :], pixels - start[..., None, :]
    along = np.clip((offset * link).sum(-1) / (link**2).sum(-1), 0, 1)
    distance: Floats = np.linalg.norm(offset - along[..., None] * link, axis=-1)
    return distance


def _cover(distance: Floats, radius: float) -> Floats:
    """How much of a pixel a shape covers: soft edges tell where it is to a part of a pixel."""
    pixel = 2 * _VIEW / IMAGE_SIZE
    return np.clip((radius - distance) / pixel + 0.5, 0, 1)
