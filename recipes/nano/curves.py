"""Draw training curves: `python -m recipes.nano.curves LOG.json OUT.svg words mel ...`."""

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 640, 150, 40


def panel(rows: list[dict[str, Any]], key: str, top: float) -> str:
    """One curve over training seconds, with its range written beside it."""
    points = [(float(r["seconds"]), float(r[key])) for r in rows if key in r]
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = (high - low) or 1.0
    path = " ".join(
        f"{MARGIN + x / right * (WIDTH - 2 * MARGIN):.1f},"
        f"{top + HEIGHT - MARGIN - (y - low) / span * (HEIGHT - 2 * MARGIN):.1f}"
        for x, y in points
    )
    label = f"{key}: {points[0][1]:.3g} to {points[-1][1]:.3g} over {right:.0f} s"
    return (
        f'<text x="{MARGIN}" y="{top + 25:.0f}">{label}</text>'
        f'<polyline points="{path}" fill="none" stroke="#2563eb" stroke-width="1.5"/>'
    )


def main(log: Path, out: Path, keys: list[str]) -> None:
    """Write an SVG with one panel a key."""
    rows = json.loads(log.read_text())
    body = "".join(panel(rows, key, i * HEIGHT) for i, key in enumerate(keys))
    height = HEIGHT * len(keys)
    out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
        f"{body}</svg>\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
