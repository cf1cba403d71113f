"""Tabulates a profile's library level: hardware counters and valgrind's simulation. This module has no side effects."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.stats import trimmed_mean
from harness.results.pages.tables import Cell, Table, columns

Content = Mapping[str, Any]
"""The content of profile.json."""

SIMULATED = {
    "instructions": ("Ir",),
    "data reads": ("Dr",),
    "data writes": ("Dw",),
    "first-level data misses": ("D1mr", "D1mw"),
    "last-level misses": ("ILmr", "DLmr", "DLmw"),
}
"""Callgrind's events that make up each row."""


def library_tables(content: Content) -> Iterator[Table]:
    yield from _hardware(content)
    yield from _simulated(content)


def _hardware(content: Content) -> Iterator[Table]:
    counts = content.get("hardware")
    if not counts:
        return
    rows: list[list[Cell]] = [
        ["task-clock, ns" if name == "task-clock" else name, value, counts["reasons"][name]]
        for name, value in counts["per_call"].items()
    ]
    notes = [f"mean of {counts['runs']} bare calls, all threads"]
    cycles, done = (counts["per_call"].get(n) for n in ("cycles", "instructions"))
    if cycles and done:
        notes.append(f"{done / cycles:.2f} instructions per cycle")
    heads = columns("counter | per call [count] | reason")
    about = "perf_event counters around bare calls"
    yield Table("hardware", "Hardware", about, heads, rows, notes)


def _simulated(content: Content) -> Iterator[Table]:
    counts = content.get("simulated")
    if not counts:
        return
    calls = counts["calls"]
    rows: list[list[Cell]] = [
        [name, trimmed_mean([sum(call["counts"][e] for e in events) for call in calls]), None]
        for name, events in SIMULATED.items()
    ]
    whole = rows[0][1]
    for library in dict.fromkeys(name for call in calls for name in call["libraries"]):
        counted = trimmed_mean([call["libraries"].get(library, 0) for call in calls])
        shown = f"instructions in {library or 'generated code'}"
        rows.append([shown, counted, counted / float(whole or 1)])
    notes = [
        f"valgrind's simulation of {len(calls)} calls, one thread at a time; nothing was measured",
        *(f"simulated {cache}" for cache in counts["caches"]),
    ]
    if counts["not_simulated"]:
        unknown = ", ".join(counts["not_simulated"])
        notes.append(f"valgrind does not simulate {unknown}: this machine may run other code")
    heads = columns("counter | per call [count] | of instructions [share]")
    about = "instructions and cache misses of a call, simulated by valgrind"
    yield Table("simulated", "Simulated", about, heads, rows, notes)
