"""Recordings without a server."""

import asyncio
import json

import msgspec
import numpy as np
import pytest
from running import FRAME, noise, running

from duplex.batch import Batch, BatchError, Job, jobs_of, recordings_in
from duplex.offline import OfflineError, run_offline, settings_of
from engine.api import OpenParams
from media.files import read_audio, write_wav
from media.wav import Subtype

NONE = OpenParams()


def record(folder, name, frames, seed=0):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_wav(path, noise(frames, seed), 24_000, Subtype.FLOAT)
    return path


def lines(out):
    return [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("delay", [0, 2])
async def test_one_recording(delay):
    pcm = noise(100.5)
    seen = []
    async with running(delay=delay) as runtime:
        result = await run_offline(runtime, pcm, settings_of(NONE), lambda *at: seen.append(at))
        assert not runtime.sessions
    whole = np.concatenate([pcm, np.zeros(FRAME // 2, np.float32)])
    assert np.array_equal(result.pcm, whole[: len(whole) - delay * FRAME])
    assert (result.frames_in, result.frames_out) == (101, 101 - delay)
    assert len(result.step_s) == result.frames_out
    assert seen[-1] == (101 - delay, 101)


async def test_a_refused_parameter_is_named():
    async with running() as runtime:
        with pytest.raises(OfflineError, match="voice") as caught:
            await run_offline(runtime, noise(1), settings_of(OpenParams(voice="nobody")))
        assert caught.value.param == "voice"
        assert not runtime.sessions


async def test_a_batch_fills_the_slots_and_records_what_it_did(tmp_path):
    for index in range(5):
        record(tmp_path, f"in/{index}.wav", 20 + index, index)
    jobs = jobs_of(recordings_in(str(tmp_path / "in")), None, NONE)
    out = tmp_path / "out"
    seen = []
    async with running(slots=2) as runtime:
        summary = await Batch(runtime, jobs, out).run(lambda *at: seen.append(at))
    assert (summary.recordings, summary.done, summary.skipped, summary.failed) == (5, 5, 0, 0)
    assert summary.audio_s == pytest.approx(0.08 * (20 + 21 + 22 + 23 + 24))
    assert seen == [(done, 5) for done in range(6)]
    assert {line["name"] for line in lines(out)} == set("01234")
    for index in range(5):
        assert np.array_equal(read_audio(out / f"{index}.wav", 24_000), noise(20 + index, index))
    assert json.loads((out / "summary.json").read_text()) == msgspec.to_builtins(summary)


async def test_an_interrupted_batch_goes_on_where_it_stopped(tmp_path):
    for index in range(3):
        record(tmp_path, f"in/{index}.wav", 2, index)
    jobs = jobs_of(recordings_in(str(tmp_path / "in")), None, NONE)
    out = tmp_path / "out"
    async with running() as runtime:
        await Batch(runtime, jobs[:2], out).run(lambda *at: None)
        record_of_it = out / "transcripts.jsonl"
        record_of_it.write_bytes(record_of_it.read_bytes() + b'{"name": "2", "recor')
        (out / "0.wav").unlink()
        summary = await Batch(runtime, jobs, out).run(lambda *at: None)
        assert (summary.done, summary.skipped) == (2, 1)
        assert {line["name"] for line in lines(out)[2:]} == {"0", "2"}
        summary = await Batch(runtime, jobs, out).run(lambda *at: None)
        assert (summary.done, summary.skipped) == (0, 3)


async def test_other_settings_are_another_job(tmp_path):
    path = record(tmp_path, "a.wav", 1)
    async with running() as runtime:
        await Batch(runtime, [Job("a", path, NONE)], tmp_path / "out").run(lambda *at: None)
        told = Job("a", path, OpenParams(voice="nobody"))
        summary = await Batch(runtime, [told], tmp_path / "out").run(lambda *at: None)
    assert (summary.skipped, summary.failed) == (0, 1)


async def test_a_recording_that_fails_harms_no_other_and_is_tried_again(tmp_path):
    good = record(tmp_path, "good.wav", 3)
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no sound")
    jobs = jobs_of([bad, good], None, NONE)
    async with running() as runtime:
        summary = await Batch(runtime, jobs, tmp_path / "out").run(lambda *at: None)
        assert (summary.done, summary.failed) == (1, 1)
        errors = {line["name"]: line.get("error") for line in lines(tmp_path / "out")}
        assert errors["good"] is None
        assert "bad.wav" in errors["bad"]
        record(tmp_path, "bad.wav", 1)
        summary = await Batch(runtime, jobs, tmp_path / "out").run(lambda *at: None)
        assert (summary.done, summary.skipped, summary.failed) == (1, 1, 0)


def test_a_settings_file_says_how_each_is_run(tmp_path):
    a, b = record(tmp_path, "in/a.wav", 1), record(tmp_path, "in/b.wav", 1)
    settings = tmp_path / "settings.jsonl"
    settings.write_text(
        '{"recording": "in/a.wav", "seed": 1}\n\n'
        '{"recording": "in/a.wav", "name": "a-again", "voice": "x", "audio_top_k": 5}\n'
    )
    assert jobs_of([a, b], settings, OpenParams(seed=9)) == [
        Job("a", a, OpenParams(seed=1)),
        Job("a-again", a, OpenParams(seed=9, voice="x", audio_top_k=5)),
        Job("b", b, OpenParams(seed=9)),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "line 1"),
        ('{"recording": "a.wav", "sead": 1}', "sead"),
        ('{"recording": "a.wav", "seed": "x"}', "seed"),
        ('{"recording": "b.wav"}', "b.wav"),
        ('{"recording": "a.wav", "name": "../a"}', "name"),
        ('{"recording": "a.wav"}\n{"recording": "a.wav"}', "a.wav"),
    ],
)
def test_a_bad_settings_file_is_refused_by_line(tmp_path, line, problem):
    path = record(tmp_path, "a.wav", 1)
    settings = tmp_path / "settings.jsonl"
    settings.write_text(line)
    with pytest.raises(BatchError, match=problem):
        jobs_of([path], settings, NONE)


def test_recordings_of_a_directory_and_of_a_glob(tmp_path):
    a, b = record(tmp_path, "x/a.wav", 1), record(tmp_path, "x/y/b.wav", 1)
    (tmp_path / "x/notes.txt").write_text("no recording")
    assert recordings_in(str(tmp_path / "x")) == [a, b]
    assert recordings_in(str(tmp_path / "x/*.wav")) == [a]
    with pytest.raises(BatchError, match="no recordings"):
        recordings_in(str(tmp_path / "z*"))


def test_two_outputs_of_one_name_are_refused(tmp_path):
    paths = [record(tmp_path, "x/a.wav", 1), record(tmp_path, "y/a.wav", 1)]
    with pytest.raises(BatchError, match=r"a\.wav"):
        jobs_of(paths, None, NONE)


async def test_the_engines_death_fails_the_recording(tmp_path):
    from engine.echo import EchoModel

    class Breaking(EchoModel):
        def step(self, rows, pcm):
            raise RuntimeError("out of luck")

    async with running(model=Breaking) as runtime:
        with pytest.raises(OfflineError):
            async with asyncio.timeout(10):
                await run_offline(runtime, noise(100), settings_of(NONE))
