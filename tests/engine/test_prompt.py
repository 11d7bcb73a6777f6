import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_models import TINY, codes, frame, golden, listen, tiny
from msgspec.structs import replace
from torch import Tensor

from engine.checkpoint import CheckpointError
from engine.lm.config import PERSONAPLEX_7B
from engine.lm.model import PREFILL_CHUNK, RQTransformer
from engine.lm.prompt import FREE, Prompt, PromptCodes, SavedVoice, build_prompt
from engine.lm.state import LMState
from engine.rows import Rows
from engine.sampling import GREEDY, Sampling

PAD, SILENCE, SINE = 3, list(range(8)), list(range(8, 16))
TEXT = [5, 6, 7]


def prefilled(lm: RQTransformer, prompt: Prompt, sampling: Sampling = GREEDY) -> LMState:
    state = lm.state(2)
    state.set_sampling(1, sampling)
    for _ in lm.prefill(state, 1, prompt):
        pass
    return state


def test_personaplex_s_own_codes() -> None:
    assert PromptCodes().silence_codes == (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
    assert PromptCodes().user_codes == (430, 1268, 381, 1611, 1095, 1495, 56, 472)
    assert PromptCodes().silence_frames == int(0.5 * 12.5)
    PERSONAPLEX_7B.prompt.check(PERSONAPLEX_7B.books, PERSONAPLEX_7B.card)


def test_frames_lie_in_their_columns() -> None:
    voice = codes(2)
    prompt = build_prompt(TINY, voice, TEXT)
    frames = 2 + 2 + 3 + 2
    assert prompt.frames == frames
    assert prompt.embeddings is None
    assert prompt.columns.shape == (frames + 1, 17)
    text = [PAD] * 4 + TEXT + [PAD] * 2
    agent = [*voice.tolist(), *[SILENCE] * 7]
    for channel, delay in enumerate(TINY.delays):
        expected = [TINY.text_card if channel == 0 else TINY.card] * (1 + delay)
        for past in range(1, frames):
            book = (channel - 1) % 8
            if channel == 0:
                expected.append(text[past])
            else:
                expected.append(agent[past][book] if channel <= 8 else SINE[book])
        expected += [FREE] * (1 - delay)
        assert prompt.columns[:, channel].tolist() == expected


@settings(max_examples=20, derandomize=True)
@given(
    voice=st.integers(0, 9),
    text=st.lists(st.integers(0, TINY.text_card - 1), max_size=5),
    context=st.sampled_from([6, 100]),
)
def test_chunked_prefill_equals_forcing_token_by_token(
    voice: int, text: list[int], context: int
) -> None:
    lm = tiny(context)
    spoken = codes(voice, seed=3)
    state = prefilled(lm, build_prompt(lm.config, spoken, text))
    frames = [
        [token, *agent]
        for token, agent in (
            *((PAD, agent) for agent in spoken.tolist()),
            *((token, SILENCE) for token in [PAD, PAD, *text, PAD, PAD]),
        )
    ]
    forced = lm.state(1)
    forced.set_sampling(0, GREEDY)
    with torch.inference_mode():
        for call in range(len(frames)):
            column = [
                frames[call + 1 - delay][channel] if call + 1 - delay < len(frames) else FREE
                for channel, delay in enumerate(TINY.delays[:9])
            ]
            lm._call(forced, Rows([0]), torch.tensor([SINE]), torch.tensor([column]))
    assert state.seen[1] == forced.seen[0] == len(frames)
    torch.testing.assert_close(state.ring.kv[:, 1], forced.ring.kv[:, 0])
    user = codes(12, seed=4)
    assert torch.equal(listen(lm, state, 1, user), listen(lm, forced, 0, user))


def test_a_prompt_past_the_context_ends_in_the_same_ring_as_a_longer_context_s() -> None:
    """A ring of 6 holds the last 6 of the positions that a ring of 100 holds."""
    prompt = build_prompt(TINY, codes(9), TEXT)
    assert prompt.frames == 16
    short, long = tiny(6), tiny(100)
    one, other = prefilled(short, prompt), prefilled(long, prompt)
    # Layer 0 has heard nothing yet: its keys and values don't depend on the context.
    for position in range(10, 16):
        torch.testing.assert_close(
            one.ring.kv[0, 1, position % 6], other.ring.kv[0, 1, position], atol=1e-5, rtol=1e-5
        )


def test_other_rows_are_untouched_and_the_pieces_are_bounded() -> None:
    lm = tiny(1000)
    state = lm.state(2)
    state.set_sampling(0, GREEDY)
    alone = lm.state(2)
    alone.set_sampling(0, GREEDY)
    expected = listen(lm, alone, 0, codes(20))
    made = []
    prompt = build_prompt(lm.config, codes(200), TEXT)
    pieces = lm.prefill(state, 1, prompt)
    for heard in codes(20):
        next(pieces, None)
        made.append(frame(lm.step(state, Rows([0], copy=True), heard[None])))
    assert torch.equal(torch.cat(made), expected)
    assert next(pieces, "ended") == "ended"
    assert state.seen == [20, prompt.frames]
    assert len(list(lm.prefill(lm.state(2), 1, prompt))) == -(-(prompt.frames - 1) // PREFILL_CHUNK)


def test_prefill_is_bit_identical_on_every_row() -> None:
    prompt = build_prompt(TINY, codes(3), TEXT)
    lm, state = tiny(), tiny().state(3)
    for row in (2, 0, 1):
        state.set_sampling(row, Sampling(seed=9))
        for _ in lm.prefill(state, row, prompt):
            lm.step(state, Rows([(row + 1) % 3]), codes(1))
        listen(lm, state, row, codes(4))
        fresh = lm.state(1)
        fresh.set_sampling(0, Sampling(seed=9))
        for _ in lm.prefill(fresh, 0, prompt):
            pass
        listen(lm, fresh, 0, codes(4))
        assert torch.equal(state.ring.kv[:, row], fresh.ring.kv[:, 0])
        assert torch.equal(state.grid.tokens[row], fresh.grid.tokens[0])
        state.reset(Rows([0, 1, 2]))


def test_a_prompt_of_no_frames_is_none() -> None:
    config = replace(TINY, prompt=PromptCodes(tuple(SILENCE), tuple(SINE), 0))
    prompt = build_prompt(config, None, ())
    assert prompt.frames == 0
    state = prefilled(tiny(), prompt)
    assert state.seen == [0, 0]
    assert build_prompt(config, None, [5]).frames == 1


@pytest.mark.parametrize("text", [[], [5]])
def test_a_prompt_of_one_frame_or_none_but_silence(text: list[int]) -> None:
    config = replace(TINY, prompt=PromptCodes(tuple(SILENCE), tuple(SINE), 1 - len(text)))
    prompt = build_prompt(config, None, text)
    state = prefilled(tiny(), prompt)
    assert state.seen[1] == prompt.frames == 2 - len(text)
    assert (listen(tiny(), state, 1, codes(3)) >= 0).all()


def test_the_seed_of_the_session_draws_the_last_call() -> None:
    prompt = build_prompt(TINY, codes(3), TEXT)
    drawn = {
        int(
            prefilled(tiny(), prompt, Sampling(2, 0, 2, 0, seed)).grid.tokens[
                1, 1, prompt.frames % 3
            ]
        )
        for seed in range(20)
    }
    assert len(drawn) > 4


def saved_voice() -> tuple[RQTransformer, Tensor, SavedVoice]:
    lm, case = golden("personaplex-tiny")
    voice = SavedVoice.from_file(case["voice_embeddings"], case["voice_cache"])
    return lm, case["voice_codes"], voice


def test_a_saved_voice_equals_its_codes() -> None:
    lm, spoken, voice = saved_voice()
    by_codes = build_prompt(lm.config, spoken, [5, 9])
    saved = build_prompt(lm.config, voice, [5, 9])
    assert saved.frames == by_codes.frames
    assert saved.embeddings is not None
    skipped = len(saved.embeddings)
    assert torch.equal(saved.columns, by_codes.columns[skipped:])
    embedded = lm._temporal.embed(by_codes.columns[:skipped])
    torch.testing.assert_close(embedded, saved.embeddings, atol=1e-5, rtol=1e-5)


def test_the_user_of_a_saved_voice_s_last_frame_is_the_sine() -> None:
    lm, _, voice = saved_voice()
    cache = voice.cache.clone()
    cache[9:] = 77
    columns = build_prompt(lm.config, SavedVoice(voice.embeddings, cache), [5]).columns
    sine = lm.config.prompt.user_codes
    assert columns[0, 9:].tolist() == [sine[0], *[77] * 7]
    assert columns[1, 9:].tolist() == list(sine)


def test_a_saved_voice_without_anything_after_it() -> None:
    lm, spoken, voice = saved_voice()
    config = replace(lm.config, prompt=replace(lm.config.prompt, silence_frames=0))
    one, other = build_prompt(config, spoken, ()), build_prompt(config, voice, ())
    assert one.frames == other.frames == len(spoken)
    assert torch.equal(one.columns[-2:], other.columns)
    assert (other.columns[1] == FREE).sum() == 3
    user = torch.zeros(6, 8, dtype=torch.int64)
    assert torch.equal(
        listen(lm, prefilled(lm, one), 1, user), listen(lm, prefilled(lm, other), 1, user)
    )


@pytest.mark.parametrize(
    ("voice", "text", "message"),
    [
        (torch.zeros(3, 7), [], "voice must be [n, 8], not [3, 7]"),
        (torch.zeros(8), [], "voice must be [n, 8], not [8]"),
        (torch.full((2, 8), 24), [], "voice codes must be below 24"),
        (torch.full((2, 8), -1), [], "voice codes must be below 24"),
        (None, [20], "text_tokens must be below 20"),
        (None, [-1], "text_tokens must be below 20"),
        (
            SavedVoice(torch.zeros(2, 9), torch.zeros(17, 4)),
            [],
            "embeddings must have dim 16, not 9",
        ),
        (SavedVoice(torch.zeros(2, 16), torch.zeros(9, 4)), [], "cache must have 17 channels"),
        (SavedVoice(torch.zeros(2, 16), torch.zeros(17, 1)), [], "at least 2 columns"),
        (
            SavedVoice(torch.zeros(2, 16), torch.full((17, 4), 21)),
            [],
            "cache has unknown tokens in channel 0",
        ),
        (
            SavedVoice(torch.zeros(2, 16), torch.full((17, 4), -2)),
            [],
            "cache has unknown tokens in channel 0",
        ),
    ],
)
def test_what_can_t_be_prompted_is_named(
    voice: Tensor | SavedVoice | None, text: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build_prompt(TINY, voice, text)


@pytest.mark.parametrize(
    ("embeddings", "cache", "message"),
    [
        ((3, 16), (1, 17, 4), "embeddings must be [n, 1, 1, dim], not [3, 16]"),
        ((3, 2, 1, 16), (1, 17, 4), "embeddings must be [n, 1, 1, dim], not [3, 2, 1, 16]"),
        ((0, 1, 1, 16), (1, 17, 4), "embeddings must be [n, 1, 1, dim], not [0, 1, 1, 16]"),
        ((3, 1, 1, 16), (17, 4), "cache must be [1, channels, columns], not [17, 4]"),
        ((3, 1, 1, 16), (2, 17, 4), "cache must be [1, channels, columns], not [2, 17, 4]"),
    ],
)
def test_a_misshapen_saved_voice_is_named(
    embeddings: tuple[int, ...], cache: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SavedVoice.from_file(torch.zeros(embeddings), torch.zeros(cache))


def test_a_model_without_codes_for_prompts() -> None:
    with pytest.raises(CheckpointError, match=r"prompt\.silence_codes must be 8 codes below 24"):
        build_prompt(replace(TINY, prompt=PromptCodes()), None, ())
    with pytest.raises(CheckpointError, match="delays past one frame"):
        build_prompt(replace(TINY, delays=(0, *[2] * 16)), None, ())
