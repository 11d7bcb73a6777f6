"""Writes a complete tiny model with random weights: `python -m engine.tiny DIR`.

The directory has all that a PersonaPlex repository has, in the same file formats, so it is served
by the same code. Whatever it hears it answers with noise that can be heard, and with a word now
and then.
"""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer
from safetensors.torch import save_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from torch import Tensor

from engine.api import EngineError
from engine.directory import CONFIG, VOICES, Json, ServingConfig, read_config
from engine.lm.config import LMConfig
from engine.lm.prompt import PromptCodes
from engine.mimi.codec import Mimi
from engine.mimi.config import MimiConfig, QuantizerConfig, SeanetConfig, TransformerConfig
from engine.rows import Rows
from engine.tiny_weights import LAST_CONV, Weights, lm_weights, mimi_weights

NAME = "tiny"
ABOUT = "Random weights: answers whatever it hears with noise, and with a word now and then."
EXAMPLES = ("Anything at all.",)
RMS = 0.1
"""About how loud it is: of full scale."""
CODES_VOICE = "alto"
"""A voice as codes."""
SAVED_VOICE = "bass"
"""A voice as a saved state."""

_VOICE_FRAMES = 12
_DIMENSION = 32
_BINS = 256
_VOCABULARY = (
    "hello there how are you today i am fine thank you very much what is your name my name is "
    "yes no maybe please stop go on good morning night see you later oh really well then let us "
    "talk about the weather it was nice to meet you one two three four five six seven eight nine "
    "ten count from to"
)

MIMI = MimiConfig(
    sample_rate=24000,
    frame_rate=12.5,
    seanet=SeanetConfig(
        dimension=_DIMENSION,
        n_filters=4,
        ratios=(8, 6, 5, 4),
        kernel_size=7,
        residual_kernel_size=3,
        last_kernel_size=3,
        compress=2,
    ),
    quantizer=QuantizerConfig(
        dimension=16,
        n_q=8,
        bins=_BINS,
        input_dimension=_DIMENSION,
        output_dimension=_DIMENSION,
    ),
    transformer=TransformerConfig(
        d_model=_DIMENSION,
        num_heads=4,
        num_layers=1,
        dim_feedforward=64,
        context=50,
        max_period=10000,
        layer_scale=0.01,
        input_dimension=_DIMENSION,
        output_dimensions=(_DIMENSION,),
    ),
)


def lm_config(text_card: int, prompt: PromptCodes) -> LMConfig:
    """The language model's sizes."""
    return LMConfig(
        dim=64,
        num_heads=4,
        num_layers=2,
        hidden_scale=4.125,
        context=1000,
        card=_BINS,
        text_card=text_card,
        n_q=16,
        dep_q=16,
        delays=(0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1),
        depformer_dim=32,
        depformer_num_heads=2,
        depformer_num_layers=1,
        depformer_dim_feedforward=132,
        prompt=prompt,
    )


def write_tiny(path: Path, seed: int = 0) -> None:
    """Writes the model into `path`, which is made, empty, or a tiny model's already.

    The same seed gives the same model. Raises EngineError for a directory with anything else.
    """
    if path.exists() and not _is_ours(path):
        raise EngineError(f"{path}: there is something else in it, which stays as it is")
    voices = path / VOICES
    voices.mkdir(parents=True, exist_ok=True)
    files = ServingConfig()
    tokenizer = _train_tokenizer()
    (path / files.tokenizer_name).write_bytes(tokenizer.serialized_model_proto())
    mimi = _write_codec(path / files.mimi_name, seed)
    config = lm_config(tokenizer.get_piece_size(), _prompt_codes(mimi))
    weights = {
        name: tensor.bfloat16()
        for name, tensor in lm_weights(config, _words(tokenizer), seed + 1).items()
    }
    save_file(weights, path / files.moshi_name)
    for name, voice in _voices(config, weights, seed + 2).items():
        save_file(voice, voices / f"{name}.safetensors")
    options: Json = {"name": NAME, "model_type": "personaplex", "default_voice": CODES_VOICE}
    options |= {"about": ABOUT, "examples": EXAMPLES}
    options |= {"mimi_config": MIMI, **msgspec.structs.asdict(config)}
    (path / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(options), indent=2))


def _is_ours(path: Path) -> bool:
    if not path.is_dir():
        return False
    return not any(path.iterdir()) or read_config(path)[0].name == NAME


