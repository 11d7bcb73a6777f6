"""Each launch of the codec by itself: `python -m recipes.bench.gpu.codec_launches --rows 1,64,128`.

Prints the microseconds of every launch that differs from others, and with `--tiles` those of other
tiles than the ones that are chosen, the best ones first. About a minute on 16 cores, most of it
compilation in processes of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

import engine.cuda.mimi as subject
from engine.cuda.mimi import CudaMimi, Tile
from recipes.bench.gpu.codec import random_mimi, timed

REPEATS = 20
SHAPE = ("STEPS", "WINDOW", "WIDTH", "INNER", "DIM", "STEP")
CANDIDATES = [
    (16, 16, 128, 4), (16, 16, 256, 4), (16, 16, 512, 4), (16, 16, 1024, 4), (16, 32, 128, 4),
    (16, 32, 256, 4), (16, 64, 128, 4), (32, 16, 256, 4), (32, 32, 128, 4), (32, 32, 256, 4),
    (32, 64, 128, 4), (64, 16, 256, 4), (64, 32, 128, 4), (64, 32, 256, 4), (64, 64, 64, 4),
    (64, 64, 128, 4), (64, 64, 128, 8), (64, 128, 64, 4), (64, 128, 64, 8), (128, 32, 128, 4),
    (128, 64, 64, 4), (128, 64, 64, 8), (128, 64, 128, 8), (128, 128, 64, 8), (128, 256, 64, 8),
]  # fmt: skip
"""Rows, columns, depth and warps of tiles."""
BLOCKS = [(m, k, 4) for m in (16, 32, 64, 128) for k in (64, 128)]
"""Rows and depth of a residual block's tiles."""


@contextmanager
def forced(direction: Any, name: str, candidate: int) -> Iterator[str]:
    """The candidate's tile instead of the one that is chosen. Yields its description."""
    chosen, block = direction.tile, subject.block_tile
    if candidate < 0:
        yield "chosen"
        return
    if name.startswith("residual_block"):
        m, k, _ = BLOCKS[candidate]
        subject.block_tile = lambda *_: (m, k)
        text = f"{m} k{k}"
    else:
        m, n, k, warps = CANDIDATES[candidate]
        direction.tile = lambda *_: Tile(m, n, k, warps)
        text = f"{m}x{n} k{k} w{warps}"
    try:
        yield text
    finally:
        direction.tile, subject.block_tile = chosen, block


