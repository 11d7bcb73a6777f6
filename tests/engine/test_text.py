"""Personas as tokens, tokens as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from engine.api import EngineError
from engine.text import TextStream, Tokenizer, wrap_persona

FILE = "tokenizer_spm_32k_3.model"
EPAD, BOS, EOS, PAD = range(4)


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer(tiny / FILE)


@pytest.mark.parametrize(
    ("persona", "wrapped"),
    [
        ("you are kind", "<system> you are kind <system>"),
        ("  you are kind\n", "<system> you are kind <system>"),
        ("<system> you are kind <system>", "<system> you are kind <system>"),
        (" <system> you are kind <system> ", "<system> you are kind <system>"),
        ("<system> you are kind", "<system> <system> you are kind <system>"),
        ("<system>", "<system> <system> <system>"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_a_persona_is_wrapped_once(persona: str, wrapped: str) -> None:
    assert wrap_persona(persona) == wrapped


def test_a_persona_is_encoded_plainly(tokenizer: Tokenizer, tiny: Path) -> None:
    plain = SentencePieceProcessor(model_file=str(tiny / FILE))
    expected = plain.encode("<system> you are Zoé <system>")
    assert tokenizer.encode_persona(" you are Zoé") == expected
    assert not {EPAD, BOS, EOS, PAD} & set(expected)
    assert tokenizer.encode_persona("  ") == []


def test_special_tokens_and_unknown_ids_say_nothing(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.pieces)
    silent = [EPAD, BOS, EOS, PAD, -1, -2, len(tokenizer.pieces), 1 << 40]
    assert [stream.push(token) for token in silent] == [""] * len(silent)


def test_a_word_mark_becomes_a_space(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.pieces)
    assert [stream.push(token) for token in tokenizer.encode("hello you")] == [" hello", " you"]


def byte_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.pieces.index(bytes([byte])) for byte in text.encode()]


def test_a_character_comes_whole_when_its_bytes_come_apart(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.pieces)
    first, *rest = byte_tokens(tokenizer, "👋")
    said = [stream.push(first)]
    for token in rest:
        said += [stream.push(PAD), stream.push(token)]
    assert said == ["", "", "", "", "", "", "👋"]


def test_a_character_that_is_cut_off_is_replaced(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.pieces)
    (word,) = tokenizer.encode("hello")
    assert stream.push(byte_tokens(tokenizer, "é")[0]) == ""
    assert stream.push(word) == "\ufffd hello"
    assert stream.push(byte_tokens(tokenizer, "é")[1]) == "\ufffd"


def test_a_reset_stream_is_as_new(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.pieces)
    stream.push(byte_tokens(tokenizer, "é")[0])
    stream.reset()
    (word,) = tokenizer.encode("hello")
    assert stream.push(word) == " hello"


@settings(max_examples=200)
@given(text=st.text(max_size=30), pads=st.lists(st.integers(0, 3), min_size=1))
def test_any_text_comes_out_as_sentencepiece_would_decode_it(
    tokenizer: Tokenizer, tiny: Path, text: str, pads: list[int]
) -> None:
    plain = SentencePieceProcessor(model_file=str(tiny / FILE))
    tokens, stream, said = tokenizer.encode(text), TextStream(tokenizer.pieces), ""
    for place, token in enumerate(tokens):
        said += stream.push(token)
        for _ in range(pads[place % len(pads)]):
            said += stream.push(PAD)
    # Unlike a decoder of whole texts, a stream keeps the first word's space.
    assert said.removeprefix(" ") == plain.decode(tokens)


def test_a_tokenizer_with_too_many_pieces_is_refused(tokenizer: Tokenizer, tiny: Path) -> None:
    size = len(tokenizer.pieces)
    assert len(Tokenizer(tiny / FILE, size).pieces) == size
    with pytest.raises(EngineError, match=rf"{FILE}: {size} pieces, .* {size - 1} text tokens"):
        Tokenizer(tiny / FILE, size - 1)


@pytest.mark.parametrize("content", [b"not a model", None])
def test_what_isnt_a_tokenizer_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / FILE
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineError, match=rf"{FILE}: not a readable SentencePiece model"):
        Tokenizer(path)
