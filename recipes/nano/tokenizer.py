"""nano's text tokens: a small SentencePiece model in which every word of a reply is one piece.

Ids follow Moshi: 0 is the end of padding (here also unknown), 1 BOS, 2 EOS, 3 PAD.
`python -m recipes.nano.tokenizer OUT.model` trains it.
"""

import io
import random
import tempfile
from contextlib import chdir
from pathlib import Path
from string import ascii_uppercase

import sentencepiece
import typer

from recipes.nano import domain
from recipes.nano.smalltalk import SENTENCES

PAD = 3
VOCABULARY = 384

_FORMS = (
    "your name is {}", "your name is {}", "your name is {}", "you are {}", "you are called {}",
    "your name is {} and you like to count",
)  # fmt: skip
_OTHER_FORMS = ("you are a helpful assistant", "you enjoy having a good conversation", "be kind")


def wrap(text: str) -> str:
    """PersonaPlex's form of a text prompt."""
    return f"<system> {text} <system>"


def train(out: Path) -> None:
    """Train on every reply, every prompt and some small talk (for the letters).

    The same bytes each time.
    """
    corpus = domain.reply_sentences()
    for name in domain.NAMES:
        corpus += [domain.name_reply(name)] * 40
        corpus += [wrap(form.format(name)) for form in _FORMS] * 20
    words = sorted({w for s in domain.reply_sentences() for w in s.split()})
    corpus += words * 60
    corpus += [wrap(s) for s in _OTHER_FORMS] * 5
    corpus += [*SENTENCES, "abcdefghijklmnopqrstuvwxyz 0123456789 , . ? ! ' -"]
    model = io.BytesIO()
    rules = Path("lower-case.tsv")  # the model keeps this name
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        rules.write_text("".join(f"{ord(c):X}\t{ord(c.lower()):X}\n" for c in ascii_uppercase))
        _train(corpus, model, str(rules))
    out.write_bytes(model.getvalue())
    tokenizer = TextTokenizer(out)
    for word in words:
        tokenizer.word(word)


def _train(corpus: list[str], model: io.BytesIO, rules: str) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, vocab_size=VOCABULARY,
        model_type="bpe", character_coverage=1.0, normalization_rule_tsv=rules,
        unk_id=0, bos_id=1, eos_id=2, pad_id=PAD, minloglevel=2,
    )  # fmt: skip


class TextTokenizer:
    """Reads the trained model."""

    def __init__(self, path: Path) -> None:
        self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self._words: dict[str, int] = {}

    @property
    def card(self) -> int:
        return int(self._model.get_piece_size())

    def word(self, word: str) -> int:
        """The one token of a reply word."""
        if word not in self._words:
            tokens = self._model.encode(word)
            if len(tokens) != 1:
                raise ValueError(f"{word!r} takes {len(tokens)} tokens")
            self._words[word] = tokens[0]
        return self._words[word]

    def encode(self, text: str) -> list[int]:
        return list(self._model.encode(text))

    def decode(self, tokens: list[int]) -> str:
        return str(self._model.decode([t for t in tokens if t > PAD]))

    def prompt(self, name: str, rng: random.Random) -> list[int]:
        """A random text prompt that gives the agent this name (none, or no name: the default)."""
        form = rng.choice(_FORMS)
        if name == domain.DEFAULT_NAME and rng.random() < 0.3:
            form = rng.choice(_OTHER_FORMS)
        return self.encode(wrap(form.format(name)))


if __name__ == "__main__":
    typer.run(train)
