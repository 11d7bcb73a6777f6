"""What is said, what is answered, and its tokens."""

import random
import re
from pathlib import Path

import pytest

from recipes.nano import domain
from recipes.nano.testset import expected
from recipes.nano.tokenizer import PAD, TextTokenizer

TOKENIZER = Path(__file__).parents[3] / "engine/zoo/nano/tokenizer.model"


@pytest.mark.parametrize(
    ("n", "words"), [(0, "zero"), (20, "twenty"), (37, "thirty seven"), (-3, "minus three")]
)
def test_numbers(n: int, words: str) -> None:
    assert domain.number(n) == words


def test_every_request_is_lower_case_words() -> None:
    rng = random.Random(0)
    for _ in range(500):
        request = domain.random_request(rng)
        assert request.intent in domain.INTENTS
        assert re.fullmatch(r"[a-z' ]+", request.text), request.text


def test_expected_replies_match_what_the_agent_says() -> None:
    plus = domain.Request("plus", "", 7, 8)
    assert re.fullmatch(expected(plus), domain.sum_reply("plus", 7, 8))
    down = domain.Request("countdown", "", 3)
    assert expected(down) == "three two one"


def test_every_reply_word_is_one_token() -> None:
    tokens = TextTokenizer(TOKENIZER)
    for sentence in domain.reply_sentences():
        ids = [tokens.word(w) for w in sentence.split()]
        assert min(ids) > PAD
        assert tokens.decode(ids) == sentence


def test_prompts_ignore_case() -> None:
    tokens = TextTokenizer(TOKENIZER)
    upper, lower = "<system> your name is Ada <system>", "<system> your name is ada <system>"
    assert tokens.encode(upper) == tokens.encode(lower)
