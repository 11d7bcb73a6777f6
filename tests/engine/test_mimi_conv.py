"""Convolutions frame by frame against torch's own over the whole signal."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.checkpoint import Checkpoint
from engine.mimi.conv import CausalConv, Memories


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def run(conv: CausalConv, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """x: [n, T, in], in frames of `lengths`."""
    memory = torch.zeros(x.shape[0], conv.memory)
    outputs = []
    for frame in x.split(lengths, 1):
        y, memory = conv(memory, frame)
        outputs.append(y)
    return torch.cat(outputs, 1)


@given(
    rows=st.integers(1, 3),
    channels=st.integers(1, 4),
    out=st.integers(1, 4),
    stride=st.integers(1, 4),
    extra=st.integers(0, 6),
    frames=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    bias=st.booleans(),
)
@settings(max_examples=60)
def test_any_framing_equals_the_whole(rows, channels, out, stride, extra, frames, bias):
    kernel = stride + extra
    lengths = [stride * count for count in frames]
    x = noise(rows, channels, sum(lengths)).transpose(1, 2)
    weight, offset = noise(out, channels, kernel), noise(out) if bias else None
    whole = F.conv1d(F.pad(x.transpose(1, 2), (extra, 0)), weight, offset, stride)
    conv = CausalConv(weight, offset, stride)
    torch.testing.assert_close(run(conv, x, lengths), whole.transpose(1, 2), atol=1e-5, rtol=0)


@given(
    rows=st.integers(1, 3),
    channels=st.integers(1, 4),
    out=st.integers(1, 4),
    stride=st.integers(1, 5),
    frames=st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
@settings(max_examples=40)
def test_transposed(tmp_path_factory, rows, channels, out, stride, frames):
    weight, offset = noise(channels, out, 2 * stride), noise(out)
    path = tmp_path_factory.mktemp("conv") / "conv.safetensors"
    save_file({"up.weight": weight, "up.bias": offset}, path)
    conv = CausalConv.read_transposed(Checkpoint(path), "up", (channels, out), stride)
    x = noise(rows, sum(frames), channels)
    whole = F.conv_transpose1d(x.transpose(1, 2), weight, offset, stride)[..., :-stride]
    found = run(conv, x, frames).view(rows, -1, out)
    torch.testing.assert_close(found, whole.transpose(1, 2), atol=1e-5, rtol=0)


def test_memories_keep_their_order():
    first, second = (CausalConv(noise(2, 2, kernel), None) for kernel in (3, 5))
    x = noise(1, 6, 2)
    memories = Memories(torch.zeros(1, first.memory + second.memory), [first, second])
    between = memories.run(first, x)
    memories.run(second, between)
    kept = torch.cat([x[:, -2:].flatten(1), between[:, -4:].flatten(1)], 1)
    assert torch.equal(memories.join(), kept)
