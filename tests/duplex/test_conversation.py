import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.conversation import (
    MAX_CHARS,
    MAX_ITEM_CHARS,
    MAX_ITEMS,
    MAX_SPOKEN_CHARS,
    Conversation,
    Item,
    Part,
)
from duplex.errors import SessionError


def spoken(*words, ms=100.0):
    part = Part(type="output_audio")
    for word in words:
        part.speak(ms, word)
    return part


def conversation(*ids):
    made = Conversation()
    for item_id in ids:
        made.add(Item(id=item_id))
    return made


def ids(made):
    return [item.id for item in made.items]


def refusal(call, *args):
    with pytest.raises(SessionError) as caught:
        call(*args)
    return caught.value.code, caught.value.param


def test_items_keep_their_order():
    made = conversation("a", "b")
    assert made.add(Item(id="c"), after="a") == "a"
    assert made.add(Item(id="d"), after="root") is None
    assert made.add(Item(id="e")) == "b"
    assert ids(made) == ["d", "a", "c", "b", "e"]
    assert made.last_id == "e"
    assert (made.before("c"), made.before("d")) == ("a", None)
    made.delete("c")
    assert "c" not in made
    assert ids(made) == ["d", "a", "b", "e"]


def test_refusals_change_nothing():
    made = conversation("a")
    assert refusal(made.add, Item(id="a")) == ("invalid_value", "item.id")
    assert refusal(made.add, Item(id="b"), "nobody") == ("item_not_found", "previous_item_id")
    assert refusal(made.before, "nobody") == ("item_not_found", "item_id")
    assert refusal(made.get, "nobody") == ("item_not_found", "item_id")
    assert refusal(made.delete, "nobody") == ("item_not_found", "item_id")
    assert ids(made) == ["a"]


@pytest.mark.parametrize(
    ("end", "text", "ms"),
    [
        (0, "", 0),
        (50, "one ", 50),
        (100, "one ", 100),
        (101, "one two ", 101),
        (385, "one two three", 300),
    ],
)
def test_truncation_keeps_what_was_heard(end, text, ms):
    made = Conversation()
    item = Item(id="a", role="assistant", parts=[spoken("one ", "two ", "three")])
    made.add(item)
    assert made.truncate("a", 0, end) == ms
    assert (item.parts[0].words or "", item.parts[0].audio_ms) == (text, ms)
    assert item.status == "incomplete"


def test_only_the_agents_speech_is_truncated():
    made = Conversation()
    made.add(Item(id="user", role="user", parts=[Part(type="input_audio")]))
    made.add(Item(id="text", role="assistant", parts=[Part(type="output_text", text="x")]))
    made.add(Item(id="agent", role="assistant", parts=[spoken("x")]))
    assert refusal(made.truncate, "user", 0, 1) == ("invalid_value", "item_id")
    assert refusal(made.truncate, "text", 0, 1) == ("invalid_value", "content_index")
    assert refusal(made.truncate, "agent", 1, 1) == ("invalid_value", "content_index")
    assert refusal(made.truncate, "agent", -1, 1) == ("invalid_value", "content_index")
    assert refusal(made.truncate, "agent", 0, -1) == ("invalid_value", "audio_end_ms")
    assert refusal(made.truncate, "nobody", 0, 1) == ("item_not_found", "item_id")


@given(st.lists(st.text(max_size=5), max_size=20), st.lists(st.floats(0, 2_500), max_size=4))
def test_truncation_is_a_prefix_and_only_shrinks(words, ends):
    part = spoken(*words)
    made = Conversation()
    made.add(Item(id="a", role="assistant", parts=[part]))
    whole = part.words or ""
    for end in ends:
        before = part.audio_ms
        assert made.truncate("a", 0, end) == part.audio_ms == min(before, end)
        assert whole.startswith(part.words or "")


def test_the_oldest_items_make_room():
    made = conversation(*(str(number) for number in range(MAX_ITEMS)))
    made.get("1").status = "in_progress"
    made.add(Item(id="new"))
    made.add(Item(id="newer"), after="3")
    assert len(made) == MAX_ITEMS
    assert ids(made)[:4] == ["1", "3", "newer", "4"]
    assert made.last_id == "new"


def test_words_are_bounded_too():
    made = Conversation()
    text = "x" * (MAX_ITEM_CHARS - 100)
    for number in range(20):
        made.add(Item(id=str(number), role="user", parts=[Part(type="input_text", text=text)]))
    assert sum(item.chars for item in made.items) <= MAX_CHARS
    assert len(made) == 4
    assert made.last_id == "19"
    for item in (
        Item(id="long", parts=[Part(type="input_text", text="x" * MAX_ITEM_CHARS)]),
        Item(id="many", parts=[Part(type="input_text", text="")] * 5_000),
        Item(id="call", type="function_call_output", output="x" * (MAX_ITEM_CHARS + 1)),
    ):
        assert refusal(made.add, item) == ("invalid_value", "item")
    assert made.last_id == "19"


def test_a_day_of_speech_is_as_large_as_an_hour():
    part = Part(type="output_audio")
    for number in range(30_000):
        part.speak(80.0, f"{number:06} ")
    assert part.audio_ms == 30_000 * 80
    assert len(part.words) <= MAX_SPOKEN_CHARS
    assert part.words.endswith("029999 ")
    part.cut(29_998 * 80.0)
    assert part.words.endswith("029997 ")
    assert part.spoken_chars == len(part.words)


def test_what_never_left_is_taken_back():
    part = spoken("one ", "two ", "three ")
    part.take_back(150.0)
    assert (part.words, part.audio_ms) == ("one two ", 150)
    part.speak(100.0, "four")
    assert part.words == "one two four"
