"""Models of random weights in the real sizes, or tiny, without files: what the benchmark drives."""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.api import OpenParams, Pcm
from engine.cuda.options import CudaOptions
from engine.lm.config import PERSONAPLEX_7B, LMConfig
from engine.lm.model import RQTransformer
from engine.lm.prompt import PromptCodes
from engine.lm.weights import DepthStep, Layer, Weights
from engine.mimi.codec import Mimi
from engine.mimi.config import MIMI_24KHZ, MimiConfig
from engine.model import LockstepModel
from engine.prompter import Prompter
from engine.rq import RQModel
from engine.sampling import Sampling
from engine.text import SYSTEM, Tokenizer
from engine.tiny import MIMI as TINY_MIMI
from engine.tiny import lm_config as tiny_config
from engine.tiny_weights import mimi_weights
from engine.voice_files import VoiceShape
from engine.voices import VoiceRegistry
from recipes.bench.gpu.results import Case, Figures

PROMPT = 120
"""Positions of a prompt in joins: a persona of a sentence or three."""
_PREFIX_BYTES = 1 << 30
Found = TypeVar("Found")

_types: Final[dict[str, Literal["bf16", "fp8"]]] = {"bf16": "bf16", "fp8": "fp8"}


class WordTokenizer(Tokenizer):
    """Numbers for words: the text "w7 w9" is the tokens 7 and 9."""

    def __init__(self, card: int) -> None:
        self.pieces = tuple(f" w{token}" for token in range(card))

    def encode(self, text: str) -> list[int]:
        """The marks around a persona are token 4."""
        return [4 if word == SYSTEM else int(word[1:]) for word in text.split()]


def persona(positions: int, seed: int) -> str:
    """A text with which a prompt has so many positions; another for each seed."""
    around = 2 * PromptCodes().silence_frames + 2
    words = np.random.default_rng(seed).integers(5, 100, positions - around)
    return " ".join(f"w{word}" for word in words)


