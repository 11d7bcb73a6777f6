"""MessagePack with NumPy arrays in it, as OpenPI's clients and servers write it.

An array is a map `{b"__ndarray__": True, b"data": bytes, b"dtype": dtype.str, b"shape": [...]}`, a
NumPy scalar `{b"__npgeneric__": True, b"data": value, b"dtype": dtype.str}`; these keys are of
MessagePack's *bin* type (`openpi_client.msgpack_numpy`). What is read may also have the older form
`{nd, type, kind, shape, data}` of the package `msgpack-numpy`.

Reading is strict: what it lets through is plain data and arrays that own their memory, in native
byte order. Nothing else of ours is imported and nothing newer than Python 3.10 used, for policies
read this in interpreters of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, Union, cast

import msgpack
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = Union[
    bool, int, float, str, bytes, Array, "np.generic[Any]", list["Value"], dict[str, "Value"], None
]
"""What a message may hold."""

MAX_ITEMS: Final = 1 << 20
"""Elements of all lists and maps of one message: numbers in bulk belong into arrays."""

_DTYPE: Final = re.compile(
    r"[<>|=]?(b1|[iu][1248]|f[248]|[SU][1-9]\d{0,5}|[mM]8(\[\d*[a-zA-Zμ]+\])?)"
)
_NAMES: Final = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_LAST_CODE_POINT: Final = 0x10FFFF


class CodecError(ValueError):
    """Bytes that are no message, or a value that can't be put into one. Says what is wrong."""


def packb(value: object) -> bytes:
    """Packs None, booleans, numbers, text, bytes, arrays (or what has `__array__`), and lists,
    tuples and maps with text keys of these. Raises CodecError, which names the field.
    """
    try:
        return bytes(msgpack.packb(_plain(value, "")))
    except (OverflowError, RecursionError, ValueError) as error:
        if isinstance(error, CodecError):
            raise
        raise CodecError(str(error)) from error


def unpackb(data: bytes | bytearray | memoryview) -> Value:
    """Reads one message. Raises CodecError for anything else."""
    reader = _Reader()
    try:
        value = msgpack.unpackb(
            data,
            object_pairs_hook=reader.map,
            list_hook=reader.list,
            ext_hook=_refuse_extension,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
        )
        return reader.checked(value)
    except CodecError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise CodecError(f"not a message: {error}") from error


