"""Sessions on pages say what they say in the specification, whoever comes and goes."""

from __future__ import annotations

import interpreted  # noqa: F401
import torch
from lm_models import TINY, load, tensors
from msgspec.structs import replace

from engine.cuda.lm.model import CudaLM
from engine.cuda.lm.paged import PagedLM
from engine.cuda.lm.pages import PAGE
from engine.cuda.lm.weights import pack
from engine.lm.config import LMConfig
from engine.lm.prompt import Prompt, PromptCodes, build_prompt
from engine.rows import Rows
from engine.sampling import Sampling

SMALL = replace(
    TINY,
    num_layers=1,
    depformer_num_layers=1,
    n_q=4,
    dep_q=2,
    delays=(0, 0, 1, 0, 1),
    context=PAGE - 14,
    prompt=PromptCodes((1, 2), (3, 4), 1),
)
PLACES = 1


def prompt(config: LMConfig, seed: int) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    voice = torch.randint(0, config.card, (45, config.books), generator=generator)
    return build_prompt(config, voice, [4 + seed])


class Pair:
    """The same sessions in the specification and on pages."""

    def __init__(self, slots: int, prefill_rows: int = 64) -> None:
        self.config = SMALL
        self.spec = load(SMALL, tensors(SMALL))
        self.state = self.spec.state(slots)
        pages = 2 * slots * PLACES
        self.lm = CudaLM(
            SMALL,
            pack(SMALL, self.spec.weights),
            slots=slots,
            max_rows=slots,
            pages=pages,
            places=PLACES,
            context=SMALL.context,
            kv=torch.float32,
            fixed=False,
            prefill_rows=prefill_rows,
        )
        self.paged = PagedLM(self.lm, pages, prefix_cache_bytes=1 << 30)
        self.paged.capture()

    def join(self, slot: int, session: int) -> None:
        self.state.reset(Rows([slot]))
        self.paged.reset([slot])
        sampling = Sampling(0.9, 5, 1.2, 7, seed=session)
        self.state.set_sampling(slot, sampling)
        self.lm.state.set_sampling(slot, sampling)
        made = prompt(self.config, session % 2)
        for _ in self.spec.prefill(self.state, slot, made):
            pass
        for _ in self.paged.prefill(slot, made, session % 2):
            pass

    def step(self, slots: list[int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        users = torch.randint(
            0, self.config.card, (len(slots), self.config.books), generator=generator
        )
        wanted = self.spec.step(self.state, Rows(slots), users)
        self.lm.user[: len(slots)] = users.int()
        self.paged.step(slots)
        assert self.lm.text[: len(slots)].tolist() == wanted.text.tolist()
        assert self.lm.codes[: len(slots)].tolist() == wanted.codes.tolist()


def test_sessions_share_prompts_and_go_on_past_their_rings() -> None:
    pair = Pair(2)
    pair.join(0, 0)
    pair.join(1, 2)  # the same prompt
    assert pair.paged.prefix_stats().hits == 1
    for step in range(3):
        pair.step([0, 1], step)
    for step in range(PAGE - 48):
        pair.step([1], 100 + step)
    pair.join(0, 1)  # another prompt, kept in place of the first
    for step in range(3):
        pair.step([1, 0], 300 + step)
    pair.paged.reset([0, 1])
    assert pair.paged.free_pages == len(pair.paged.pool)


def test_a_prompt_that_two_are_prepared_with_at_once_is_kept_once() -> None:
    paged = Pair(4, prefill_rows=16).paged
    made = build_prompt(SMALL, None, [4])
    both = [paged.prefill(slot, made, "the same") for slot in (0, 1)]
    for prefill in (*both, *both):
        next(prefill, None)
    assert paged.prefix_stats().misses == 2
    paged.reset([0, 1])
    assert paged.pool.free == len(paged.pool) - PLACES
    assert paged.free_pages == len(paged.pool)
