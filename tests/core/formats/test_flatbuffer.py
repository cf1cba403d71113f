"""The FlatBuffers reader, tested with buffers that the FlatBuffers package builds."""

from typing import Any

import pytest

from harness.core.formats.flatbuffer import root
from tests.builders.refusals import refusal

flatbuffers: Any = pytest.importorskip("flatbuffers")

TEXT, NUMBERS, NUMBER, CHILD, CHILDREN, ABSENT = range(6)


def built() -> bytes:
    """Returns a table with a text, int16 numbers, an int32, a child with the number 99, and three children with 0, 1
    and 2.
    """
    builder = flatbuffers.Builder(0)

    def child(number: int) -> int:
        builder.StartObject(1)
        builder.PrependUint32Slot(0, number, 77)
        return int(builder.EndObject())

    text = builder.CreateString("größer")
    children = [child(number) for number in range(3)]
    builder.StartVector(4, len(children), 4)
    for one in reversed(children):
        builder.PrependUOffsetTRelative(one)
    listed = builder.EndVector()
    builder.StartVector(2, 2, 2)
    for number in (7, -3):
        builder.PrependInt16(number)
    numbers = builder.EndVector()
    inner = child(99)
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(TEXT, text, 0)
    builder.PrependUOffsetTRelativeSlot(NUMBERS, numbers, 0)
    builder.PrependInt32Slot(NUMBER, -5, 0)
    builder.PrependUOffsetTRelativeSlot(CHILD, inner, 0)
    builder.PrependUOffsetTRelativeSlot(CHILDREN, listed, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TE12")
    return bytes(builder.Output())


def read(content: bytes) -> tuple[object, ...]:
    table = root(memoryview(content), b"TE")
    inner = table.table(CHILD)
    return (
        table.text(TEXT),
        table.numbers(NUMBERS, "h"),
        table.number(NUMBER, "i"),
        inner and inner.number(0, "I"),
        [one.number(0, "I", 77) for one in table.tables(CHILDREN)],
    )


def test_fields_are_read_as_the_builder_wrote_them() -> None:
    assert read(built()) == ("größer", (-3, 7), -5, 99, [0, 1, 2])


def test_absent_fields_have_their_defaults() -> None:
    table = root(memoryview(built()), b"TE12")
    assert table.text(ABSENT) == ""
    assert table.numbers(ABSENT, "Q") == ()
    assert table.number(ABSENT, "q", -1) == -1
    assert table.table(ABSENT) is None
    assert table.tables(ABSENT + 100) == []


def test_another_format_is_refused() -> None:
    for content in (b"", b"1234567", built().replace(b"TE12", b"XX12")):
        said = refusal(root, memoryview(content), b"TE", error=ValueError)
        assert said == "it does not have the file identifier TE of its format"


def test_damage_is_a_value_error_or_another_content() -> None:
    whole = built()
    refused = 0
    for place in range(len(whole)):
        for value in (0, 1, 0x7F, 0xFF):
            content = bytearray(whole)
            content[place] = value
            try:
                read(bytes(content))
            except ValueError:
                refused += 1
    # The last bytes are only padding, so a buffer without them is still valid.
    for size in range(len(whole) - 4):
        with pytest.raises(ValueError, match=r"identifier|offset|vector|codec"):
            read(whole[:size])
    assert refused > 50
