"""The language model's launches against the goldens and against the specification."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import interpreted  # noqa: F401
import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.api import EngineError
from engine.cuda.lm.model import CudaLM, check_sizes
from engine.cuda.lm.paged import PagedLM
from engine.cuda.lm.pages import PAGE
from engine.cuda.lm.weights import pack
from engine.lm.config import PERSONAPLEX_7B, LMConfig
from engine.lm.prompt import SavedVoice, build_prompt
from engine.lm.weights import load_weights
from engine.sampling import GREEDY

GOLDENS = Path(__file__).parents[2] / "goldens"


def build(name: str, slots: int, *, fixed: bool = False, context: int = 24) -> PagedLM:
    path = GOLDENS / name
    config = LMConfig.from_json(msgspec.json.decode((path / "config.json").read_bytes()))
    weights = load_weights(path / "model.safetensors", config)
    places = -(-context // PAGE)
    pages = 4 * slots * places
    lm = CudaLM(
        config,
        pack(config, weights),
        slots=slots,
        max_rows=slots,
        pages=pages,
        places=places,
        context=context,
        prefill_rows=40,
        kv=torch.float32,
        fixed=fixed,
    )
    paged = PagedLM(lm, pages, prefix_cache_bytes=1 << 30)
    paged.capture()
    for slot in range(slots):
        lm.state.set_sampling(slot, GREEDY)
    return paged


def case(name: str) -> dict[str, Tensor]:
    with np.load(GOLDENS / name / "case.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def frames(paged: PagedLM, users: Tensor, slots: list[int]) -> Tensor:
    """A step of `slots` with the codes users [n, books]: [n, 1 + books]."""
    paged.lm.user[: len(slots)] = users.int()
    paged.step(slots)
    made = torch.cat((paged.lm.text[:, None], paged.lm.codes), 1)[: len(slots)].long()
    return torch.where(made[:, :1] < 0, -2, made)


@contextmanager
def untouched(paged: PagedLM, slot: int) -> Iterator[None]:
    """Nothing of a slot changes inside."""
    pages = paged.rings.held(slot)

    def state() -> list[Tensor]:
        kept = paged.lm.state
        return [kept.calls[slot], kept.tokens[slot], kept.table[slot], kept.kv[:, :, pages]]

    before = [part.clone() for part in state()]
    yield
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))


@pytest.mark.parametrize("fixed", [False, True])
def test_sessions_that_join_and_leave_give_the_golden_frames(fixed: bool) -> None:
    paged, golden = build("moshi-tiny", 2, fixed=fixed), case("moshi-tiny")
    users, expected = golden["user_codes"], golden["step_output"]
    for age in range(2):
        assert torch.equal(frames(paged, users[0, age, None], [1])[0], expected[0, age])
    for age in range(2):
        both = torch.stack((users[1, age], users[0, age + 2]))
        got = frames(paged, both, [0, 1])
        assert torch.equal(got, torch.stack((expected[1, age], expected[0, age + 2])))
    with untouched(paged, 0):
        paged.reset([1])
        paged.lm.state.set_sampling(1, GREEDY)
        got = frames(paged, users[2, 0, None], [1])
        assert torch.equal(got[0], expected[2, 0])


def test_a_saved_prompt_and_a_kept_one_give_the_golden_frames() -> None:
    paged, golden = build("personaplex-tiny", 1, context=PAGE), case("personaplex-tiny")
    config = paged.lm.config
    expected = golden["step_output"][1:, : 1 + config.books]
    text = golden["text_tokens"].tolist()
    saved = SavedVoice.from_file(golden["voice_embeddings"], golden["voice_cache"])
    free = paged.pool.free
    for voice, key in ((saved, "a"), (golden["voice_codes"], "a")):
        paged.reset([0])
        paged.lm.state.set_sampling(0, GREEDY)
        for _ in paged.prefill(0, build_prompt(config, voice, text), key):
            pass
        assert torch.equal(frames(paged, golden["user_codes"][0, None], [0])[0], expected[0])
    assert paged.prefix_stats().hits == 1
    paged.reset([0])
    assert paged.free_pages == free


@pytest.mark.parametrize("name", ["dim", "depformer_dim", "text_card", "card"])
def test_a_model_that_is_too_large_is_refused(name: str) -> None:
    check_sizes(PERSONAPLEX_7B)
    with pytest.raises(EngineError, match=f"config: {name} can be .* not {1 << 20}"):
        check_sizes(replace(PERSONAPLEX_7B, **{name: 1 << 20}))
