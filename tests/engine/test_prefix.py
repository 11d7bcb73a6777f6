import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_models import TINY, codes, listen, tiny

from engine.lm.model import RQTransformer
from engine.lm.prefix import Prefix, PrefixCache
from engine.lm.prompt import Prompt, build_prompt
from engine.lm.state import LMState
from engine.rows import Rows
from engine.sampling import Sampling


def join(
    lm: RQTransformer, prompt: Prompt, prefixes: PrefixCache | None, key: object, row: int = 0
) -> tuple[LMState, int]:
    """A new session behind a prompt, and the launches that it took before its own last call."""
    state = lm.state(2)
    state.set_sampling(row, Sampling(seed=5))
    return state, len(list(lm.prefill(state, row, prompt, prefixes=prefixes, key=key)))


def test_a_hit_equals_a_miss_bit_for_bit() -> None:
    for context in (6, 100):
        lm, prefixes = tiny(context), PrefixCache(1 << 20)
        prompt = build_prompt(lm.config, codes(5), [4, 5, 6])
        miss, launches = join(lm, prompt, prefixes, ("ada", "hello"))
        hit, none = join(lm, prompt, prefixes, ("ada", "hello"), row=1)
        without, _ = join(lm, prompt, None, None)
        assert launches > 0
        assert none == 0
        assert (prefixes.hits, prefixes.misses) == (1, 1)
        heard = [
            listen(lm, state, row, codes(9)) for state, row in ((miss, 0), (hit, 1), (without, 0))
        ]
        assert torch.equal(heard[0], heard[1])
        assert torch.equal(heard[0], heard[2])
        assert torch.equal(miss.ring.kv[:, 0], hit.ring.kv[:, 1])
        assert torch.equal(miss.grid.tokens[0], hit.grid.tokens[1])
        assert miss.seen[0] == hit.seen[1]
        assert miss.calls[0] == hit.calls[1]


def test_prompts_without_a_key_share_nothing() -> None:
    lm, prefixes = tiny(), PrefixCache(1 << 20)
    for text in ([4], [5, 6]):
        join(lm, build_prompt(lm.config, None, text), prefixes, None)
    assert (len(prefixes), prefixes.hits, prefixes.misses) == (0, 0, 0)


def test_only_used_positions_are_kept() -> None:
    lm, prefixes = tiny(100), PrefixCache(1 << 20)
    prompt = build_prompt(lm.config, None, [4, 5])
    join(lm, prompt, prefixes, "key")
    positions = prompt.frames - 1
    assert prefixes.bytes == 2 * positions * 2 * TINY.dim * 4 + 2 * 17 * 8


def test_a_session_does_not_write_into_what_is_kept() -> None:
    lm, prefixes = tiny(), PrefixCache(1 << 20)
    prompt = build_prompt(lm.config, codes(5), [4])
    first, _ = join(lm, prompt, prefixes, "key")
    kept = prefixes.get("key")
    assert kept is not None
    before = kept.kv.clone()
    listen(lm, first, 0, codes(20))
    first.reset(Rows([0]))
    second, _ = join(lm, prompt, prefixes, "key")
    listen(lm, second, 0, codes(20))
    assert torch.equal(kept.kv, before)


def test_an_abandoned_prefill_keeps_nothing() -> None:
    lm, prefixes = tiny(), PrefixCache(1 << 20)
    state = lm.state(1)
    pieces = lm.prefill(state, 0, build_prompt(lm.config, codes(30), []), prefixes=prefixes, key=1)
    next(pieces)
    del pieces
    assert (len(prefixes), prefixes.bytes) == (0, 0)


def prefix(size: int) -> Prefix:
    return Prefix(1, torch.zeros(size, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))


@settings(max_examples=200)
@given(
    bound=st.integers(0, 9),
    uses=st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(1, 4)), max_size=40),
)
def test_it_holds_the_most_recent_that_fit(bound: int, uses: list[tuple[bool, int, int]]) -> None:
    prefixes = PrefixCache(bound)
    held: list[tuple[int, int]] = []
    """Keys and sizes, the most recent last."""
    hits = misses = 0
    for puts, key, size in uses:
        known = [entry for entry in held if entry[0] == key]
        if puts:
            prefixes.put(key, prefix(size))
            if size <= bound:
                held = [entry for entry in held if entry[0] != key] + [(key, size)]
            while sum(size for _, size in held) > bound:
                del held[0]
        else:
            found = prefixes.get(key)
            assert (found.nbytes if found else None) == (known[0][1] if known else None)
            hits, misses = hits + bool(known), misses + (not known)
            held = [entry for entry in held if entry[0] != key] + known
        assert prefixes.bytes == sum(size for _, size in held) <= bound
        assert len(prefixes) == len(held)
    assert (prefixes.hits, prefixes.misses) == (hits, misses)


def test_one_too_large_is_not_kept_and_costs_the_others_nothing() -> None:
    prefixes = PrefixCache(10)
    prefixes.put("small", prefix(6))
    prefixes.put("large", prefix(11))
    assert prefixes.get("large") is None
    assert prefixes.get("small") is not None
