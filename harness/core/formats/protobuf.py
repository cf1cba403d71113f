"""Protobuf's wire format, field by field and without a schema: what is read of an ONNX file.

The `onnx` package is no dependency of the frameworks, and would hold a file three times while it is
parsed; here only the keys and lengths of fields are looked at. Every function raises ValueError for
bytes that are no message.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

_PRODUCER, _PRODUCER_VERSION, _OPSET = 2, 3, 8
"""Fields of ONNX's ModelProto."""

_DOMAIN, _VERSION = 1, 2
"""Of its OperatorSetIdProto."""

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field; numbers of fixed width are skipped, none is needed here. So are
    groups, which parsers skip, too.
    """
    position = depth = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            if not depth:
                yield number, value
        elif kind == _BYTES:
            size, position = _varint(message, position)
            if position + size > len(message):
                raise ValueError("the file is cut")
            if not depth:
                yield number, message[position : position + size]
            position += size
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        elif kind == _GROUP or (kind == _GROUP_END and depth):
            depth += 1 if kind == _GROUP else -1
        else:
            raise ValueError("not a protobuf message")


def messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Those in the fields of that number."""
    return (v for n, v in fields(message) if n == wanted and isinstance(v, memoryview))


def onnx_origin(path: Path) -> dict[str, str]:
    """`producer`, what wrote an ONNX file, and `opsets`, e.g. `ai.onnx 17`; without what it does not
    say, and empty where it is no such file.
    """
    try:
        with path.open("rb") as file:  # the map outlives it, and goes with its last slice
            model = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        found = dict(fields(model))
        opsets = ", ".join(_opset(message) for message in messages(model, _OPSET))
    except (OSError, ValueError):
        return {}
    words = [_text(found[n]) for n in (_PRODUCER, _PRODUCER_VERSION) if n in found]
    told = {"producer": " ".join(words).strip(), "opsets": opsets}
    return {name: value for name, value in told.items() if value}


def _opset(message: memoryview) -> str:
    found = dict(fields(message))
    return f"{_text(found.get(_DOMAIN)) or 'ai.onnx'} {found.get(_VERSION)}"


def _text(value: object) -> str:
    """What is no text is told as far as it is."""
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else ""


def packed(numbers: memoryview) -> Iterator[int]:
    """Repeated numbers in one field, as newer writers put them."""
    position = 0
    while position < len(numbers):
        number, position = _varint(numbers, position)
        yield number


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """-> the number at `position`, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("the file is cut")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("not a protobuf message")
