"""The codec alone on a GPU: `python -m recipes.bench.gpu.codec --rows 1,8,64,128`.

Random weights of the published sizes. First each direction is held against the plain codec, in
float32; then CUDA graphs of it are timed. Takes about a minute, most of it compilation.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.cuda.mimi.codec import CudaMimi
from engine.mimi.codec import Mimi
from engine.mimi.config import MIMI_24KHZ, MimiConfig
from engine.rows import Rows
from engine.tiny_weights import mimi_weights

BOOKS = 8
CHECKED_FRAMES = 8
CHECKED_ROWS = 5
REPEATS = 60


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in milliseconds."""

    rows: int
    encode: float
    decode: float
    both: float
    """One graph of encode and decode."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """How near the codec is to the plain one."""

    dtype: str
    equal_codes: float
    """Share of all codes."""
    equal_first: float
    """Share of the first book's."""
    sound_error: float
    """|difference| / |sound|, both from the same codes."""


def random_mimi(
    device: torch.device | str, *, books: int = BOOKS, config: MimiConfig = MIMI_24KHZ
) -> Mimi:
    """The plain codec with random weights."""
    quantizer = msgspec.structs.replace(config.quantizer, n_q=books)
    config = msgspec.structs.replace(config, quantizer=quantizer)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "mimi.safetensors"
        save_file(mimi_weights(config, seed=0), path)
        return Mimi.load(path, config, books=books, device=device)


def voices(rows: int, frames: int, frame_size: int, rate: int) -> Tensor:
    """Sums of tones that rise and fall, and some noise: [frames, rows, frame_size] float32."""
    generator = torch.Generator().manual_seed(1)
    time = torch.arange(frames * frame_size) / rate
    out = 0.02 * torch.randn(rows, len(time), generator=generator)
    for row in range(rows):
        for pitch in 80 + 1500 * torch.rand(6, generator=generator):
            swell = torch.sin(2 * math.pi * (1 + 3 * torch.rand(1, generator=generator)) * time)
            out[row] += 0.08 * swell * torch.sin(2 * math.pi * pitch * time)
    return out.view(rows, frames, frame_size).transpose(0, 1).contiguous()


def check(mimi: Mimi, dtype: torch.dtype, *, fixed: bool) -> Check:
    """Streams through the plain codec in float32 and the one of kernels."""
    device = mimi.upsample.device
    codec = CudaMimi(mimi, CHECKED_ROWS + 2, CHECKED_ROWS, dtype=dtype, fixed=fixed)
    slots = list(range(CHECKED_ROWS, 0, -1))
    slot = torch.tensor(slots, dtype=torch.int32, device=device)
    state, rows = mimi.state(CHECKED_ROWS + 2), Rows(slots, device)
    equal, error, size = [], 0.0, 0.0
    for frame in voices(CHECKED_ROWS, CHECKED_FRAMES, mimi.frame_size, mimi.sample_rate).to(device):
        codec.pcm.copy_(frame)
        codec.codes.fill_(-1)
        codec.sound.fill_(torch.nan)
        codec.encode(CHECKED_ROWS, slot)
        codes = mimi.encode(state, rows, frame)
        codec.decode(CHECKED_ROWS, slot, codes.int().contiguous())
        sound = mimi.decode(state, rows, codes).clamp(-1, 1)
        equal.append((codec.codes == codes).float())
        error += (codec.sound - sound).double().square().sum().item()
        size += sound.double().square().sum().item()
    shares = torch.cat(equal)
    return Check(
        dtype=str(dtype).removeprefix("torch."),
        equal_codes=shares.mean().item(),
        equal_first=shares[:, 0].mean().item(),
        sound_error=math.sqrt(error / size),
    )