def _plain(value: object, field: str) -> object:
    """The value with markers in place of arrays."""
    if isinstance(value, np.ndarray):
        dtype = _written(value.dtype, field)
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return {b"__ndarray__": True, b"data": flat.data, b"dtype": dtype, b"shape": value.shape}
    if isinstance(value, np.generic):
        dtype = _written(value.dtype, field)
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": dtype}
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise CodecError(f"{field or 'message'}: {value} is too large")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise CodecError(f"{field or 'message'}: the key {key!r} is no text")
        return {
            key: _plain(inner, f"{field}.{key}" if field else key) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{field}[{at}]") for at, inner in enumerate(value)]
    if hasattr(value, "__array__"):
        return _plain(np.asarray(value), field)
    raise CodecError(f"{field or 'message'}: a {type(value).__name__} can't be sent")


def _written(dtype: np.dtype[Any], field: str) -> str:
    if not _DTYPE.fullmatch(dtype.str):
        raise CodecError(f"{field or 'message'}: arrays of {dtype} can't be sent")
    return dtype.str


class _Reader:
    """What msgpack calls for each list and map of one message, the innermost first."""

    def __init__(self) -> None:
        self._items = 0

    def list(self, items: list[Value]) -> list[Value]:
        self._count(len(items))
        for item in items:
            self.checked(item)
        return items

    def map(self, pairs: Sequence[tuple[str | bytes, Value]]) -> Value:
        self._count(len(pairs))
        fields: dict[str, Value] = {}
        marked = False
        for key, value in pairs:
            if isinstance(key, bytes):
                marked = True
                key = key.decode("ascii")
            if key in fields:
                raise CodecError(f"the key {key!r} comes twice")
            fields[key] = self.checked(value)
        if "__ndarray__" in fields:
            return _read_array(_exactly(fields, "__ndarray__", {"data", "dtype", "shape"}))
        if "__npgeneric__" in fields:
            return _read_scalar(_exactly(fields, "__npgeneric__", {"data", "dtype"}))
        if "nd" in fields and (marked or {"type", "data"} <= fields.keys()):
            return _read_older(fields)
        if marked:
            raise CodecError("a map has keys that are bytes")
        return fields

    def checked(self, value: Value) -> Value:
        """Times are the one type that msgpack makes of its own."""
        if isinstance(value, msgpack.Timestamp):
            raise CodecError("times can't be read")
        return value

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > MAX_ITEMS:
            raise CodecError(f"more than {MAX_ITEMS} elements outside of arrays")


def _refuse_extension(code: int, _: bytes) -> Value:
    raise CodecError(f"extension type {code} can't be read")


def _exactly(fields: dict[str, Value], marker: str, names: set[str]) -> dict[str, Value]:
    if fields[marker] is not True:
        raise CodecError(f"{marker} is not true")
    if fields.keys() != {marker, *names}:
        raise CodecError(f"{marker} with the keys {sorted(fields)}")
    return fields


def _read_array(fields: dict[str, Value]) -> Array:
    return _array(_data(fields["data"]), _dtype(fields["dtype"]), _shape(fields["shape"]))


def _read_older(fields: dict[str, Value]) -> Value:
    """`kind` is the dtype's or, from `msgpack-numpy`, empty or absent."""
    nd = fields["nd"]
    if type(nd) is not bool:
        raise CodecError("nd is neither true nor false")
    names = {"nd", "type", "data", "shape"} if nd else {"nd", "type", "data"}
    if not names <= fields.keys() <= {*names, "kind"}:
        raise CodecError(f"nd with the keys {sorted(fields)}")
    dtype = _dtype(fields["type"])
    if _text(fields.get("kind", ""), "kind") not in ("", dtype.kind):
        raise CodecError(f"kind is not {dtype.kind!r}, that of {dtype.str}")
    array = _array(_data(fields["data"]), dtype, _shape(fields["shape"]) if nd else ())
    return array if nd else array[()]


def _read_scalar(fields: dict[str, Value]) -> np.generic[Any]:
    value, dtype = fields["data"], _dtype(fields["dtype"])
    kinds: dict[str, tuple[type, ...]] = {
        "b": (bool,),
        "i": (int,),
        "u": (int,),
        "f": (float, int),
        "U": (str,),
        "S": (bytes,),
    }
    allowed = kinds.get(dtype.kind, ())
    if type(value) not in allowed:
        raise CodecError(f"a {type(value).__name__} as a scalar of {dtype.str}")
    with np.errstate(over="raise"):
        try:
            scalar = np.array(value, dtype)
        except FloatingPointError as error:
            raise CodecError(f"{value!r} does not fit {dtype.str}") from error
    if dtype.kind in "iuUS" and scalar.item() != value:  # cut off, or in NumPy 1 wrapped around
        raise CodecError(f"{value!r} does not fit {dtype.str}")
    return cast("np.generic[Any]", scalar[()])


def _array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    expected = math.prod(shape) * dtype.itemsize
    if expected != len(data):
        raise CodecError(f"{len(data)} bytes for an array of {expected}")
    array: Array = np.ndarray(shape, dtype, buffer=data)
    array = array.astype(dtype.newbyteorder("="))  # copies: what it gives may be written to
    if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise CodecError("a boolean that is neither 0 nor 1")
    if dtype.kind == "U" and array.size:
        points = np.frombuffer(array.tobytes(), np.uint32)
        if points.max() > _LAST_CODE_POINT:
            raise CodecError("text outside of Unicode")
    return array


def _dtype(value: Value) -> np.dtype[Any]:
    name = _text(value, "dtype")
    if not _DTYPE.fullmatch(name) and name not in _NAMES:
        raise CodecError(f"the dtype {name[:40]!r} can't be read")
    return np.dtype(name)


def _text(value: Value, field: str) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise CodecError(f"{field} is no text")
    return value


def _data(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise CodecError("data is not of MessagePack's bin type")
    return value


def _shape(value: Value) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise CodecError("shape is no list")
    sizes = tuple(size for size in value if type(size) is int and size >= 0)
    if len(sizes) != len(value) or len(sizes) > 32:
        raise CodecError("shape is not up to 32 sizes of at least 0")
    return sizes
