"""Verdicts of the evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipes.nano.evaluate import Reply, evaluate_all, judge, report, write_wav

RATE = 24_000


def reply(text: str, start: float, end: float, seconds: float = 6.0) -> Reply:
    pcm = np.zeros(int(seconds * RATE), np.float32)
    pcm[int(start * RATE) : int(end * RATE)] = 0.1
    return Reply(text, pcm, RATE)


@pytest.mark.parametrize(
    ("text", "end", "right"),
    [("one two", 3.4, True), ("one two", 3.6, False), ("", 3.4, False)],
)
def test_stop_needs_a_count_that_began_and_ends_in_half_a_second(
    text: str, end: float, right: bool
) -> None:
    case = {"wav": "a.wav", "kind": "stop", "expect": "", "stop_end_s": 3.0}
    verdict = judge(case, reply(text, 1.0, end))
    assert verdict.right is right
    assert verdict.latency_s == pytest.approx(end - 3.0, abs=0.03)


def test_silent_means_neither_word_nor_sound() -> None:
    case = {"wav": "a.wav", "kind": "silent", "expect": ""}
    assert judge(case, reply("", 0, 0)).right
    assert not judge(case, reply("", 1, 1.1)).right
    assert not judge(case, reply("hello", 0, 0)).right


def test_the_whole_transcript_must_match() -> None:
    case = {"wav": "a.wav", "kind": "sum", "expect": "(two plus three is five|five)"}
    assert judge(case, reply("five", 1, 2)).right
    wrong = judge(case, reply("five six", 1, 2))
    assert not wrong.right
    assert report([wrong])[-1] == "overall 0/1"


def test_processes_that_share_the_work_give_what_one_gives(tmp_path: Path) -> None:
    cases = []
    for n in range(3):
        write_wav(tmp_path / f"{n}.wav", reply("", 0.1, 0.1 + 0.1 * n, seconds=0.4))
        cases.append({"wav": f"{n}.wav", "kind": "stop", "stop_end_s": 0.0})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    options = {"threads": 1, "together": 1, "save": None}
    shared = evaluate_all(tmp_path, "echo", 2, **options)
    assert [verdict.wav for verdict in shared] == ["0.wav", "1.wav", "2.wav"]
    assert [verdict.latency_s for verdict in shared] == pytest.approx([None, 0.28, 0.38], abs=0.02)
    assert shared == evaluate_all(tmp_path, "echo", 1, **options)