def graph_of(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of what `run` enqueues, which it has done before."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def timed(graph: torch.cuda.CUDAGraph, repeats: int = REPEATS) -> float:
    """Median milliseconds of a replay."""
    for _ in range(5):
        graph.replay()
    events: Any = [
        [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for _ in range(repeats)
    ]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    took: list[float] = [start.elapsed_time(end) for start, end in events]
    return statistics.median(took)


def time_rows(mimi: Mimi, rows: int, dtype: torch.dtype, *, fixed: bool) -> Figures:
    """One number of rows, each with a full ring of keys and values."""
    device = mimi.upsample.device
    codec = CudaMimi(mimi, rows + 1, rows, dtype=dtype, fixed=fixed)
    slot = torch.arange(rows, dtype=torch.int32, device=device)
    codec.pcm.copy_(voices(rows, 1, mimi.frame_size, mimi.sample_rate)[0])

    def encode() -> None:
        codec.encode(rows, slot)

    def decode() -> None:
        codec.decode(rows, slot, codec.codes)

    def both() -> None:
        encode()
        decode()

    graphs = [graph_of(run) for run in (encode, decode, both)]
    for _ in range(mimi.config.transformer.context // mimi.config.latents):
        graphs[-1].replay()
    return Figures(
        rows=rows,
        encode=timed(graphs[0]),
        decode=timed(graphs[1]),
        both=timed(graphs[2]),
    )


def compile_ahead(rows: Sequence[int], *, fixed: bool) -> None:
    """Compiles what each number of rows needs, all at once, into Triton's cache."""
    flags = ["--fixed"] if fixed else []
    command = [sys.executable, "-m", "recipes.bench.gpu.codec", "--compile", *flags, "--rows"]
    with ExitStack() as running:
        for count in ["", *map(str, rows)]:
            running.enter_context(subprocess.Popen([*command, count]))


def compile_one(mimi: Mimi, rows: str, *, fixed: bool) -> None:
    """Launches every kernel once; without a number of rows, those of the checks."""
    if not rows:
        for dtype in (torch.float32, torch.float16):
            check(mimi, dtype, fixed=fixed)
        return
    codec = CudaMimi(mimi, int(rows) + 1, int(rows), fixed=fixed)
    slot = torch.arange(int(rows), dtype=torch.int32, device="cuda")
    codec.encode(int(rows), slot)
    codec.decode(int(rows), slot, codec.codes)
    torch.cuda.synchronize()


def measure(
    rows: Sequence[int], *, fixed: bool = False, dtype: torch.dtype = torch.float16
) -> list[Figures]:
    """Times encode and decode of each number of rows on the current GPU."""
    mimi = random_mimi("cuda")
    with torch.inference_mode():
        return [time_rows(mimi, count, dtype, fixed=fixed) for count in rows]


def main() -> None:
    """Checks, then times, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m recipes.bench.gpu.codec", description=__doc__)
    parser.add_argument("--rows", default="1,8,64,128", help="numbers of rows, with commas")
    parser.add_argument("--fixed", action="store_true", help="the same tiles for any rows")
    parser.add_argument("--compile", action="store_true", help="only compile")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        if args.compile:
            compile_one(random_mimi("cuda"), args.rows, fixed=args.fixed)
            return
        rows = [int(count) for count in args.rows.split(",")]
        compile_ahead(rows, fixed=args.fixed)
        mimi = random_mimi("cuda")
        for dtype in (torch.float32, torch.float16):
            try:
                done = check(mimi, dtype, fixed=args.fixed)
            except Exception:
                # What else there is to see is worth the time on the GPU.
                traceback.print_exc()
                continue
            print(
                f"{done.dtype}: {done.equal_codes:.2%} of the plain codec's codes,"
                f" {done.equal_first:.2%} of the first book's;"
                f" sound of the same codes differs by {done.sound_error:.1e}",
                flush=True,
            )
        print("rows  encode  decode    both  ms, median")
        for count in rows:
            try:
                took = time_rows(mimi, count, torch.float16, fixed=args.fixed)
            except Exception:
                traceback.print_exc()
                continue
            print(
                f"{count:4}  {took.encode:6.3f}  {took.decode:6.3f}  {took.both:6.3f}", flush=True
            )


if __name__ == "__main__":
    main()
