"""Reads an ETDump, which is ExecuTorch's record of a run: which operators ran, and for how long."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.flatbuffer import Table, root

_SIZE_BYTES = 4
"""Number of bytes in the size field, which precedes the buffer."""

_MARK = b"ED"
_DUMP_RUNS, _RUN_EVENTS, _EVENT_PROFILE = 1, 3, 0
_NAME, _INSTRUCTION, _DELEGATE_NUMBER, _DELEGATE_NAME = 0, 2, 3, 4
_START, _END = 6, 7

NO_NUMBER = -1
_OPERATOR = "native_call_"
_DELEGATE_CALL = "DELEGATE_CALL"
_RUN = "Method::execute"


class Event(NamedTuple):
    """A named span of time. Times are in ns on the runtime's clock."""

    name: str
    instruction: int
    of_delegate: bool
    """True if a delegate, such as XNNPACK, reported the event."""
    start_ns: int
    duration_ns: int


class Run(NamedTuple):
    whole: Event
    operators: Sequence[Event]
    """The operators that ran, in order; a delegate that reports no operators counts as one operator."""


def runs(path: Path) -> list[Run]:
    """Returns the runs in the dump. Raises a ValueError if the file is not a dump."""
    dump = root(memoryview(path.read_bytes())[_SIZE_BYTES:], _MARK)
    found = []
    for run in dump.tables(_DUMP_RUNS):
        events = [*_events(run)]
        whole = next((event for event in events if event.name == _RUN), None)
        if whole is not None:
            found.append(Run(whole, [*_operators(events)]))
    return found


def _events(run: Table) -> Iterator[Event]:
    for event in run.tables(_RUN_EVENTS):
        profile = event.table(_EVENT_PROFILE)
        if profile is None:
            continue
        start_ns, end_ns = profile.number(_START, "Q"), profile.number(_END, "Q")
        name = profile.text(_DELEGATE_NAME)
        number = profile.number(_DELEGATE_NUMBER, "i", NO_NUMBER)
        yield Event(
            name or profile.text(_NAME),
            profile.number(_INSTRUCTION, "i", NO_NUMBER),
            bool(name) or number != NO_NUMBER,
            start_ns,
            end_ns - start_ns,
        )


def _operators(events: Sequence[Event]) -> Iterator[Event]:
    inside = {event.instruction for event in events if event.of_delegate}
    chosen = [
        event._replace(name=event.name.removeprefix(_OPERATOR))
        for event in events
        if event.of_delegate
        or event.name.startswith(_OPERATOR)
        or (event.name == _DELEGATE_CALL and event.instruction not in inside)
    ]
    yield from sorted(chosen, key=lambda event: event.start_ns)