def fits(name: str, candidate: int, rows: int) -> bool:
    """False for tiles that the launch can't have, or that are surely bad."""
    sizes = dict(part.split("=") for part in name.split()[1:])
    steps = int(sizes.get("STEPS", "2"))
    if name.startswith("residual_block"):
        m, k, _ = BLOCKS[candidate]
        return int(sizes["WINDOW"]) % k == 0 and m * int(sizes["WIDTH"]) <= 32768
    m, n, k, _ = CANDIDATES[candidate]
    width, count = int(sizes["WIDTH"]), rows * steps
    if name.startswith("norm_linear"):
        return k == 128 and width % n == 0 and m <= max(16, count) and m * n <= 64 * 64
    window = int(sizes["WINDOW"])
    programs = -(-count // m) * (width // n) if width % n == 0 else 0
    return (
        window % k == 0
        and (m + n) * min(k, window) * 6 <= 200_000
        and m <= max(16, count)
        and (programs >= 24 or (m, n) == (16, 16))
        and programs <= 4096
    )


def kinds(codec: CudaMimi, rows: int) -> Iterator[tuple[str, str, int, int]]:
    """One launch of each kind: direction, name, index and how many there are."""
    for side in ("_encoder", "_decoder"):
        launches = getattr(codec, side).launches
        names = [name_of(launch, rows) for launch in launches]
        for name in dict.fromkeys(names):
            yield side, name, names.index(name), names.count(name)


def candidates(name: str, rows: int) -> Iterator[int]:
    """Tiles to try instead of the one that is chosen."""
    if name.startswith(("convolve", "residual_block", "norm_linear")):
        many = len(BLOCKS if name.startswith("residual_block") else CANDIDATES)
        yield from (candidate for candidate in range(many) if fits(name, candidate, rows))


def name_of(launch: Callable[[int, Tensor], None], rows: int) -> str:
    """The kernel and its sizes, without launching it."""
    run = JITFunction.run
    names: list[str] = []

    def record(kernel: Any, *args: Any, **options: Any) -> None:
        shape = " ".join(f"{key}={options[key]}" for key in SHAPE if key in options)
        names.append(f"{kernel.__name__} {shape}")

    JITFunction.run = record
    try:
        launch(rows, torch.zeros(rows, dtype=torch.int32, device="cuda"))
    finally:
        JITFunction.run = run
    return names[0]


def microseconds(launch: Callable[[int, Tensor], None], rows: int) -> float:
    """Of one launch among its like, in a graph."""
    slot = torch.arange(rows, dtype=torch.int32, device="cuda")
    launch(rows, slot)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            launch(rows, slot)
    return timed(graph, 10) * 1000 / REPEATS


def compile_part(codec: CudaMimi, rows: list[int], tiles: bool, part: int, parts: int) -> None:
    """Launches every `parts`-th of what there is to time."""
    tasks = (
        (count, side, name, index, candidate)
        for count in rows
        for side, name, index, _ in kinds(codec, count)
        for candidate in (-1, *(candidates(name, count) if tiles else ()))
    )
    for number, (count, side, name, index, candidate) in enumerate(tasks):
        if number % parts == part:
            direction = getattr(codec, side)
            slot = torch.arange(count, dtype=torch.int32, device="cuda")
            with suppress(Exception), forced(direction, name, candidate):
                direction.launches[index](count, slot)


def main() -> None:
    """Compiles in parallel, then times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,64,128", help="numbers of rows, with commas")
    parser.add_argument("--tiles", action="store_true", help="try other tiles too")
    parser.add_argument("--part", type=int, help="only compile this part of the work")
    args = parser.parse_args()
    rows = [int(count) for count in args.rows.split(",")]
    parts = max(1, min(14, (os.cpu_count() or 1) - 1))
    with torch.inference_mode():
        if args.part is None:
            flags = ["--tiles"] if args.tiles else []
            command = [sys.executable, "-m", "recipes.bench.gpu.codec_launches", "--rows"]
            with ExitStack() as running:
                for part in range(parts):
                    line = [*command, args.rows, *flags, "--part", str(part)]
                    running.enter_context(subprocess.Popen(line, stderr=subprocess.DEVNULL))
        codec = CudaMimi(random_mimi("cuda"), max(rows) + 1, max(rows))
        if args.part is not None:
            compile_part(codec, rows, args.tiles, args.part, parts)
            return
        for count in rows:
            totals = {"_encoder": 0.0, "_decoder": 0.0}
            for side, name, index, times in kinds(codec, count):
                direction = getattr(codec, side)
                found: list[tuple[float, str]] = []
                for candidate in (-1, *(candidates(name, count) if args.tiles else ())):
                    with forced(direction, name, candidate) as tile:
                        try:
                            took = microseconds(direction.launches[index], count)
                        except Exception:
                            if candidate < 0:
                                traceback.print_exc()
                            took = math.inf
                    found.append((took, tile))
                totals[side] += times * found[0][0]
                best = "".join(f" | {tile} {took:.1f}" for took, tile in sorted(found[1:])[:4])
                print(f"{count:4} {side[1:]} {times} x {name}: {found[0][0]:.1f}{best}", flush=True)
            sums = ", ".join(f"{side[1:]} {total:.0f}" for side, total in totals.items())
            print(f"{count} rows, launches by themselves: {sums} us", flush=True)


if __name__ == "__main__":
    main()
