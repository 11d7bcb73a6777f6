"""Conversations that nano is trained on."""

import random
from pathlib import Path

import numpy as np
import pytest

from recipes.nano import domain
from recipes.nano.clips import SAMPLE_RATE, Clips
from recipes.nano.dialogue import Planner
from recipes.nano.synthesise import Recorder, replies
from recipes.nano.tokenizer import PAD, TextTokenizer

TOKENIZER = Path(__file__).parents[3] / "engine/zoo/nano/tokenizer.model"


def recorded(folder: Path) -> Clips:
    """Every reply in both voices and some requests of each kind, as noise of a likely length."""
    rng, noise = random.Random(0), np.random.RandomState(0)
    out = Recorder()

    def sound(text: str) -> np.ndarray:
        return noise.randn(int(SAMPLE_RATE * (0.2 + 0.05 * len(text)))).astype(np.float32)

    for kind, key, text in sorted(set(replies())):
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


def test_each_word_of_a_reply_is_labelled_with_the_request_it_answers(planner: Planner) -> None:
    rng, seen = random.Random(1), set()
    words = {planner.tokens.word(w): w for s in domain.reply_sentences() for w in s.split()}
    for _ in range(150):
        dialogue = planner.plan(rng, 220, "ada")
        for token, (label, _, _) in zip(dialogue.text, dialogue.labels, strict=True):
            if token != PAD:
                intent = domain.INTENTS[label] if label >= 0 else "no label"
                assert words[token] in words_of(intent), (words[token], intent)
                seen.add(intent)
    assert seen == {*domain.INTENTS} - {"none", "stop", "back"}
