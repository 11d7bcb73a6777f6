"""The whole model on static buffers: the same sound and text as the plain one's."""

from __future__ import annotations

from pathlib import Path

import interpreted  # noqa: F401
import numpy as np
import pytest
import torch

from engine.api import EngineConfig, EngineError
from engine.cuda.lm.weights import pack
from engine.cuda.model import CudaModel
from engine.cuda.options import CudaOptions
from engine.directory import ModelDirectory, read_directory
from engine.lm.weights import load_weights
from engine.load import load_model
from engine.mimi.codec import Mimi
from engine.text import Tokenizer


def build(directory: ModelDirectory, slots: int) -> CudaModel:
    config = directory.lm_config
    with torch.inference_mode():
        return CudaModel(
            "tiny",
            config,
            pack(config, load_weights(directory.lm, config)),
            Mimi.load(directory.mimi, directory.mimi_config, books=config.books),
            Tokenizer(directory.tokenizer, config.text_card),
            None,
            sampling=directory.sampling,
            slots=slots,
            options=CudaOptions(context=64),
        )


def test_a_row_hears_and_says_what_it_does_in_the_plain_model(tiny: Path) -> None:
    directory = read_directory(tiny)
    plain = load_model(directory, EngineConfig(model=str(tiny), slots=2, device="cpu"))
    model = build(directory, slots=2)
    frames = np.random.default_rng(0).standard_normal((2, 1, model.spec.frame_size))
    frames = (0.1 * frames).astype(np.float32)

    first = model.step([1], frames[0])
    assert first.heard == plain.step([1], frames[0]).heard == [False]
    wanted, made = plain.step([1], frames[1]), model.step([1], frames[1])

    assert made.heard == wanted.heard == [True]
    assert made.text == wanted.text
    assert np.abs(made.pcm - wanted.pcm).max() < 1e-5
    assert np.abs(wanted.pcm).max() > 0.1

    # What rows of nobody have counted must not grow for ever.
    counts = model._mimi._decoder.chain.frames
    assert counts[model.lm.state.trash] > 0
    model.reset([1])
    assert counts.tolist() == [0, 0, 0]


def test_more_slots_than_fit_are_refused_before_anything_is_made_for_them(tiny: Path) -> None:
    with pytest.raises(EngineError, match=r"1000000000 slots need .* fit"):
        build(read_directory(tiny), slots=1_000_000_000)
