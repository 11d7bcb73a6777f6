"""Draw training curves: `python -m recipes.nano.curves LOG.json OUT.svg words mel ...`."""

import json
from pathlib import Path
from typing import Any

import typer

from recipes.plot import Chart, document


def chart(rows: list[dict[str, Any]], key: str) -> Chart:
    """One curve over training seconds, with its range in the title."""
    points = [(float(row["seconds"]), float(row[key])) for row in rows if key in row]
    if not points:
        known = ", ".join(sorted({k for row in rows for k in row if k not in ("step", "seconds")}))
        raise typer.BadParameter(f"no {key} in the log: {known or 'it is empty'}")
    right = max(seconds for seconds, _ in points)
    title = f"{key}: {points[0][1]:.3g} to {points[-1][1]:.3g} over {right:.0f} s"
    return Chart(title, {key: points}, "seconds", height=190)


def main(log: Path, out: Path, keys: list[str]) -> None:
    """Write an SVG with one chart a key."""
    rows = json.loads(log.read_text())
    out.write_text(document([chart(rows, key) for key in keys]))


if __name__ == "__main__":
    typer.run(main)
