"""Tokens equal to those of the reference implementation."""

import pytest
import torch
from lm_models import frame, golden

from engine.lm.prompt import SavedVoice, build_prompt
from engine.rows import Rows
from engine.sampling import GREEDY


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("session", range(4))
def test_moshi_alone(session: int, copy: bool) -> None:
    lm, case = golden("moshi-tiny")
    state = lm.state(4)
    state.set_sampling(session, GREEDY)
    for codes, expected in zip(
        case["user_codes"][session], case["step_output"][session], strict=True
    ):
        step = lm.step(state, Rows([session], copy=copy), codes[None])
        assert torch.equal(frame(step)[0], expected)
        assert bool(step.heard) == bool(expected[0] != -2)


def test_moshi_sessions_that_join_and_leave() -> None:
    lm, case = golden("moshi-tiny")
    users, expected = case["user_codes"], case["step_output"]
    joins, leaves, places = [0, 7, 3, 31], [60, 67, 40, 91], [2, 0, 3, 2]
    state = lm.state(4)
    heard = [0] * 4
    for tick in range(91):
        for session in range(4):
            if tick == joins[session]:
                state.reset(Rows([places[session]]))
                state.set_sampling(places[session], GREEDY)
        # Session 0 leaves row 2 to session 3; every session skips a tick now and then.
        live = [
            session
            for session in range(4)
            if joins[session] <= tick < leaves[session]
            and (tick + session) % 5
            and heard[session] < 60
            and not (session == 0 and tick >= 31)
        ]
        if not live:
            continue
        codes = torch.stack([users[session, heard[session]] for session in live])
        made = frame(lm.step(state, Rows([places[session] for session in live]), codes))
        for session, tokens in zip(live, made, strict=True):
            assert torch.equal(tokens, expected[session, heard[session]])
            heard[session] += 1
    assert min(heard) > 20
    assert max(heard) > 40


@pytest.mark.parametrize("saved", [False, True])
def test_personaplex(saved: bool) -> None:
    lm, case = golden("personaplex-tiny")
    voice = case["voice_codes"]
    if saved:
        voice = SavedVoice.from_file(case["voice_embeddings"], case["voice_cache"])
    prompt = build_prompt(lm.config, voice, case["text_tokens"].tolist())
    assert prompt.frames == 12 + 6 + 9 + 6
    state = lm.state(3)
    state.set_sampling(1, GREEDY)
    for _ in lm.prefill(state, 1, prompt):
        pass
    for codes, expected in zip(case["user_codes"], case["step_output"][1:, :9], strict=False):
        assert torch.equal(frame(lm.step(state, Rows([1]), codes[None]))[0], expected)
