import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.wire.fitting import MARK, fit


def encoded(fields):
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def test_what_fits_is_passed_as_it_is():
    message = encoded({"type": "a", "text": "b"})
    assert fit(message, len(message)) is message


def test_the_longest_text_is_cut_and_named():
    fields = {"type": "response.done", "n": 1, "response": {"output": [{"transcript": "x" * 900}]}}
    short = json.loads(fit(encoded(fields), 400))
    transcript = short["response"]["output"][0]["transcript"]
    assert transcript.endswith(MARK)
    assert set(transcript) == {"x", MARK}
    assert len(transcript) > 200
    assert short["cut"] == ["response.output.0.transcript"]
    assert (short["type"], short["n"]) == ("response.done", 1)


@given(st.lists(st.text(max_size=3_000), min_size=1, max_size=6), st.integers(400, 4_000))
def test_whatever_the_texts_it_fits_and_is_json(texts, limit):
    fields = {"type": "a", "texts": texts}
    fitted = fit(encoded(fields), limit)
    assert len(fitted) <= limit or fitted == encoded(fields)
    for text, kept in zip(texts, json.loads(fitted)["texts"], strict=True):
        assert text.startswith(kept.removesuffix(MARK))


def test_a_message_of_no_long_texts_is_refused():
    with pytest.raises(ValueError, match="can't be cut to 400"):
        fit(encoded({"type": "a", "numbers": list(range(1_000))}), 400)
