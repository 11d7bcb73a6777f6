"""The codec's launches against its golden and against the plain codec."""

from __future__ import annotations

import json
from pathlib import Path

import interpreted  # noqa: F401
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.cuda.mimi.codec import CudaMimi
from engine.mimi.codec import Mimi
from engine.mimi.config import MimiConfig, QuantizerConfig, SeanetConfig, TransformerConfig
from engine.rows import Rows
from engine.tiny_weights import mimi_weights

GOLDEN = Path(__file__).parents[2] / "goldens" / "mimi-tiny"
ODD = MimiConfig(
    sample_rate=1200,
    frame_rate=50,
    seanet=SeanetConfig(
        dimension=24,
        n_filters=6,
        ratios=(3, 2, 2, 1),
        kernel_size=7,
        residual_kernel_size=3,
        last_kernel_size=3,
        compress=2,
    ),
    quantizer=QuantizerConfig(
        dimension=12, n_q=3, bins=40, input_dimension=24, output_dimension=24
    ),
    transformer=TransformerConfig(
        d_model=24,
        num_heads=2,
        num_layers=1,
        dim_feedforward=40,
        context=5,
        max_period=10000,
        layer_scale=0.01,
        input_dimension=24,
        output_dimensions=(24,),
    ),
)
"""Small, with no size that is a power of two, and a ring that wraps within a frame."""
SLOTS = 4
"""The last is the trash row."""
TRASH = SLOTS - 1