def real_model(
    device: torch.device,
    *,
    slots: int | None,
    context: int | None = None,
    kv: str = "bf16",
    weights: str = "bf16",
    fixed: bool = False,
    layers: int | None = None,
    tiny: bool = False,
    prefix_cache_bytes: int = _PREFIX_BYTES,
) -> LockstepModel:
    """PersonaPlex in its sizes, or a tiny one: on a GPU as it is served there.

    On a CPU it is the plain model in float32, which knows no types of keys, values and weights.
    slots: None for as many as fit. layers: fewer of the temporal transformer's.
    """
    config, codec = _tiny() if tiny else (PERSONAPLEX_7B, MIMI_24KHZ)
    if layers is not None:
        config = msgspec.structs.replace(config, num_layers=layers)
    kernels = device.type == "cuda"
    if context is not None and not kernels:
        config = msgspec.structs.replace(config, context=context)
    mimi = _mimi(codec, config.books, device)
    tokenizer = WordTokenizer(config.text_card)
    shape = VoiceShape(
        sample_rate=mimi.sample_rate,
        frame_size=mimi.frame_size,
        books=mimi.books,
        card=mimi.bins,
        dim=config.dim,
        channels=config.channels,
    )
    voices = VoiceRegistry([], shape)
    prompter = Prompter(config, mimi, tokenizer, voices, default_voice=None, device=device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    drawn = random_weights(config, device, dtype)
    if not kernels:
        return RQModel(
            "random",
            RQTransformer(config, drawn, device=device),
            mimi,
            tokenizer,
            prompter,
            sampling=Sampling(),
            slots=slots,
            step_mode="fixed" if fixed else "ready",
            prefix_cache_bytes=prefix_cache_bytes,
            seed=0,
        )
    from engine.cuda.lm.weights import pack
    from engine.cuda.model import CudaModel  # Needs Triton, which only a GPU does.

    packed = pack(config, drawn, fp8=weights == "fp8")
    # Both at once would leave too little for the sessions.
    del drawn
    return CudaModel(
        "random",
        config,
        packed,
        mimi,
        tokenizer,
        prompter,
        sampling=Sampling(),
        slots=slots,
        options=CudaOptions(context=context, kv=_types[kv], weights=_types[weights], fixed=fixed),
        prefix_cache_bytes=prefix_cache_bytes,
        seed=0,
    )


def with_model(
    device: torch.device,
    case: Case,
    use: Callable[[LockstepModel], Found],
    *,
    fixed: bool = False,
    tiny: bool = False,
    spare: int = 0,
    by_memory: bool = False,
) -> Found:
    """What `use` finds with a case's model, whose memory is free again afterwards.

    Nobody else may hold the model: two at once don't fit. spare: slots beside the sessions'.
    by_memory: as many slots as fit. Raises ValueError for a case without sessions.
    """
    if not case.sessions and not by_memory:
        raise ValueError(f"{case} has no sessions")
    # Of a section that failed, its error may have held one until now.
    free()
    found = use(
        real_model(
            device,
            slots=None if by_memory else case.sessions + spare,
            context=case.context,
            kv=case.kv,
            weights=case.weights,
            fixed=fixed,
            tiny=tiny,
        )
    )
    free()
    return found


def free() -> None:
    """Collects what nobody holds, a model's cycles too, and gives its memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def remembered(case: Case, tiny: bool) -> int:
    """Frames that a session of the case remembers."""
    return case.context or (_tiny()[0] if tiny else PERSONAPLEX_7B).context


def make_live(model: LockstepModel, row: int, params: OpenParams) -> None:
    """Prefills a row to the end."""
    for _ in model.prefill(row, params):
        pass


def parts(model: LockstepModel, rows: int) -> Figures:
    """Milliseconds of the parts of a step of so many rows, if the model can tell."""
    if not hasattr(model, "time_parts"):
        return {}
    times: Mapping[str, float] = cast(Any, model).time_parts(rows)
    return {f"{name}_ms": time for name, time in times.items()}


def sound(model: LockstepModel, frames: int, seed: int = 0) -> Pcm:
    """Noise as loud as speech: [frames, frame_size]."""
    noise = np.random.default_rng(seed).standard_normal((frames, model.spec.frame_size))
    return (0.05 * noise).astype(np.float32)


def step_bytes(case: Case, rows: int, tiny: bool) -> int:
    """What a step of full contexts must read at least: matrices once, and keys and values.

    Embeddings, the codec and whatever is written are left out: under a hundredth.
    """
    config = _tiny()[0] if tiny else PERSONAPLEX_7B
    width = {"bf16": 2, "fp8": 1}
    dim, depth = config.dim, config.depformer_dim
    temporal = config.num_layers * (4 * dim * dim + 3 * dim * config.hidden)
    depformer = config.depformer_num_layers * (4 * depth**2 + 3 * depth * config.depformer_hidden)
    heads = dim * config.text_card + config.books * depth * (dim + config.card)
    kv = 2 * config.num_layers * remembered(case, tiny) * dim
    matrices = width[case.weights] * temporal + 2 * (config.books * depformer + heads)
    return matrices + rows * width[case.kv] * kv


def random_weights(config: LMConfig, device: torch.device, dtype: torch.dtype) -> Weights:
    """Made where they are used, so scaled that a signal keeps its size on the way."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        made = torch.empty(rows, columns, device=device, dtype=dtype)
        return made.normal_(0, std, generator=generator)

    def layer(dim: int, hidden: int) -> Layer:
        # A norm gives vectors of length 1: its scale, the root of the width, is in what follows.
        return Layer(
            qkv=normal(dim, 3 * dim, 1),
            out=normal(dim, dim, 1 / math.sqrt(dim)),
            gate=normal(dim, 2 * hidden, 1),
            down=normal(hidden, dim, 1 / math.sqrt(hidden)),
        )

    def channel(card: int) -> Tensor:
        return torch.cat(
            (
                torch.zeros(1, config.dim, device=device, dtype=dtype),
                normal(card + 1, config.dim, 0.25),
            )
        )

    cards = [config.text_card] + config.n_q * [config.card]
    offsets = torch.tensor([1 + sum(card + 2 for card in cards[:k]) for k in range(len(cards))])
    depth = config.depformer_dim
    steps = tuple(
        DepthStep(
            source=book,
            layers=tuple(
                layer(depth, config.depformer_hidden) for _ in range(config.depformer_num_layers)
            ),
            embedding=normal((config.card if book else config.text_card) + 1, depth, 1),
            head=normal(depth, config.card, 1 / math.sqrt(depth)),
        )
        for book in range(config.books)
    )
    return Weights(
        embedding=torch.cat([channel(card) for card in cards]),
        embedding_offsets=offsets.to(device),
        layers=tuple(layer(config.dim, config.hidden) for _ in range(config.num_layers)),
        text_head=normal(config.dim, config.text_card, 3),
        depth_in=normal(config.dim, config.books * depth, 1),
        steps=steps,
    )


def _mimi(config: MimiConfig, books: int, device: torch.device) -> Mimi:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "mimi.safetensors"
        save_file(mimi_weights(config, seed=0), path)
        return Mimi.load(path, config, books=books, device=device)


def _tiny() -> tuple[LMConfig, MimiConfig]:
    codes = PromptCodes(silence_codes=tuple(range(8)), user_codes=tuple(range(8, 16)))
    return tiny_config(128, codes), TINY_MIMI
