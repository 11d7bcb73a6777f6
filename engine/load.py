"""Loads a model directory and puts its parts together."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import torch
from msgspec.structs import replace

from engine.api import EngineConfig, EngineError
from engine.cuda.gpu import check_gpu
from engine.cuda.options import CudaOptions
from engine.devices import check_device, refuse_cuda_options
from engine.directory import ModelDirectory
from engine.lm.model import RQTransformer
from engine.lm.weights import load_weights
from engine.memory import check_weights
from engine.mimi.codec import Mimi
from engine.model import LockstepModel
from engine.prompter import Prompter
from engine.rq import RQModel
from engine.text import Tokenizer
from engine.voice_files import VoiceShape
from engine.voices import VoiceRegistry

logger = logging.getLogger(__name__)

SLOTS: Final = 4
"""Of a model on a CPU whose config says nothing."""
_SMALL_BYTES: Final = 256 << 20
"""Weights of a model that a CPU steps in time, and on one thread faster: a second one mostly waits,
and where the CPUs are shared its waiting costs more than its work saves.
"""
_PUBLISHED_VOICE: Final = "NATF2"
"""PersonaPlex's own default."""


def choose_device(name: str) -> torch.device:
    """ "auto" is CUDA if there is one. Raises EngineError for a device that isn't there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError("no CUDA device here: choose auto or cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise EngineError(f"no CUDA device {device.index}: there are {torch.cuda.device_count()}")
    return device


def load_model(directory: ModelDirectory, config: EngineConfig) -> LockstepModel:
    """The model of a directory, ready to serve.

    Weights are float32 on a CPU, and the language model's bfloat16 on CUDA, where kernels take the
    place of torch's operations. Raises EngineError that names the file, the memory or the GPU that
    isn't as it must be.
    """
    device = _usable_device(directory, config)
    if device.type == "cpu":
        refuse_cuda_options(config, "one on a CPU")
    elif device.index is not None:
        torch.cuda.set_device(device)  # also for kernels that go where the thread is
    _choose_threads(directory, config, device)
    options = cuda_options(directory, config)
    lm_config, mimi_config = directory.lm_config, directory.mimi_config
    if lm_config.card != mimi_config.quantizer.bins:
        raise EngineError(
            f"{directory.path}: the language model has books of {lm_config.card} codes, "
            f"the codec of {mimi_config.quantizer.bins}"
        )
    tokenizer = Tokenizer(directory.tokenizer, lm_config.text_card)
    mimi = Mimi.load(directory.mimi, mimi_config, books=lm_config.books, device=device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    check_weights(directory.lm, dtype, device)
    prompter = load_prompter(directory, config, mimi, tokenizer, device)
    slots = _slots(directory, config, device)
    if device.type == "cuda":
        from engine.cuda.lm.weights import pack
        from engine.cuda.model import CudaModel

        # No name for what was loaded: while the slots are counted it must be gone.
        packed = pack(
            lm_config,
            load_weights(directory.lm, lm_config, device=device, dtype=dtype),
            fp8=options.weights == "fp8",
        )
        return CudaModel(
            directory.name,
            lm_config,
            packed,
            mimi,
            tokenizer,
            prompter,
            sampling=directory.sampling,
            slots=slots,
            options=options,
            about=directory.about,
            examples=directory.examples,
            prefix_cache_bytes=config.prefix_cache_bytes,
            seed=config.seed,
        )
    return RQModel(
        directory.name,
        RQTransformer.load(directory.lm, lm_config, device=device, dtype=dtype),
        mimi,
        tokenizer,
        prompter,
        sampling=directory.sampling,
        slots=slots,
        about=directory.about,
        examples=directory.examples,
        step_mode=config.step_mode,
        prefix_cache_bytes=config.prefix_cache_bytes,
        seed=config.seed,
    )


def _usable_device(directory: ModelDirectory, config: EngineConfig) -> torch.device:
    """The device of the config. Where that is "auto", a small model does without a GPU that is not
    good for it.
    """
    device = choose_device(config.device)
    if device.type == "cpu":
        return device
    try:
        check_gpu(device)
    except EngineError as error:
        if config.device != "auto" or not _is_small(directory):
            raise
        logger.warning("%s: %s runs on the CPU", error, directory.name)
        return torch.device("cpu")
    return device


def cuda_options(directory: ModelDirectory, config: EngineConfig) -> CudaOptions:
    """What the operator has chosen of the engine on a GPU, else what is known to be good: bf16 is
    what models are published in. Raises EngineError for a longer context than the model's, and for
    `fixed` steps with weights in FP8: the library's products of these depend on the rows.
    """
    most = directory.lm_config.context
    if config.context is not None and not 1 <= config.context <= most:
        raise EngineError(f"context: {directory.name} remembers 1 to {most} frames")
    if config.step_mode == "fixed" and config.weights == "fp8":
        raise EngineError(
            "weights fp8: the same bits whoever is served, step_mode fixed, need bf16"
        )
    return CudaOptions(
        context=config.context,
        kv=config.kv or "bf16",
        weights=config.weights or "bf16",
        fixed=config.step_mode == "fixed",
    )


def _slots(directory: ModelDirectory, config: EngineConfig, device: torch.device) -> int | None:
    """As many as were said; None for as many as fit, which is a GPU's default."""
    if config.slots == "auto":
        return None
    default = None if device.type == "cuda" else SLOTS
    return config.slots or directory.slots or default


def _choose_threads(directory: ModelDirectory, config: EngineConfig, device: torch.device) -> None:
    """As many as the user says; else one for a small model on a CPU, and torch's choice for others.

    What an OpenMP thread may start is its own matter: the thread that loads a model steps it, too.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    elif device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ and _is_small(directory):
        torch.set_num_threads(1)


def _is_small(directory: ModelDirectory) -> bool:
    return directory.lm.stat().st_size + directory.mimi.stat().st_size <= _SMALL_BYTES


def load_prompter(
    directory: ModelDirectory,
    config: EngineConfig,
    mimi: Mimi,
    tokenizer: Tokenizer,
    device: torch.device,
) -> Prompter | None:
    """The voices of a model and of the operator; None for a model that takes no prompts.

    A persona may fill half of what a session remembers here. Raises EngineError.
    """
    lm_config = directory.lm_config
    if config.context is not None:
        lm_config = replace(lm_config, context=config.context)
    more = Path(config.voices_dir) if config.voices_dir is not None else None
    if not directory.prompts:
        if more is not None:
            raise EngineError(f"voices_dir: the model {directory.name} takes no voices")
        return None
    shape = VoiceShape(
        sample_rate=mimi.sample_rate,
        frame_size=mimi.frame_size,
        books=mimi.books,
        card=mimi.bins,
        dim=lm_config.dim,
        channels=lm_config.channels,
    )
    voices = VoiceRegistry([p for p in (directory.voices, more) if p is not None], shape)
    names = voices.names
    default = directory.default_voice
    if default is None and names:
        default = _PUBLISHED_VOICE if _PUBLISHED_VOICE in names else names[0]
    return Prompter(lm_config, mimi, tokenizer, voices, default_voice=default, device=device)
