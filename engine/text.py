"""Text in and out of a model: the persona's tokens, and the inner monologue as readable text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from engine.api import EngineError

SYSTEM = "<system>"
"""Stands before and after a text prompt; there is no closing form with a slash (PersonaPlex)."""

_SPACE = "\u2581"


def wrap_persona(text: str) -> str:
    """The prompt between its marks; text that has them already is left alone; nothing for none."""
    text = text.strip()
    wrapped = len(text) > len(SYSTEM) and text.startswith(SYSTEM) and text.endswith(SYSTEM)
    return text if wrapped or not text else f"{SYSTEM} {text} {SYSTEM}"


class Tokenizer:
    """A SentencePiece model: `pieces[id]` is the text a token says, or the byte it stands for.

    Control tokens (BOS, EOS, PAD), the unknown token (id 0, which Moshi uses as EPAD) and unused
    ones say nothing.
    """

    def __init__(self, path: Path, card: int | None = None) -> None:
        """Loads a `.model` file. card: text tokens the language model knows.

        Raises EngineError if the file is no SentencePiece model or has more pieces than `card`.
        """
        try:
            self._model = SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise EngineError(f"{path}: not a readable SentencePiece model: {error}") from error
        size = self._model.get_piece_size()
        if card is not None and size > card:
            raise EngineError(f"{path}: {size} pieces, but the model knows {card} text tokens")
        ids = list(range(size))
        self.pieces = tuple(map(self._piece, ids, self._model.id_to_piece(ids)))

    def _piece(self, token: int, piece: str) -> str | bytes:
        model = self._model
        if model.is_byte(token):
            return bytes([int(piece[1:-1], 16)])
        silent = model.is_control(token) or model.is_unknown(token) or model.is_unused(token)
        return "" if silent else piece.replace(_SPACE, " ")

    def encode(self, text: str) -> list[int]:
        """The token ids of `text` as it is: no wrapping, no BOS or EOS."""
        return list(self._model.encode(text))

    def encode_persona(self, text: str) -> list[int]:
        """The token ids of a persona, wrapped; none for an empty one."""
        wrapped = wrap_persona(text)
        return self.encode(wrapped) if wrapped else []


class TextStream:
    """Turns one session's text tokens into text, a token a frame.

    The bytes of one character may come in several tokens, with padding between them: they are
    held back until the character is whole. One that is cut off becomes U+FFFD.
    """

    __slots__ = ("_decoder", "_pieces")

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """What `token` adds. An id past the vocabulary, or a negative one, adds nothing."""
        piece = self._pieces[token] if 0 <= token < len(self._pieces) else ""
        if isinstance(piece, bytes):
            return self._decoder.decode(piece)
        return self._decoder.decode(b"", final=True) + piece if piece else ""

    def reset(self) -> None:
        """Makes the stream as new."""
        self._decoder.reset()
