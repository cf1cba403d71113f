"""Server-sent events are reassembled however the network splits them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.formats import sse
from harness.core.formats.sse import BadEvents, EventParser

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
SKIPPED = st.sampled_from(["", ": comment", ":", "event: message", "id: 7", "retry: 10", "dat: a"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Draws the bytes of a stream, and the data of its events."""
    wire, events = "", []
    for lines in draw(st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6)):
        end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
        space = draw(st.sampled_from(["data: ", "data:"]))
        if any(line.startswith(" ") for line in lines):
            space = "data: "
        for line in lines:
            extra = draw(SKIPPED)
            wire += extra + end if extra else ""
            wire += space + line + end
        wire += end * draw(st.integers(1, 3))
        events.append("\n".join(lines).encode())
    return wire.encode(), events


@given(streams(), st.data())
def test_events_are_the_same_wherever_they_are_cut(
    stream: tuple[bytes, list[bytes]], data: st.DataObject
) -> None:
    wire, events = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    parser, found = EventParser(), []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += parser.feed(wire[begin:end])
    assert found == events
    assert parser.is_whole


@given(streams())
def test_events_are_the_same_byte_by_byte(stream: tuple[bytes, list[bytes]]) -> None:
    wire, events = stream
    parser = EventParser()
    assert [e for byte in wire for e in parser.feed(bytes([byte]))] == events


def test_an_event_is_out_as_soon_as_its_blank_line_is_there() -> None:
    parser = EventParser()
    assert parser.feed(b'data: {"a":1}\r\n') == []
    assert not parser.is_whole
    assert parser.feed(b"\r") == [b'{"a":1}']
    assert parser.feed(b"\ndata: [DONE]") == []
    assert parser.feed(b"\n\n") == [sse.DONE]
    assert parser.is_whole


def test_a_cut_inside_a_character_does_no_harm() -> None:
    parser = EventParser()
    text = "data: 日本\n\n".encode()
    assert parser.feed(text[:7]) == []
    assert parser.feed(text[7:]) == ["日本".encode()]


def test_a_byte_order_mark_is_skipped_once() -> None:
    parser = EventParser()
    assert parser.feed(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [b"a"]


def test_a_stream_that_was_cut_off_is_not_whole() -> None:
    for cut in (b"data: a", b"data: a\n", b"data: a\n\nda"):
        parser = EventParser()
        parser.feed(cut)
        assert not parser.is_whole


@pytest.mark.parametrize("piece", [b"data: " + bytes(1000), b"data: " + b"x" * 999 + b"\n"])
def test_an_event_without_end_is_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_EVENT_BYTES", 10_000)
    parser = EventParser()
    for _ in range(9):
        assert parser.feed(piece) == []
    with pytest.raises(BadEvents, match=r"^an event is longer than 10000 bytes$"):
        parser.feed(piece)
