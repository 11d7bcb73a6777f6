from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import channel
from engine.api import (
    BadParams,
    EngineError,
    EngineSpec,
    EngineStats,
    Lease,
    NoFreeSlot,
    OpenParams,
)
from engine.channel import Ended, Failed, Fed, Loaded, Stepped, down, pack, up
from engine.messages import Close, GetStats, Live, Open, Refused, SlotsChanged, StatsTaken
from engine.shm import Batch

DOWN = [
    Open(3, OpenParams(voice="a", voice_audio=b"\x00\xff" * 3000, seed=2**63 - 1)),
    Fed(Batch(17, 3), 12.5),
    Close(2**62),
    GetStats(0),
]
UP = [
    Loaded(
        EngineSpec(
            model="m",
            sample_rate=1,
            frame_size=2,
            slots=3,
            startup_frames=4,
            max_in_flight=5,
            voices=("a", "b"),
        )
    ),
    Stepped(Batch(9, 2), 0.25, 2, ["", "ü" * 70_000], [Ended(1, 2, 3, "why")]),
    Stepped(Batch(10, 1), 0.5, 1),
    Live(Lease(4, 1)),
    Refused(5, "bad_params", "no", "voice"),
    StatsTaken(
        6,
        EngineStats(
            slots=1,
            free=1,
            prefill=0,
            live=0,
            draining=0,
            queued_frames=0,
            steps=0,
            frames=0,
            stale_frames=0,
            restarts=0,
        ),
    ),
    SlotsChanged(4, "4 sessions: why"),
    Failed("last words"),
]


@given(st.lists(st.integers(0, 150_000), max_size=20))
def test_any_chunking_gives_the_same_messages(cuts: list[int]) -> None:
    for messages, unpacker in ((DOWN, down()), (UP, up())):
        data = b"".join(map(pack, messages))
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        got: list[object] = []
        for start, end in pairwise(edges):
            got += unpacker.push(data[start:end])
        assert got == messages


def test_byte_by_byte() -> None:
    unpacker = down()
    data = pack(DOWN[1]) + pack(DOWN[2])
    assert [m for at in range(len(data)) for m in unpacker.push(data[at : at + 1])] == DOWN[1:3]


def test_the_other_directions_messages_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        down().push(pack(Failed("x")))


def test_a_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LIMIT", 1000)
    with pytest.raises(EngineError, match=r"Open of .* bytes"):
        pack(DOWN[0])


@pytest.mark.parametrize(
    "error", [NoFreeSlot("full"), BadParams("voice", "no such voice"), EngineError("broken")]
)
def test_refusals_keep_their_exception(error: EngineError) -> None:
    (message,) = up().push(pack(Refused.by(1, error)))
    assert isinstance(message, Refused)
    again = message.error()
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "field", None) == getattr(error, "field", None)


def test_foreign_exceptions_are_named() -> None:
    assert str(Refused.by(1, KeyError("k")).error()) == "KeyError: 'k'"
