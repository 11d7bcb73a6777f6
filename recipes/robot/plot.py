"""The path of a hand as a picture: SVG, which needs no package and any browser shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from recipes.robot.arm import Floats, elbow, hand

_SCALE: Final = 130.0
"""Pixels a metre."""
_WIDTH: Final = 560
_HEIGHT: Final = 360
_ORIGIN: Final = (_WIDTH / 2, 290.0)
_COLORS: Final = ("#3366cc", "#dc6a1f", "#2a9d57", "#8e44ad", "#b5302a", "#00838f")


def path_svg(episodes: Sequence[tuple[Floats, Floats]], title: str) -> str:
    """Draws episodes, each the joints [T, 2] and the target [2]: every hand's path, the arm as it
    ended, the target as a ring.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="14">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24">{escape(title)}</text>',
    ]
    for number, (joints, target) in enumerate(episodes):
        color = _COLORS[number % len(_COLORS)]
        parts += _episode(joints, target, color)
    x, y = _ORIGIN
    parts += [f'<circle cx="{x}" cy="{y}" r="7" fill="#333"/>', "</svg>"]
    return "\n".join(parts) + "\n"


def _episode(joints: Floats, target: Floats, color: str) -> list[str]:
    path = hand(joints)
    x, y = _place(target)
    start_x, start_y = _place(path[0])
    arm = " ".join([_pair(*_ORIGIN), _pair(*_place(elbow(joints[-1]))), _pair(*_place(path[-1]))])
    points = " ".join(_pair(*_place(point)) for point in path)
    return [
        f'<polyline points="{arm}" fill="none" stroke="{color}" stroke-width="7" '
        'stroke-opacity="0.18" stroke-linecap="round" stroke-linejoin="round"/>',
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>',
        f'<circle cx="{start_x:.1f}" cy="{start_y:.1f}" r="4" fill="{color}"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="{color}" stroke-width="2"/>',
    ]


def _place(point: Floats) -> tuple[float, float]:
    return _ORIGIN[0] + _SCALE * float(point[0]), _ORIGIN[1] - _SCALE * float(point[1])


def _pair(x: float, y: float) -> str:
    return f"{x:.1f},{y:.1f}"
