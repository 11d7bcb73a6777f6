"""Conversations that nano is trained on."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.nano import domain
from recipes.nano.clips import SAMPLE_RATE, Clips
from recipes.nano.codec import HOP, Codec
from recipes.nano.conversations import PromptCodes, Renderer
from recipes.nano.dialogue import (
    CUT_AFTER_S,
    LATE_S,
    LATE_SHARE,
    REPLY_AFTER_S,
    SILENCE_FRAMES,
    WORDS,
    Planner,
    plan_batch,
)
from recipes.nano.mixing import ClipBank
from recipes.nano.synthesise import Recorder
from recipes.nano.tokenizer import PAD, TextTokenizer

TOKENIZER = Path(__file__).parents[3] / "engine/zoo/nano/tokenizer.model"


def recorded(folder: Path) -> Clips:
    """Every reply in both voices and some requests of each kind, as noise of a likely length."""
    folder.mkdir(exist_ok=True)
    rng, noise = random.Random(0), np.random.RandomState(0)
    out = Recorder()

    def sound(text: str) -> np.ndarray:
        return noise.randn(int(SAMPLE_RATE * (0.2 + 0.05 * len(text)))).astype(np.float32)

    for kind, key, text in sorted(set(domain.replies())):
        onsets = [0.03 + 0.05 * text.index(word) for word in text.split()]
        meta = {"engine": "agent", "kind": kind, "key": key, "text": text, "onsets": onsets}
        for voice in range(2):
            assert out.add(sound(text), voice=voice, **meta)
    for intent in domain.INTENTS[1:]:
        for _ in range(8):
            asked = domain.random_request(rng, intent)
            assert out.add(sound(asked.text), engine="people", voice="", **vars(asked))
    out.save(folder / "all.npz")
    return Clips.load(folder)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return Planner(recorded(tmp_path_factory.mktemp("clips")), TextTokenizer(TOKENIZER))


def test_saved_clips_are_those_that_were_read(tmp_path) -> None:
    before = recorded(tmp_path / "read")
    before.save(tmp_path / "saved")
    after = Clips.load(tmp_path / "saved")
    assert np.array_equal(after.pcm, before.pcm)
    assert np.array_equal(after.start, before.start)
    assert np.array_equal(after.length, before.length)
    assert (after.meta, after.groups) == (before.meta, before.groups)


def words_of(intent: str) -> set[str]:
    """Every word that may answer a request."""
    fixed = {
        "greet": domain.GREETINGS, "days": (" ".join(domain.DAYS),), "bye": (domain.BYE_REPLY,),
        "thanks": (domain.THANKS_REPLY,), "other": (domain.SORRY_REPLY,),
        "name": tuple(map(domain.name_reply, domain.NAMES)),
    }  # fmt: skip
    numbers = tuple(map(domain.number, range(2 * domain.MAX_NUMBER + 1)))
    sums = (*numbers, "plus", "minus", "is")
    return set(" ".join(fixed.get(intent, sums)).split())


def test_an_answer_begins_at_the_frame_that_its_request_determines(planner: Planner) -> None:
    rng, meta, answered = random.Random(4), planner.clips.meta, 0
    for _ in range(100):
        dialogue = planner.plan(rng, 220, "ada")
        if not dialogue.user:
            continue
        clip, start, rate, *_ = dialogue.user[0]
        if meta[clip].get("intent") in ("noise", "back", "stop"):
            continue
        heard = (start + meta[clip]["audible"] / rate) / SAMPLE_RATE
        first = math.ceil((heard + REPLY_AFTER_S) / 0.08)
        if first < dialogue.frames:
            assert dialogue.text[:first] == [PAD] * first
            assert dialogue.text[first] != PAD
        answered += 1
    assert answered > 50


def test_the_agent_falls_silent_at_once_after_stop_and_now_and_then_later(planner: Planner) -> None:
    rng, meta, waits = random.Random(5), planner.clips.meta, []
    for _ in range(300):
        dialogue = planner.plan(rng, 220, "ada")
        ends = [
            (start + meta[clip]["audible"] / rate) / SAMPLE_RATE
            for clip, start, rate, *_ in dialogue.user
            if meta[clip].get("intent") == "stop"
        ]
        cuts = [(start + n) / SAMPLE_RATE for _, start, *_, n in dialogue.agent if n >= 0]
        waits += [cut - end for end in ends for cut in cuts if 0 < cut - end < 1]
    late = [wait for wait in waits if wait > CUT_AFTER_S[1] + 0.01]
    assert len(waits) > 50
    assert min(waits) > CUT_AFTER_S[0] - 0.01
    late_by = [(wait - sum(CUT_AFTER_S) / 2) / LATE_S for wait in late]
    assert all(abs(n - round(n)) < 0.2 for n in late_by)
    assert LATE_SHARE / 2 < len(late) / len(waits) < LATE_SHARE * 2


@pytest.mark.parametrize(
    ("text", "word"),
    [("hi", "hi"), ("hey there", "hi"), ("hello", "hello"), ("good morning", "hello")],
)
def test_hi_is_answered_with_hi_and_hello_with_hello(text: str, word: str) -> None:
    assert {domain.GREETINGS[i].split()[0] for i in domain.greetings(text)} == {word}


def test_what_ends_quietly_has_ended(tmp_path) -> None:
    loud, quiet = np.ones(SAMPLE_RATE // 4), np.full(SAMPLE_RATE // 2, 0.02)
    out = Recorder()
    pcm = np.concatenate([loud, quiet]).astype(np.float32)
    out.add(pcm, engine="people", voice="", intent="greet", text="hello", a=-1, b=-1)
    out.save(tmp_path / "people-0.npz")
    clips = Clips.load(tmp_path)
    assert clips.meta[0]["n"] > 0.7 * SAMPLE_RATE
    assert clips.meta[0]["audible"] == SAMPLE_RATE // 4


def test_each_word_of_a_reply_is_labelled_with_the_request_it_answers(planner: Planner) -> None:
    rng, seen = random.Random(1), set()
    words = {planner.tokens.word(w): w for s in domain.reply_sentences() for w in s.split()}
    for _ in range(150):
        dialogue = planner.plan(rng, 220, "ada")
        for token, (label, *_) in zip(dialogue.text, dialogue.labels, strict=True):
            if token != PAD:
                intent = domain.INTENTS[label] if label >= 0 else "no label"
                assert words[token] in words_of(intent), (words[token], intent)
                seen.add(intent)
    assert seen == {*domain.INTENTS} - {"none", "stop", "back"}


def test_the_words_of_a_request_are_labelled_in_their_order(planner: Planner) -> None:
    rng = random.Random(2)
    names = list(WORDS)
    for _ in range(50):
        dialogue = planner.plan(rng, 220, "ada")
        said = [
            word for clip, *_ in dialogue.user for word in planner.clips.meta[clip]["text"].split()
        ]
        heard = [names[w] for w in dialogue.labels[:, 3] if w >= 0]
        after = iter(said)
        runs = [w for w, before in zip(heard, [None, *heard], strict=False) if w != before]
        assert all(word in after for word in runs), (said, runs)
        assert set(runs) >= set(said[:1])


def test_a_rendered_row_is_its_prompt_and_then_the_conversation(planner: Planner) -> None:
    torch.manual_seed(0)
    codec, frames = Codec().eval(), 75
    codes = PromptCodes(torch.arange(8), torch.arange(8) + 8)
    batch = plan_batch(planner, random.Random(3), 2, 40)
    bank = ClipBank(planner.clips, "cpu")
    tokens = Renderer(bank, codec, codes)(batch, frames)
    agent = codec.encode(bank.place(batch.agent, 2, 40 * HOP)[:, None])
    for row in range(2):
        voice, p = int(batch.voice_frames[row]), int(batch.prompt_frames[row])
        n = min(40, frames - p)
        own = batch.prompts[row, voice + SILENCE_FRAMES : p - SILENCE_FRAMES]
        assert tokens.text[row, :p].tolist() == [
            *[PAD] * (voice + SILENCE_FRAMES), *own.tolist(), *[PAD] * SILENCE_FRAMES,
        ]  # fmt: skip
        assert torch.equal(tokens.text[row, p : p + n], batch.text[row, :n])
        assert (tokens.agent[row, :, voice:p] == codes.silence[:, None]).all()
        assert torch.equal(tokens.agent[row, :, p : p + n], agent[row, :, :n])
        assert (tokens.user[row, :, :p] == codes.user[:, None]).all()
        assert (tokens.labels[row, :p] == -1).all()
        assert torch.equal(tokens.labels[row, p : p + n], batch.labels[row, :n].long())
