import math
import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from malformed_ndarrays import MALFORMED, array, marked, scalar

from media.ndarray_msgpack import MAX_ITEMS, CodecError, packb, unpackb

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.unicode_string_dtypes(max_len=5),
    hnp.byte_string_dtypes(max_len=5),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    ARRAYS,
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5).filter(lambda k: k not in MARKS), inner, max_size=3)
    ),
    max_leaves=8,
)
MARKS = ("nd", "__ndarray__", "__npgeneric__")


def same(a, b):
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and b.dtype == a.dtype.newbyteorder("=")
            and b.shape == a.shape
            and b.flags.writeable
            and a.astype(b.dtype).tobytes() == b.tobytes()
        )
    if isinstance(a, list | tuple):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@given(VALUES)
def test_what_is_packed_is_read_again(value):
    assert same(value, unpackb(packb(value)))


@given(ARRAYS.filter(lambda array: array.ndim > 0))
def test_any_memory_layout_is_packed(array):
    assert same(np.ascontiguousarray(array.T[::-1]), unpackb(packb(array.T[::-1])))


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1.5),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.str_("é"),
        np.bytes_(b"x"),
    ],
)
def test_scalars_keep_their_type(value):
    read = unpackb(packb({"x": value}))["x"]
    assert type(read) is type(value)
    assert read == value


def test_markers_are_as_openpi_writes_them():
    raw = msgpack.unpackb(packb({"x": np.zeros((2, 3), np.uint8), "y": np.float32(2)}))
    assert raw["x"] == array(data=b"\x00" * 6, dtype="|u1", shape=[2, 3])
    assert raw["y"] == scalar(data=2.0, dtype="<f4")


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("kind", [None, "", "f"])
def test_the_older_form_is_read(as_bytes, kind):
    fields = {"nd": True, "type": "<f4", "shape": [2], "data": struct.pack("<2f", 1, 2)}
    if kind is not None:
        fields["kind"] = kind
    sent = marked(**fields) if as_bytes else fields
    assert same(np.array([1, 2], "<f4"), unpackb(msgpack.packb(sent)))
    one = {"nd": False, "type": "<f4", "data": struct.pack("<f", 3)}
    assert unpackb(msgpack.packb(marked(**one) if as_bytes else one)) == np.float32(3)


def test_a_map_that_has_a_key_nd_is_still_a_map():
    assert unpackb(packb({"nd": 3, "type": "x"})) == {"nd": 3, "type": "x"}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
def test_malformed_values_are_refused(value):
    for sent in (value, {"observation": [value]}):
        with pytest.raises(CodecError):
            unpackb(msgpack.packb(sent, strict_types=False))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\xa1x",
        b"\x01\x01",
        b"\x82\xa1x\x01\xa1x\x02",
        b"\xa2\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 10_000,
        b"\x81\xa1x" * 10_000,
    ],
    ids=repr,
)
def test_malformed_bytes_are_refused(data):
    with pytest.raises(CodecError):
        unpackb(data)


def test_elements_outside_of_arrays_are_bounded():
    half = [0] * (MAX_ITEMS // 2)
    with pytest.raises(CodecError, match="elements"):
        unpackb(msgpack.packb([half, half, half]))
    with pytest.raises(CodecError):
        unpackb(msgpack.packb([0] * (MAX_ITEMS + 1)))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data):
    try:
        unpackb(data)
    except CodecError as error:
        assert str(error)


@given(VALUES, st.data())
def test_no_damage_does_more_than_be_refused(value, data):
    packed = bytearray(packb({"x": value, "image": np.zeros((2, 3), "<f4")}))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpackb(packed)
    except CodecError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"a": {"b": [1, {2}]}}, r"a\.b\[1\]"),
        ({"actions": np.array([object()])}, "actions"),
        ({"actions": np.zeros(2, complex)}, "actions"),
        ({"x": {1: 2}}, "x"),
        ({"x": 2**64}, "x"),
        ({1: 2}, "message"),
    ],
)
def test_what_cannot_be_packed_is_named(value, field):
    with pytest.raises(CodecError, match=field):
        packb(value)


def test_what_has_an_array_is_packed_as_one():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3.0)

    assert same(np.arange(3.0), unpackb(packb(Tensor())))


def test_nan_and_infinity_are_numbers():
    assert math.isnan(unpackb(packb({"x": math.nan}))["x"])
    assert unpackb(packb(np.array([np.inf])))[0] == math.inf
