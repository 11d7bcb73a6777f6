"""Maps that look like arrays, in MessagePack's terms, and are none."""

import msgpack


def marked(**fields):
    return {key.encode(): value for key, value in fields.items()}


def array(**changes):
    fields = {"__ndarray__": True, "data": b"\x00" * 8, "dtype": "<f4", "shape": [2]}
    return marked(**{k: v for k, v in (fields | changes).items() if v is not ...})


def scalar(**changes):
    return marked(**({"__npgeneric__": True, "data": 1, "dtype": "<i4"} | changes))


MALFORMED = {
    "object": array(dtype="|O"),
    "structured": array(dtype="f4,f4"),
    "void": array(dtype="|V4"),
    "complex": array(dtype="<c8"),
    "long double": array(dtype="<f16"),
    "no such dtype": array(dtype="<q9"),
    "dtype of zero bytes": array(dtype="<U0", data=b""),
    "dtype is a number": array(dtype=4),
    "dtype is a list": array(dtype=[["x", "<f4"]]),
    "dtype in another alphabet": array(dtype="<f４".encode()),
    "no such unit": array(dtype="<M8[parsec]"),
    "too little data": array(data=b"\x00" * 7),
    "too much data": array(data=b"\x00" * 9),
    "data as text": array(data="00000000"),
    "data as a list": array(data=[0, 0]),
    "negative size": array(shape=[-2]),
    "two negative sizes": array(shape=[-1, -2]),
    "size is a fraction": array(shape=[2.0]),
    "size is a boolean": array(shape=[True, 2]),
    "shape is a number": array(shape=2),
    "shape of an overflow": array(shape=[2**62, 4]),
    "an overflow times zero": array(shape=[2**62, 2**62, 0], data=b""),
    "33 dimensions": array(shape=[1] * 32 + [2]),
    "no shape": array(shape=...),
    "no data": array(data=...),
    "another key": array(kind="f"),
    "mark is false": array(__ndarray__=False),
    "mark is 1": array(__ndarray__=1),
    "boolean of 2": array(dtype="|b1", data=b"\x02\x00"),
    "text outside of Unicode": array(dtype="<U1", shape=[2], data=b"\xff" * 8),
    "scalar of another type": scalar(data="1"),
    "scalar out of range": scalar(data=2**40),
    "boolean as an integer": scalar(data=True),
    "float out of range": scalar(data=1e300, dtype="<f4"),
    "scalar of a date": scalar(dtype="<M8[s]"),
    "text too long for its dtype": scalar(data="abc", dtype="<U2"),
    "older: structured": marked(nd=True, type=[["x", "<f4"]], kind="V", shape=[1], data=b"0000"),
    "older: object": marked(nd=True, type="|O", kind="O", shape=[1], data=b"pickle"),
    "older: complex": marked(complex=True, data="(1+2j)"),
    "older: another kind": marked(nd=True, type="<f4", kind="i", shape=[1], data=b"0000"),
    "older: no shape": marked(nd=True, type="<f4", kind="f", data=b"0000"),
    "older: nd is 2": marked(nd=2, type="<f4", shape=[1], data=b"0000"),
    "older: scalar of two": marked(nd=False, type="<f4", data=b"00000000"),
    "keys of bytes": {b"state": 1},
    "keys of numbers": {1: 2},
    "a time": {"x": msgpack.Timestamp(1)},
    "an extension": {"x": msgpack.ExtType(42, b"x")},
}
