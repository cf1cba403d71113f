"""Tabulates machine.json: the host, copies by size, every benchmark, and points that could not be measured. This module
has no side effects.
"""

from collections.abc import Iterator, Sequence

from harness.core.units import counted
from harness.explain.machine import arithmetic, record
from harness.explain.machine.record import Content
from harness.machine.characterise.measured import WAITED_SHARE, Measured, of
from harness.machine.characterise.movement.memory_copy import EVICTED, WARM
from harness.results.pages.tables import Cell, Column, Table, columns, lines

_UNIT_OF_SETTING = {"bytes": "bytes", "threads": "count", "side": "count", "segment": "count"}
_OF_THEIR_OWN = ("memory-copy", "gemm", "convolution")
"""Benchmarks that get a special table instead of the general one."""

SHOWN_ROWS = 40


def text(content: Content) -> Iterator[str]:
    """Yields the tables as readable text."""
    machine = content["machine"]
    yield f"{'machine':<12}{machine['cpu']}, {counted(machine['cores_usable'], 'core')}"
    yield f"{'fingerprint':<12}{content['fingerprint']}"
    if best := arithmetic.peaks_line(content):
        yield f"{'peaks':<12}{best}"
    for table in tables(content):
        yield ""
        yield from lines(table, SHOWN_ROWS)


def tables(content: Content) -> list[Table]:
    points = record.points(content)
    peaks = arithmetic.peak_table(points, content)
    products = arithmetic.products(points, content)
    return [*peaks, *products, *_results(points), *_missing(points), _hygiene(content)]


def _results(points: Sequence[Measured]) -> Iterator[Table]:
    if copies := _measured(points, "memory-copy"):
        yield _copies(copies)
    for benchmark in dict.fromkeys(point.benchmark for point in points):
        if benchmark not in _OF_THEIR_OWN and (shown := _measured(points, benchmark)):
            yield _benchmark(benchmark, shown)


def _measured(points: Sequence[Measured], benchmark: str) -> list[Measured]:
    return [point for point in of(points, benchmark) if not point.missing]


def _copies(points: Sequence[Measured]) -> Table:
    """Makes a row per size and number of threads, with warm and evicted times side by side."""
    by_state = {(p.settings["bytes"], p.threads, p.settings["state"]): p for p in points}
    rows: list[list[Cell]] = []
    for size, threads in dict.fromkeys((p.settings["bytes"], p.threads) for p in points):
        row: list[Cell] = [size, threads]
        for state in (WARM, EVICTED):
            point = by_state.get((size, threads, state))
            row += _rate_and_spread(point)
        warm, evicted = row[2], row[5]
        both = isinstance(warm, float) and isinstance(evicted, float)
        rows.append([*row, warm / evicted if both else None])  # type: ignore[operator]
    heads = columns(
        "bytes [bytes] | threads [count] | warm [B/s] | std [B/s] | CV [share] | evicted [B/s]"
        "| evicted std [B/s] | evicted CV [share] | warm / evicted [ratio]"
    )
    notes = [
        "bytes copied: each is read once and written once; GB = 10^9 B",
        "evicted: between two copies, twice the size of the last cache is read and written; warm: no access in between",
        *_notes(points),
    ]
    about = "bandwidth of a copy in memory by size, median of the repetitions"
    return Table("memory-copy", "Copies", about, heads, rows, notes)


def _rate_and_spread(point: Measured | None) -> list[Cell]:
    return [None] * 3 if point is None else [point.per_s, point.std_per_s, point.variation]


def _benchmark(name: str, points: Sequence[Measured]) -> Table:
    settings = list(dict.fromkeys(key for point in points for key in point.settings))
    units = list(dict.fromkeys(point.unit for point in points if point.work))
    facts = [
        key
        for key in dict.fromkeys(key for point in points for key in point.facts)
        if any(isinstance(point.facts.get(key), int | float | str) for point in points)
    ]
    has_energy = any(point.joules is not None for point in points)
    rows: list[list[Cell]] = [
        [
            *(point.settings.get(key) for key in settings),
            point.median_ns,
            point.std_ns,
            point.variation,
            *(point.per_s if point.unit == unit else None for unit in units),
            *([point.joules] if has_energy else []),
            *(_cell(point.facts.get(key)) for key in facts),
        ]
        for point in points
    ]
    heads = [
        *(Column(key, _UNIT_OF_SETTING.get(key, "")) for key in settings),
        *columns("time [ns] | std [ns] | CV [share]"),
        *(Column("rate", f"{unit}/s") for unit in units),
        *([Column("energy", "J")] if has_energy else []),
        *(Column(key.replace("_", " ")) for key in facts),
    ]
    title = name.replace("-", " ").capitalize()
    about = "median time of a call, standard deviation of the repetitions"
    return Table(name, title, about, heads, rows, list(_notes(points)))


def _cell(fact: object) -> Cell:
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, float):
        return f"{fact:.3g}"
    return fact if isinstance(fact, int | str) else None


def _notes(points: Sequence[Measured]) -> Iterator[str]:
    if disturbed := [point.name for point in points if point.is_disturbed]:
        yield (
            f"doubt: {counted(len(disturbed), 'point')} waited for a processor for more than "
            f"{WAITED_SHARE * 100:.0f} % of the time, e.g. {disturbed[0]}: other programs were running"
        )


def _missing(points: Sequence[Measured]) -> Iterator[Table]:
    """Yields a table with one row per reason, because one missing library can rule out many points."""
    by_reason: dict[str, list[str]] = {}
    for point in points:
        if point.missing:
            by_reason.setdefault(point.missing, []).append(point.name)
    if by_reason:
        rows: list[list[Cell]] = [
            [names[0], len(names) - 1, reason] for reason, names in by_reason.items()
        ]
        heads = columns("point | and others [count] | reason")
        yield Table(
            "missing", "Not measured", "points that have no time, and the reasons", heads, rows
        )


def _hygiene(content: Content) -> Table:
    rows: list[list[Cell]] = [
        [fact["name"], fact["value"], fact["warning"] or None, fact["why"] or None]
        for fact in content["hygiene"]
    ]
    energy = content["energy"]
    why = energy["missing"]
    rows.append(["energy", "unavailable" if why else energy["meter"], None, why or None])
    heads = columns("host | value | what it may do to the numbers | why unknown")
    return Table("host", "Host", "what else affects the numbers", heads, rows)