def _train_tokenizer() -> SentencePieceProcessor:
    """Whole words, letters and bytes; its special tokens are numbered as the published one's."""
    words = random.Random(0)
    sentences = (" ".join(words.choices(_VOCABULARY.split(), k=8)) for _ in range(200))
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_writer=model,
        model_type="unigram",
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return SentencePieceProcessor(model_proto=model.getvalue())


def _words(tokenizer: SentencePieceProcessor) -> list[int]:
    pieces = tokenizer.id_to_piece(list(range(tokenizer.get_piece_size())))
    return [token for token, piece in enumerate(pieces) if piece[0] == "\u2581" and piece[2:]]


def _write_codec(path: Path, seed: int) -> Mimi:
    """Writes the codec, its last convolution set so that random codes sound at RMS."""
    weights = mimi_weights(MIMI, seed)
    save_file(weights, path)
    mimi = Mimi.load(path, MIMI)
    codes = torch.randint(_BINS, (50, 1, mimi.books), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        state, rows = mimi.state(1), Rows([0])
        pcm = torch.cat([mimi.decode(state, rows, frame) for frame in codes])
    # Rounded, so that the last bits of a sum, which differ between machines, don't show.
    gain = float(f"{RMS / pcm.std():.3g}")
    weights[f"{LAST_CONV}.weight"] *= gain
    weights[f"{LAST_CONV}.bias"] -= float(f"{gain * pcm.mean():.3g}")
    save_file(weights, path)
    return Mimi.load(path, MIMI)


def _prompt_codes(mimi: Mimi) -> PromptCodes:
    """What the codec makes of silence and of a sine, which is what the published codes are."""
    time = torch.arange(4 * mimi.frame_size) / mimi.sample_rate
    sine = 0.1 * torch.sin(2 * torch.pi * 440 * time)
    silence, user = (_last_codes(mimi, pcm) for pcm in (torch.zeros_like(sine), sine))
    return PromptCodes(silence_codes=silence, user_codes=user)


@torch.inference_mode()
def _last_codes(mimi: Mimi, pcm: Tensor) -> tuple[int, ...]:
    state, rows = mimi.state(1), Rows([0])
    codes = [mimi.encode(state, rows, frame) for frame in pcm.view(-1, 1, mimi.frame_size)]
    return tuple(codes[-1][0].tolist())


def _voices(config: LMConfig, lm: Weights, seed: int) -> dict[str, Weights]:
    """Two voices of random codes, the second as the model would have heard it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (_VOICE_FRAMES, config.books)
    first, second = (torch.randint(config.card, shape, generator=generator) for _ in range(2))
    return {CODES_VOICE: {"codes": first}, SAVED_VOICE: save_voice(config, lm, second)}


def save_voice(config: LMConfig, lm: Weights, codes: Tensor) -> Weights:
    """A saved voice's tensors from its codes [N, books], as PersonaPlex's code saves them.

    `embeddings` [N - 1, 1, 1, dim] in float32, `cache` [1, channels, max_delay + 3] int64.
    """
    count = len(codes)
    padding = torch.full((count, 1), config.existing_text_padding_id)
    user = torch.tensor(config.prompt.user_codes).expand(count, -1)
    frames = torch.cat([padding, codes, user], 1)
    delays = torch.tensor(config.delays)
    initial = torch.tensor([config.text_card] + [config.card] * config.n_q)
    # The last column has only what comes late; PersonaPlex leaves stale tokens in the rest of it.
    source = torch.arange(count + 1)[:, None] - delays
    columns = torch.where(source > 0, frames.gather(0, source.clamp(0, count - 1)), initial)
    tables = [lm["text_emb.weight"], *(lm[f"emb.{book}.weight"] for book in range(config.n_q))]
    inputs = torch.stack([table.float()[columns[:-2, k]] for k, table in enumerate(tables)])
    size = config.max_delay + 3
    cache = torch.zeros(config.channels, size, dtype=torch.int64)
    for column in range(count + 1 - size, count + 1):
        cache[:, column % size] = columns[column]
    return {"embeddings": inputs.sum(0)[:, None, None], "cache": cache[None]}


app = typer.Typer(add_completion=False)


@app.command()
def main(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Where the model is written.")],
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Writes a complete tiny model with random weights."""
    try:
        write_tiny(path, seed)
    except EngineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{path}: a tiny model with the voices {CODES_VOICE} and {SAVED_VOICE}")


if __name__ == "__main__":
    app()
