"""The whole model on static buffers: the same sound and text as the plain one's."""

from __future__ import annotations

from pathlib import Path

import interpreted  # noqa: F401
import numpy as np
import torch

from engine.api import EngineConfig
from engine.cuda.model import CudaModel
from engine.cuda.options import CudaOptions
from engine.cuda.weights import pack
from engine.directory import read_directory
from engine.lm.weights import load_weights
from engine.load import load_model
from engine.mimi.codec import Mimi
from engine.text import Tokenizer


def test_a_row_hears_and_says_what_it_does_in_the_plain_model(tiny: Path) -> None:
    directory = read_directory(tiny)
    config = directory.lm_config
    plain = load_model(directory, EngineConfig(model=str(tiny), slots=2, device="cpu"))
    with torch.inference_mode():
        model = CudaModel(
            "tiny",
            config,
            pack(config, load_weights(directory.lm, config)),
            Mimi.load(directory.mimi, directory.mimi_config, books=config.books),
            Tokenizer(directory.tokenizer, config.text_card),
            None,
            sampling=directory.sampling,
            slots=2,
            options=CudaOptions(context=64),
        )
    frames = np.random.default_rng(0).standard_normal((2, 1, model.spec.frame_size))
    frames = (0.1 * frames).astype(np.float32)

    first = model.step([1], frames[0])
    assert first.heard == plain.step([1], frames[0]).heard == [False]
    wanted, made = plain.step([1], frames[1]), model.step([1], frames[1])

    assert made.heard == wanted.heard == [True]
    assert made.text == wanted.text
    assert np.abs(made.pcm - wanted.pcm).max() < 1e-5
    assert np.abs(wanted.pcm).max() > 0.1