@pytest.fixture(scope="module", autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def random_codec(path: Path, config: MimiConfig, books: int) -> Mimi:
    save_file(mimi_weights(config, seed=3), path / "mimi.safetensors")
    return Mimi.load(path / "mimi.safetensors", config, books=books)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Mimi:
    return random_codec(tmp_path_factory.mktemp("odd"), ODD, 3)


def state_of(codec: CudaMimi, row: int) -> list[Tensor]:
    """A copy of all that is remembered of a row."""
    sides = (codec._encoder, codec._decoder)
    parts = [
        part
        for side in sides
        for part in (
            side.chain.frames,
            side.chain.memory,
            side.transformer.ring.transpose(0, 1),
        )
    ]
    return [part[row].clone() for part in parts]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.timeout(600)
def test_golden():
    """One frame, with the published strides: seconds of a core, minutes of a busy one."""
    config = MimiConfig.from_json(json.loads((GOLDEN / "config.json").read_text()))
    with np.load(GOLDEN / "case.npz") as case:
        pcm, codes, decoded = (torch.from_numpy(case[name]) for name in ("pcm", "codes", "decoded"))
    mimi = Mimi.load(GOLDEN / "model.safetensors", config)
    codec = CudaMimi(mimi, 2, 1, dtype=torch.float32)
    slot = torch.tensor([0], dtype=torch.int32)
    codec.pcm[0] = pcm.flatten()[: mimi.frame_size]
    codec.encode(1, slot)
    assert torch.equal(codec.codes[0].long(), codes[:, 0])
    codec.decode(1, slot, codes[None, :, 0].int())
    assert (codec.sound[0] - decoded.flatten()[: mimi.frame_size].clamp(-1, 1)).abs().max() < 1e-5


def test_streams_come_and_go(odd: Mimi):
    """Every row says what a plain stream of its own says, whichever rows go with it."""
    generator = np.random.default_rng(5)
    codec = CudaMimi(odd, SLOTS, SLOTS, dtype=torch.float32)
    state = odd.state(SLOTS)
    codes_in = torch.zeros(SLOTS, odd.books, dtype=torch.int32)
    for step in range(5):
        if step == 3:
            codec.reset(torch.tensor([1]))
            state.reset([1])
            assert same(
                state_of(codec, 1), state_of(CudaMimi(odd, SLOTS, 1, dtype=torch.float32), 1)
            )
        rows = generator.permutation(SLOTS - 1)[: int(generator.integers(1, SLOTS))].tolist()
        others = [row for row in range(SLOTS - 1) if row not in rows]
        before = [state_of(codec, row) for row in others]
        # The bucket is filled up with the trash row, whose sound is no sound.
        slot = torch.tensor([*rows, *[TRASH] * (SLOTS - len(rows))], dtype=torch.int32)
        pcm = torch.from_numpy(generator.normal(0, 0.3, (SLOTS, odd.frame_size))).float()
        pcm[len(rows) :] = torch.nan
        codec.pcm.copy_(pcm)
        codec.encode(SLOTS, slot)
        where, count = Rows(rows), len(rows)
        codes = odd.encode(state, where, pcm[:count])
        assert torch.equal(codec.codes[:count].long(), codes)
        codes_in[:count] = codes
        codec.decode(SLOTS, slot, codes_in)
        sound = odd.decode(state, where, codes).clamp(-1, 1)
        assert (codec.sound[:count] - sound).abs().max() < 1e-5
        assert all(same(old, state_of(codec, row)) for row, old in zip(others, before, strict=True))


@pytest.mark.parametrize(("books", "ratios"), [(1, (2,)), (2, (2, 3))])
def test_few_books_and_other_ratios(tmp_path: Path, books: int, ratios: tuple[int, ...]):
    """One latent more a frame, a block too wide to be one launch, and the fewest books."""
    hop = int(np.prod(ratios))
    config = msgspec.structs.replace(
        ODD,
        sample_rate=50 * 3 * hop,
        seanet=msgspec.structs.replace(ODD.seanet, ratios=ratios),
        quantizer=msgspec.structs.replace(ODD.quantizer, n_q=max(books, 2)),
    )
    mimi = random_codec(tmp_path, config, books)
    codec = CudaMimi(mimi, 2, 1, dtype=torch.float32, fixed=True)
    state, rows, slot = mimi.state(2), Rows([1]), torch.tensor([1], dtype=torch.int32)
    for frame in torch.randn(3, 1, mimi.frame_size):
        codec.pcm.copy_(frame)
        codec.encode(1, slot)
        codes = mimi.encode(state, rows, frame)
        assert torch.equal(codec.codes.long(), codes)
        codec.decode(1, slot, codes.int())
        sound = mimi.decode(state, rows, codes).clamp(-1, 1)
        assert (codec.sound - sound).abs().max() < 1e-5


def test_fixed_rows_do_not_depend_on_the_batch(odd: Mimi):
    frames = torch.randn(2, odd.frame_size, generator=torch.Generator().manual_seed(1))
    states = []
    for rows, place in ((1, 0), (3, 2)):
        codec = CudaMimi(odd, SLOTS, 3, dtype=torch.float32, fixed=True)
        slot = torch.tensor([0, 1, 2] if rows == 3 else [2], dtype=torch.int32)
        for frame in frames:
            codec.pcm.normal_()
            codec.pcm[place] = frame
            codec.encode(rows, slot)
            codec.decode(rows, slot, codec.codes)
        states.append([*state_of(codec, 2), codec.codes[place], codec.sound[place]])
    assert same(*states)


def test_half_precision_is_near(odd: Mimi):
    codec = CudaMimi(odd, 2, 1, dtype=torch.float16)
    state, rows, slot = odd.state(2), Rows([0]), torch.tensor([0], dtype=torch.int32)
    for codes in torch.randint(40, (3, 1, 3)):
        codec.decode(1, slot, codes.int())
        sound = odd.decode(state, rows, codes).clamp(-1, 1)
        assert (codec.sound - sound).norm() < 1e-2 * sound.norm()


def test_bytes_of_a_slot(odd: Mimi):
    codec = CudaMimi(odd, 3, 1, dtype=torch.float32)
    assert codec.nbytes_per_slot == sum(part.nbytes for part in state_of(codec, 2))
