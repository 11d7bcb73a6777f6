"""The training modules and the engine compute the same thing."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.lm.config import LMConfig
from engine.lm.model import RQTransformer
from engine.lm.prompt import build_prompt
from engine.mimi.codec import Mimi
from engine.mimi.config import MimiConfig as EngineMimiConfig
from engine.rows import Rows
from engine.sampling import Sampling
from recipes.nano.blocks import BlockEncoder, Coder
from recipes.nano.codec import HOP, Codec, export_state
from recipes.nano.lm import LanguageModel, LmConfig, delayed, grid_inputs
from recipes.nano.mimi import INPUT_GAIN, MimiConfig

CPU = torch.device("cpu")
FRAMES = 24


@pytest.fixture
def codec() -> Codec:
    torch.manual_seed(0)
    codec = Codec(MimiConfig(n_filters=4, dim=32, feedforward=64, context=20, codebook_dim=16))
    for branch in (codec.quantizer.rvq_first, codec.quantizer.rvq_rest):
        branch.norm.register_buffer("running_mean", torch.randn(16))
        branch.norm.register_buffer("running_var", torch.rand(16) * 0.1 + 0.01)
    return codec.eval()


def test_codec_equals_the_engine(codec: Codec, tmp_path: Path) -> None:
    save_file(export_state(codec, torch.float32), tmp_path / "mimi.safetensors")
    config = EngineMimiConfig.from_json(codec.config.to_json())
    mimi = Mimi.load(tmp_path / "mimi.safetensors", config, books=8, device=CPU)
    state, rows = mimi.state(1), Rows([0], CPU)
    pcm = torch.randn(1, FRAMES * HOP) * 0.1
    whole = codec.encode(pcm[:, None])[0].t()
    with torch.inference_mode():
        frames = [mimi.encode(state, rows, x) for x in pcm.view(FRAMES, 1, HOP)]
        assert (torch.cat(frames) == whole).float().mean() > 0.99
        sound = torch.cat([mimi.decode(state, rows, c[None]) for c in whole], 1)
    again = codec.decode(whole.t()[None])[0]
    assert torch.allclose(sound, again, atol=1e-4)


@pytest.mark.parametrize("filters", [4, 20])
def test_the_encoder_as_matrix_products_is_the_encoder(filters: int) -> None:
    torch.manual_seed(0)
    codec = Codec(MimiConfig(n_filters=filters)).eval()
    encoder = codec.encoder.model
    assert isinstance(encoder, torch.nn.Sequential)
    for p in encoder.parameters():
        torch.nn.init.normal_(p, std=0.1)
    pcm = torch.randn(2, 3 * HOP) * 0.1
    with torch.no_grad():
        whole = encoder(pcm[:, None] * INPUT_GAIN)
        blocks = BlockEncoder(encoder, torch.float32)(pcm)
    assert torch.allclose(blocks, whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))
    same = Coder(codec, torch.float32)(pcm) == codec.encode(pcm[:, None])
    assert same.float().mean() > 0.99


def test_language_model_equals_the_engine(tmp_path: Path) -> None:
    torch.manual_seed(0)
    c = LmConfig(
        text_card=40, card=32, dim=32, heads=2, layers=2, depth_dim=16, depth_heads=2,
        depth_feedforward=48,
    )  # fmt: skip
    model = LanguageModel(c).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    prompt_codes = {"silence_codes": list(range(8)), "user_codes": list(range(8, 16))}
    config = LMConfig.from_json({**c.to_json(), "prompt": prompt_codes})
    lm = RQTransformer.load(tmp_path / "model.safetensors", config)
    voice, words = torch.randint(0, c.card, (5, 8)), [7, 9, 11]
    prompt = build_prompt(config, voice, words)
    state, rows = lm.state(1), Rows([0], CPU)
    state.set_sampling(0, Sampling(text_temperature=0, audio_temperature=0))
    for _ in lm.prefill(state, 0, prompt):
        pass
    heard = torch.randint(0, c.card, (FRAMES, 8))
    steps = [lm.step(state, rows, u[None]) for u in heard]

    silence = torch.tensor(prompt_codes["silence_codes"]).repeat(6, 1)
    spoken = torch.tensor(prompt_codes["silence_codes"]).repeat(len(words), 1)
    agent = torch.cat([voice, silence, spoken, silence, *[s.codes for s in steps]])
    text = torch.full((len(agent),), 3)
    text[11:14] = torch.tensor(words)
    text[prompt.frames :] = torch.cat([s.text for s in steps])
    user = torch.tensor(prompt_codes["user_codes"]).repeat(len(agent), 1)
    user[prompt.frames :] = heard
    columns = delayed(agent.t()[None], 1, c.card)
    inputs = grid_inputs(text[None], columns, delayed(user.t()[None], 1, c.card), c)
    with torch.no_grad():
        h = model.hidden(*inputs)[0, :-1]
        guessed = model.text_linear(h).argmax(-1)
        depth = model.depth(h, text[1:], columns[0, :, 1:].t()).argmax(-1)
    first = prompt.frames - 1
    assert torch.equal(guessed[first:], text[1:][first:])
    assert torch.equal(depth[first + 1 :], columns[0, :, 1:].t()[first + 1 :])
    assert torch.equal(depth[first, 0], columns[0, 0, first + 1])
