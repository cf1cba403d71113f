"""Reads and writes Protobuf messages (the format of ONNX files and gRPC) field by field, without a schema.

Backends therefore do not need the `onnx` package, which would keep three copies of a file in memory while parsing it.
These functions read only the keys and lengths of fields. If the bytes are not a message, they raise ValueError.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

_PRODUCER, _PRODUCER_VERSION, _OPSET = 2, 3, 8
"""Field numbers in ONNX's ModelProto."""

_DOMAIN, _VERSION = 1, 2
"""Field numbers in ONNX's OperatorSetIdProto."""

_OWN_DOMAINS = ("", "ai.onnx")

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


def mapped(path: Path) -> memoryview:
    """Maps the file into memory. The mapped content stays valid after the file is closed. Raises ValueError if the file
    is empty.
    """
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields each field's number and value; skips groups and fixed-width numbers."""
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
                raise ValueError("the file is truncated")
            if not depth:
                yield number, message[position : position + size]
            position += size
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        elif kind == _GROUP or (kind == _GROUP_END and depth):
            depth += 1 if kind == _GROUP else -1
        else:
            raise ValueError("not a protobuf message")


def messages(message: memoryview, number: int) -> Iterator[memoryview]:
    return (v for n, v in fields(message) if n == number and isinstance(v, memoryview))


def onnx_origin(path: Path) -> dict[str, str]:
    """Returns `producer`, the program that wrote an ONNX file, and `opsets`, such as `ai.onnx 17`.

    Omits facts that the file does not contain. If the file is not an ONNX file, returns an empty dictionary.
    """
    try:
        model = mapped(path)
        values = dict(fields(model))
        opsets = ", ".join(_opset(message) for message in messages(model, _OPSET))
    except (OSError, ValueError):
        return {}
    words = [_text(values[n]) for n in (_PRODUCER, _PRODUCER_VERSION) if n in values]
    origin = {"producer": " ".join(words).strip(), "opsets": opsets}
    return {name: value for name, value in origin.items() if value}


def onnx_opset(path: Path) -> int | None:
    """Returns the version of the standard operators that an ONNX file declares; None if the file declares no version."""
    try:
        declared = [dict(fields(message)) for message in messages(mapped(path), _OPSET)]
    except (OSError, ValueError):
        return None
    versions = (one.get(_VERSION) for one in declared if _text(one.get(_DOMAIN)) in _OWN_DOMAINS)
    return next((version for version in versions if isinstance(version, int)), None)


def _opset(message: memoryview) -> str:
    values = dict(fields(message))
    return f"{_text(values.get(_DOMAIN)) or 'ai.onnx'} {values.get(_VERSION)}"


def _text(value: object) -> str:
    """Decodes the bytes, with replacement characters for invalid UTF-8; returns '' if the field is a number."""
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else ""


def packed(numbers: memoryview) -> Iterator[int]:
    position = 0
    while position < len(numbers):
        number, position = _varint(numbers, position)
        yield number


def signed(number: int) -> int:
    """Returns the int64 number that has the same bits as `number`."""
    return number - (1 << 64) if number >= 1 << 63 else number


def varint(number: int) -> bytes:
    """Encodes a non-negative number."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def opening(number: int, size: int) -> bytes:
    """Returns the key and the length of a field with `size` bytes of content: a string, bytes or a message."""
    return varint(number << 3 | _BYTES) + varint(size)


def field(number: int, value: bytes | memoryview) -> bytes:
    """Returns a complete field that contains a string, bytes or a message."""
    return opening(number, len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """Returns a complete field that contains a non-negative integer."""
    return varint(number << 3 | _VARINT) + varint(value)


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Returns the number at `position`, and the position that follows it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("the file is truncated")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("not a protobuf message")
