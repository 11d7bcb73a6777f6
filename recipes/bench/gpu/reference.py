"""The `moshi` package's own step, for comparison: `python -m recipes.bench.gpu.reference 64`.

Random weights of the sizes in its loaders, in bfloat16, its own CUDA graphs, its functions
compiled (or not, with NO_TORCH_COMPILE=1), its default sampling; as its server does it: sound to
the device, Mimi's encoder, a step of the language model, Mimi's decoder, sound back. Its rings are
filled and its counters put past their end, since that is what a call of four minutes comes to. The
package with these weights makes 8 codes a frame; the 16 steps of PersonaPlex's checkpoint are no
faster.

A batch size is a process of its own: an H200 has room for one of 64 sessions and nothing beside.
Prints one line of JSON, the figures. About 40 s.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from recipes.bench.gpu.results import (
    Case,
    Figures,
    Measured,
    allocated_gb,
    percentiles,
    release,
    synchronize,
)

_TINY = {
    "dim": 64,
    "num_heads": 4,
    "num_layers": 2,
    "context": 40,
    "text_card": 100,
    "depformer_dim": 32,
    "depformer_dim_feedforward": 132,
    "depformer_num_heads": 2,
    "depformer_num_layers": 1,
}
_AS_WRITTEN = "NO_TORCH_COMPILE"
"""Set, the package compiles nothing."""
_WARM_UP = 12
"""Steps before the clock runs: the first compile, the second capture graphs."""


@torch.no_grad()
def measure(sessions: int, device: torch.device, steps: int, seconds: float, tiny: bool) -> Figures:
    """The step of `sessions` at once: at most `steps` steps or `seconds`. Raises ImportError."""
    loaders = importlib.import_module("moshi.models.loaders")
    models = importlib.import_module("moshi.models.lm")
    # Weights are drawn below; the package's own draw takes longer than the benchmark.
    models.LMModel._init_weights = lambda model: None
    began = time.monotonic()
    sizes = dict(loaders._lm_kwargs) | (_TINY if tiny else {})
    lm = loaders.get_moshi_lm(None, sizes, device=device, dtype=torch.bfloat16).eval()
    mimi = loaders.get_mimi(None, device=device, num_codebooks=8)
    _draw_weights(lm)
    _draw_codebooks(mimi)
    print(f"weights drawn after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    generator = models.LMGen(lm, use_sampling=True)
    sound = torch.randn(16, sessions, 1, mimi.frame_size).mul_(0.05).numpy()
    times: list[float] = []
    with mimi.streaming(sessions), generator.streaming(sessions):
        # A stream's first call has no output yet; then the counters can be moved.
        for frame in range(2):
            _step(mimi, generator, sound[frame], device)
        _age(lm, generator, mimi, sizes["context"])
        for frame in range(_WARM_UP):
            made = _step(mimi, generator, sound[frame], device)
        assert made.shape == (sessions, 1, mimi.frame_size)
        assert np.isfinite(made).all()
        print(f"warm after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        end = time.monotonic() + seconds
        while len(times) < steps and (len(times) < 10 or time.monotonic() < end):
            synchronize(device)
            start = time.perf_counter()
            _step(mimi, generator, sound[len(times) % 16], device)
            times.append(1e3 * (time.perf_counter() - start))
        figures = percentiles(times)
        figures |= {"steps": len(times), "memory_gb": allocated_gb(device)}
    release(device)
    return figures


def _step(mimi: Any, generator: Any, sound: np.ndarray, device: torch.device) -> np.ndarray:
    """One frame of every session, from and to host memory: [sessions, 1, frame_size]."""
    codes = mimi.encode(torch.from_numpy(sound).to(device))
    tokens = generator.step(codes)
    if tokens is None:
        return sound
    made: np.ndarray = mimi.decode(tokens[:, 1:]).cpu().numpy()
    return made


def _draw_weights(lm: torch.nn.Module) -> None:
    """Keeps the norms' scales, and the size of what goes through a matrix."""
    for name, weight in lm.named_parameters():
        if "alpha" not in name:
            weight.data.normal_(0, 0.3 if "emb" in name else weight.shape[-1] ** -0.5)


def _draw_codebooks(mimi: torch.nn.Module) -> None:
    """Codes that differ: a new quantiser's entries are all the same."""
    for name, buffer in mimi.named_buffers():
        if name.endswith("embedding_sum"):
            buffer.normal_()
        elif name.endswith("_initialized"):
            buffer.fill_(1)


def _age(lm: Any, generator: Any, mimi: Any, context: int) -> None:
    """Fills every ring and puts its counters where a session is that has lived past it."""
    lived = context + 500
    for module in (lm, mimi):
        for state in module.get_streaming_state().values():
            ring = getattr(state, "kv_cache", None)
            if ring is not None:
                # By layer, in place: a draw of the whole would need as much memory again.
                ring.cache.normal_()
                ring.end_offset.fill_(lived)
                state.offset.fill_(lived)
                state.offset_cpu = lived
    own = generator._streaming_state
    columns = own.cache.shape[2]
    # A multiple of the columns, so that the tokens there stay the ones that are read next.
    calls = lived - lived % columns + own.offset_cpu
    own.offsets.fill_(calls)
    own.offset_cpu = calls


def compare(cases: list[Case], device: torch.device, seconds: float, tiny: bool) -> list[Measured]:
    """The step of each case's sessions, with the package's functions compiled and as written.

    The package has one type of keys, values and weights. Where its functions can't be compiled,
    that is told, and the other figure is all there is.
    """
    found: list[Measured] = []
    for case in cases:
        for compiled in (True, False):
            try:
                figures = in_process(case.sessions, device.type, seconds, tiny, compiled=compiled)
            except RuntimeError as error:
                if not compiled:
                    raise
                print(f"  {case.sessions}, compiled: {error}", flush=True)
                continue
            print(f"  {case.sessions}: {figures}", flush=True)
            found.append(Measured("reference", Case(case.sessions), figures))
    return found


def in_process(
    sessions: int, device: str, seconds: float, tiny: bool, *, compiled: bool
) -> Figures:
    """`measure` in a process of its own. Raises RuntimeError with the end of what it said."""
    environ = {name: value for name, value in os.environ.items() if name != _AS_WRITTEN}
    if not compiled:
        environ[_AS_WRITTEN] = "1"
    command = [sys.executable, "-m", "recipes.bench.gpu.reference", str(sessions)]
    command += ["--device", device, "--seconds", str(seconds)] + ["--tiny"] * tiny
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environ,
        timeout=180 + 4 * seconds,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference failed:\n{done.stderr[-3000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures | {"compiled": "yes" if compiled else "no"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("sessions", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try it on a CPU")
    told = parser.parse_args()
    device = torch.device(told.device)
    print(json.dumps(measure(told.sessions, device, told.steps, told.seconds, told.tiny)))


if __name__ == "__main__":
    main()
