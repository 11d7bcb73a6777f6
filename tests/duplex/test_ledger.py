import pytest

from duplex.conversation import Item, Part
from duplex.errors import SessionError
from duplex.ledger import Ledger


def answer(*words, status="completed", kind="output_audio"):
    part = Part(type=kind)
    for word in words:
        part.speak(100.0, word)
    return Item(id="item_r", role="assistant", status=status, parts=[part])


def ledger_of(item, turn=0):
    ledger = Ledger()
    ledger.begin("r", item, turn)
    return ledger


def ack(ledger, played_ms, **fields):
    asked = {"response_id": "r", "item_id": None, "current": None, "committed_ms": None}
    return ledger.ack(played_ms=played_ms, **asked | {"truncate": False} | fields)


def test_what_was_not_acknowledged_is_not_in_the_history():
    item = answer("one ", "two ", "three")
    ledger = ledger_of(item)
    ack(ledger, 250, committed_ms=150)
    ledger.end("r", commit=False)
    assert item.parts[0].words == "one two three"
    ledger.next_turn(1, current=None)
    assert (item.parts[0].words, item.parts[0].audio_ms) == ("one two ", 150)
    with pytest.raises(SessionError) as caught:
        ack(ledger, 300)
    assert caught.value.code == "playback_ack_too_late"


def test_committed_when_done_all_stays():
    item = answer("one ", "two ")
    ledger = ledger_of(item)
    ledger.end("r", commit=True)
    ledger.next_turn(1, current=None)
    assert (item.parts[0].words, item.status) == ("one two ", "completed")


def test_a_response_in_progress_is_never_settled():
    item = answer("one ", status="in_progress")
    ledger = ledger_of(item)
    ledger.next_turn(1, current="r")
    assert ack(ledger, 100, current="r").committed_ms == 100
    ledger.next_turn(2, current="r")
    item.parts[0].speak(100.0, "two")
    assert ack(ledger, 100, response_id=None, current="r", truncate=True).committed_ms == 100
    item.parts[0].speak(100.0, "three")
    assert item.parts[0].words == "one three", "what comes later keeps its place in time"
    assert ack(ledger, 1_000, current="r").committed_ms == 300


def test_text_is_read_not_played():
    item = answer("one ", "two ", kind="output_text")
    ledger = ledger_of(item)
    ack(ledger, 100, truncate=True)
    ledger.next_turn(1, current=None)
    assert item.parts[0].words == "one two "


def test_a_response_whose_acks_are_forgotten_is_settled():
    item = answer("one ")
    ledger = ledger_of(item)
    for number in range(64):
        ledger.begin(f"r{number}", answer("x"), 0)
    assert item.parts[0].words is None
    assert ledger.last == "r63"
    with pytest.raises(SessionError) as caught:
        ack(ledger, 1)
    assert (caught.value.code, caught.value.param) == ("playback_item_mismatch", "response_id")
