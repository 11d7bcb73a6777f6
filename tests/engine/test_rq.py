"""The lockstep model: sessions in rows, each as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engine import memory
from engine.api import BadParams, EngineConfig, EngineError, OpenParams
from engine.directory import read_directory
from engine.model import LockstepModel
from engine.registry import build_model
from engine.text import Tokenizer
from engine.tiny_weights import LAST_CONV, lm_weights
from media.files import write_wav

SLOTS = 3
FRAME = 1920
GREEDY = OpenParams(text_temperature=0, audio_temperature=0)
SESSIONS = (
    msgspec.structs.replace(GREEDY, voice="alto", persona="you are ada"),
    msgspec.structs.replace(GREEDY, voice="bass"),
    OpenParams(voice="bass", persona="stop", seed=5, audio_temperature=1.5, text_top_k=5),
    OpenParams(seed=1, audio_top_k=3),
)
PCM = np.random.default_rng(0).normal(0, 0.1, (len(SESSIONS), 12, FRAME)).astype(np.float32)

Build = Callable[..., LockstepModel]
Output = list[tuple[bytes, bool, str]]


def build(path: Path, **options: object) -> LockstepModel:
    return build_model(EngineConfig(model=str(path), slots=SLOTS, device="cpu", **options))


@pytest.fixture(scope="module")
def fixed(tiny: Path) -> LockstepModel:
    return build(tiny, step_mode="fixed", seed=0)


@pytest.fixture(scope="module")
def ready(tiny: Path) -> LockstepModel:
    return build(tiny, seed=0)


@pytest.fixture(scope="module")
def unprompted(moshi: Path) -> LockstepModel:
    return build(moshi, seed=0)


def open_row(model: LockstepModel, row: int, params: OpenParams) -> None:
    model.check(params)
    for _ in model.prefill(row, params):
        pass


def run(model: LockstepModel, params: OpenParams, pcm: np.ndarray, row: int = 0) -> Output:
    """A session that has the model for itself, in a row that is then made new again."""
    open_row(model, row, params)
    output = [entry for frame in pcm for entry in step(model, [row], frame[None])]
    model.reset([row])
    return output


def step(model: LockstepModel, rows: Sequence[int], pcm: np.ndarray) -> Output:
    result = model.step(rows, pcm)
    sound = [frame.tobytes() for frame in result.pcm]
    return list(zip(sound, result.heard, result.text, strict=True))


def sound_of(output: Output) -> np.ndarray:
    return np.stack([np.frombuffer(pcm, np.float32) for pcm, _, _ in output])


@pytest.fixture(scope="module")
def alone(fixed: LockstepModel) -> list[Output]:
    return [run(fixed, params, pcm) for params, pcm in zip(SESSIONS, PCM, strict=True)]


def test_two_greedy_sessions_together_are_the_same_bytes_as_alone(
    fixed: LockstepModel, alone: list[Output]
) -> None:
    for row in (0, 1):
        open_row(fixed, row, SESSIONS[row])
    together = [step(fixed, [0, 1], PCM[:2, frame]) for frame in range(PCM.shape[1])]
    fixed.reset([0, 1])
    assert [frame[0] for frame in together] == alone[0]
    assert [frame[1] for frame in together] == alone[1]
    assert alone[0] != alone[1]


@dataclass
class Row:
    session: int
    frames: Output = field(default_factory=list)


@settings(max_examples=15)
@given(data=st.data())
def test_a_session_never_notices_the_others(
    fixed: LockstepModel, alone: list[Output], data: st.DataObject
) -> None:
    rows: dict[int, Row] = {}
    try:
        for _ in range(14):
            row = data.draw(st.integers(0, SLOTS - 1))
            if row not in rows:
                session = data.draw(st.integers(0, len(SESSIONS) - 1))
                open_row(fixed, row, SESSIONS[session])
                rows[row] = Row(session)
            elif data.draw(st.integers(0, 3)) == 0:
                fixed.reset([row])
                del rows[row]
            going = sorted(r for r in rows if len(rows[r].frames) < PCM.shape[1])
            if not going:
                continue
            chosen = data.draw(st.lists(st.sampled_from(going), unique=True, min_size=1))
            pcm = np.stack([PCM[rows[r].session, len(rows[r].frames)] for r in chosen])
            for row, made in zip(chosen, step(fixed, chosen, pcm), strict=True):
                entry = rows[row]
                assert made == alone[entry.session][len(entry.frames)]
                entry.frames.append(made)
    finally:  # hypothesis gives up an example in the middle if it draws too much
        fixed.reset(list(rows))


@pytest.mark.parametrize("row", range(SLOTS))
def test_a_recycled_row_is_as_a_fresh_one(
    tiny: Path, alone: list[Output], fixed: LockstepModel, row: int
) -> None:
    fresh = build(tiny, step_mode="fixed")
    assert run(fresh, SESSIONS[0], PCM[0], row) == alone[0]
    run(fixed, SESSIONS[3], PCM[3], row)
    assert run(fixed, SESSIONS[0], PCM[0], row) == alone[0]


def test_a_recycled_row_of_a_model_without_prompts_is_as_a_fresh_one(moshi: Path) -> None:
    model = build(moshi, step_mode="fixed")
    fresh = run(model, GREEDY, PCM[0])
    run(model, OpenParams(seed=1), PCM[3])
    assert run(model, GREEDY, PCM[0]) == fresh


def test_a_prefill_that_is_given_up_leaves_nothing(
    fixed: LockstepModel, alone: list[Output]
) -> None:
    work = fixed.prefill(0, msgspec.structs.replace(SESSIONS[2], persona="never heard of"))
    next(work)
    fixed.reset([0])
    work.close()
    assert run(fixed, SESSIONS[0], PCM[0]) == alone[0]


def test_one_batch_gives_what_each_gives_alone(ready: LockstepModel, alone: list[Output]) -> None:
    for row in range(SLOTS):
        open_row(ready, row, SESSIONS[row])
    together = [step(ready, range(SLOTS), PCM[:SLOTS, frame]) for frame in range(PCM.shape[1])]
    ready.reset(range(SLOTS))
    for row in range(SLOTS):
        made = [frame[row] for frame in together]
        assert [text for _, _, text in made] == [text for _, _, text in alone[row]]
        np.testing.assert_allclose(sound_of(made), sound_of(alone[row]), atol=1e-4)


def test_a_prompt_that_was_heard_before_is_not_computed_again(tiny: Path) -> None:
    model = build(tiny, step_mode="fixed", prefix_cache_bytes=1 << 24)
    first = run(model, SESSIONS[0], PCM[0])
    assert (model.prefix_stats().hits, model.prefix_stats().misses) == (0, 1)
    assert run(model, SESSIONS[0], PCM[0]) == first
    run(model, msgspec.structs.replace(SESSIONS[0], seed=3), PCM[0])
    assert (model.prefix_stats().hits, model.prefix_stats().misses) == (2, 1)
    run(model, msgspec.structs.replace(SESSIONS[0], persona="you are"), PCM[0])
    run(model, msgspec.structs.replace(SESSIONS[0], voice="bass"), PCM[0])
    assert (model.prefix_stats().hits, model.prefix_stats().misses) == (2, 3)
    assert 0 < model.prefix_stats().bytes <= 1 << 24


def test_voice_and_persona_are_heard(fixed: LockstepModel) -> None:
    outputs = [
        run(fixed, OpenParams(seed=0, voice=voice, persona=persona), PCM[0])
        for voice in ("alto", "bass.pt")
        for persona in (None, "you are ada", "please count to ten")
    ]
    assert len({tuple(output) for output in outputs}) == len(outputs)
    for same in (OpenParams(seed=0), OpenParams(seed=0, persona=" ")):
        assert run(fixed, same, PCM[0]) == outputs[0]


def test_a_greedy_session_has_no_use_for_a_seed(fixed: LockstepModel) -> None:
    outputs = [run(fixed, msgspec.structs.replace(GREEDY, seed=s), PCM[0]) for s in (1, 2)]
    assert outputs[0] == outputs[1]


def test_seeds(tiny: Path, fixed: LockstepModel) -> None:
    seven = OpenParams(seed=7)
    assert run(fixed, seven, PCM[0]) == run(fixed, seven, PCM[0])
    assert run(fixed, seven, PCM[0]) != run(fixed, OpenParams(seed=8), PCM[0])
    drawn = [
        [run(model, OpenParams(), PCM[0]) for _ in range(2)]
        for model in (build(tiny, step_mode="fixed", seed=s) for s in (1, 1, 2, None, None))
    ]
    assert drawn[0] == drawn[1]
    outputs = [tuple(output) for pair in drawn[1:] for output in pair]
    assert len(set(outputs)) == len(outputs)


def test_a_recording_is_a_voice_like_any_other(tiny: Path, tmp_path: Path) -> None:
    pcm = np.random.default_rng(3).normal(0, 0.02, 20_000).astype(np.float32)
    write_wav(tmp_path / "own.wav", pcm, 24_000, "float")
    model = build(tiny, step_mode="fixed", voices_dir=str(tmp_path))
    assert model.spec.voices == ("alto", "bass", "own")
    sent = msgspec.structs.replace(GREEDY, voice_audio=pcm.tobytes())
    outputs = [run(model, sent, PCM[0]) for _ in range(2)]
    outputs += [run(model, msgspec.structs.replace(GREEDY, voice="own"), PCM[0]) for _ in range(2)]
    assert outputs[1:] == outputs[:1] * 3
    assert outputs[0] != run(model, GREEDY, PCM[0])


def test_a_recording_is_encoded_once(tiny: Path, tmp_path: Path) -> None:
    pcm = np.random.default_rng(3).normal(0, 0.02, 20_000).astype(np.float32)
    write_wav(tmp_path / "own.wav", pcm, 24_000, "float")
    model = build(tiny, voices_dir=str(tmp_path), prefix_cache_bytes=0)
    for params in (OpenParams(voice="own"), OpenParams(voice_audio=pcm.tobytes())):
        pieces = [len(list(model.prefill(row, params))) for row in range(2)]
        assert pieces[0] - pieces[1] == 11
        model.reset([0, 1])


def test_a_silent_recording_is_refused_when_it_is_heard(fixed: LockstepModel) -> None:
    silent = OpenParams(voice_audio=bytes(4 * 24_000))
    fixed.check(silent)
    with pytest.raises(BadParams, match="voice_audio: the recording is silent") as caught:
        next(fixed.prefill(0, silent))
    assert caught.value.field == "voice_audio"
    fixed.reset([0])


def test_the_first_frame_of_an_unprompted_model_has_no_sound(unprompted: LockstepModel) -> None:
    assert unprompted.spec.startup_frames == 1
    open_row(unprompted, 0, GREEDY)
    pcm = PCM[0]
    output = step(unprompted, [0], pcm[:1])
    assert output == [(bytes(4 * FRAME), False, "")]
    # The other row is one frame behind: its decoder must not hear of this step.
    open_row(unprompted, 1, GREEDY)
    mixed = step(unprompted, [1, 0], pcm[[0, 1]])
    assert mixed[0] == (bytes(4 * FRAME), False, "")
    assert mixed[1][1]
    for frame in range(2, 6):
        mixed += step(unprompted, [1, 0], pcm[[frame - 1, frame]])
    unprompted.reset([0, 1])
    np.testing.assert_allclose(sound_of(mixed[2::2]), sound_of(mixed[1:-2:2]), atol=1e-4)
    assert [text for _, _, text in mixed[2::2]] == [text for _, _, text in mixed[1:-2:2]]


def test_what_a_prompted_model_says_of_itself(ready: LockstepModel, tiny: Path) -> None:
    spec = ready.spec
    assert spec.name == "tiny"
    assert (spec.sample_rate, spec.frame_size, spec.startup_frames) == (24_000, FRAME, 0)
    assert (spec.slots, spec.voices, spec.default_voice) == (SLOTS, ("alto", "bass"), "alto")
    able = (spec.persona, spec.voice_audio, spec.text, spec.sampling, spec.video)
    assert able == (True, True, True, True, False)
    assert spec.about.startswith("Random weights")
    assert spec.examples == ("Anything at all.",)
    assert spec.device == "cpu"
    files = sum(file.stat().st_size for file in tiny.glob("*.safetensors"))
    assert 0.5 * files < spec.weight_bytes < 3 * files
    # Two layers of keys and values of 1000 positions of 64 numbers, and some.
    assert 1_024_000 < spec.slot_bytes < 1_200_000


def test_what_an_unprompted_model_says_of_itself(unprompted: LockstepModel) -> None:
    spec = unprompted.spec
    assert (spec.voices, spec.default_voice) == ((), None)
    able = (spec.persona, spec.voice_audio, spec.text, spec.sampling, spec.video)
    assert able == (False, False, True, True, False)
    for name, value in (("voice", "alto"), ("persona", "x"), ("voice_audio", b"")):
        with pytest.raises(BadParams, match=f"the model moshi takes no {name}") as caught:
            unprompted.check(OpenParams(**{name: value}))
        assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("text_temperature", -0.1, "must be 0 to 2"),
        ("text_temperature", float("nan"), "must be 0 to 2"),
        ("audio_temperature", 2.1, "must be 0 to 2"),
        ("audio_temperature", float("inf"), "must be 0 to 2"),
        ("text_top_k", 0, "must be 1 to"),
        ("text_top_k", 1000, "must be 1 to"),
        ("audio_top_k", 257, "must be 1 to 256"),
        ("seed", -1, "must be 0 to 9223372036854775807"),
        ("seed", 1 << 63, "must be 0 to 9223372036854775807"),
        ("voice", "../alto", "known voices: alto, bass"),
        ("persona", "word " * 600, "persona has .* tokens, more than 500"),
        ("persona", "a" * 16_385, "more than 16384 characters"),
        ("voice_audio", b"123", "float32 samples of 4 bytes"),
        ("voice_audio", bytes(4 * 11_999), "lasts 0.5 to 30 s, not 0.50"),
        ("voice_audio", bytes(4 * 720_001), "lasts 0.5 to 30 s, not 30.00"),
        ("voice_audio", np.full(24_000, np.nan, np.float32).tobytes(), "no numbers"),
    ],
)
def test_what_cant_be_taken_is_named(
    ready: LockstepModel, name: str, value: object, said: str
) -> None:
    with pytest.raises(BadParams, match=said) as caught:
        ready.check(OpenParams(**{name: value}))
    assert caught.value.field == name
    assert name in str(caught.value)


def test_a_voice_and_a_recording_exclude_each_other(ready: LockstepModel) -> None:
    with pytest.raises(BadParams, match="exclude each other") as caught:
        ready.check(OpenParams(voice="alto", voice_audio=bytes(4 * 24_000)))
    assert caught.value.field == "voice_audio"


def test_the_limits_themselves_can_be_taken(ready: LockstepModel) -> None:
    params = OpenParams(
        text_temperature=0,
        audio_temperature=2,
        text_top_k=1,
        audio_top_k=256,
        seed=(1 << 63) - 1,
        persona="a" * 100,
    )
    run(ready, params, PCM[0, :1])


def test_more_slots_than_memory_are_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 8_000_000)
    with pytest.raises(EngineError, match=r"20 slots need .* 8\.00 MB is free: at most 7 fit"):
        build_model(EngineConfig(model=str(tiny), slots=20, device="cpu"))


def test_sound_stays_in_range(tiny_copy: Path) -> None:
    path = tiny_copy / "tokenizer-e351c8d8-checkpoint125.safetensors"
    weights = load_file(path)
    weights[f"{LAST_CONV}.weight"] *= 20
    save_file(weights, path)
    sound = sound_of(run(build(tiny_copy), GREEDY, PCM[0]))
    assert (sound.min(), sound.max()) == (-1, 1)


def test_half_a_character_stays_with_its_session(tiny_copy: Path) -> None:
    """A model that says nothing but bytes which begin characters of two bytes."""
    directory = read_directory(tiny_copy)
    pieces = Tokenizer(directory.tokenizer).pieces
    words = [pieces.index(bytes([byte])) for byte in range(0xC2, 0xE0)]
    save_file(lm_weights(directory.lm_config, words, seed=1), directory.lm)
    model = build(tiny_copy, step_mode="fixed")
    first = [run(model, OpenParams(seed=seed), PCM[0]) for seed in range(4)]
    again = [run(model, OpenParams(seed=seed), PCM[0]) for seed in range(4)]
    assert "\ufffd" in {text for output in first for _, _, text in output}
    assert again == first


def test_no_inference_mode_leaks(ready: LockstepModel) -> None:
    for _ in ready.prefill(0, GREEDY):
        assert not torch.is_inference_mode_enabled()
    ready.reset([0])
    assert not torch.is_inference_mode_enabled()
