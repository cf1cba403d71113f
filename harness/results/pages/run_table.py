"""Prints the screen at the end of a run. The screen shows the answer or, with `--details`, every number of result.json."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from harness.core.console import coloured, program
from harness.core.registry import SCENARIOS
from harness.core.units import counted, show_ns, show_percent, show_rate, show_si
from harness.loadgen.scenario import scenario_named
from harness.results.answer import answer_of, answer_rows, load_generator
from harness.results.answer.answer import (
    kept_up,
    longest_needed,
    show_longer,
    show_span,
    times_longer,
)
from harness.results.answer.limits import of_the_machine
from harness.results.evidence.stages import PERCENTILES, waits_of_all
from harness.results.pages.load_hosts import host_table
from harness.results.pages.models_tables import curve_table, models_table
from harness.results.pages.node_table import node_table
from harness.results.pages.tables import Cell, Column, Table, aligned
from harness.results.power import NO_METER

RATES = {
    "asked": "requested",
    "scheduled": "in the schedule drawn from the seed",
    "completed": "completed",
}
"""Maps a key of `throughput_per_s` to the name that pages and tables show."""

NOT_ISOLATED = (
    "not isolated: a plug-in or start-up code ran in a process of the harness (docs/trust.md)"
)

NOT_SAVED = "not-saved"
"""Code for a run that was not saved. All its numbers are printed, because they exist nowhere else."""

_LABEL = 12
"""Width of the first column, in characters."""

_COLOURS = {
    r"VALID\b": "green",
    r"INVALID\b|  reason +\S+": "red",
    r"doubts\b|  doubt +\S+": "yellow",
}
"""Maps a line's first words to its colour on a terminal."""


_SENTENCE = re.compile(
    r"  (?:reason|doubt|note) +|(?:answer|accuracy|tokens|sound|by model|sessions|probes|cancelled|ramp|goodput|cost|models|real time|steady|limited by|doubts|advice|metric|rate|power|overhead|client) +"
)
"""Matches the label of a line that may be wrapped. Tables and paths are never wrapped."""


def lines(
    result: Mapping[str, Any], folder: Path, *, details: bool = False, columns: int | None = None
) -> Iterator[str]:
    """Yields the lines on the screen. columns: width of the terminal; None disables wrapping."""
    for line in _lines(result, folder, details=details):
        yield from _wrapped(line, columns) if columns else [line]


def paint(text: str) -> str:
    """Colours the verdict, reasons and doubts on the screen."""
    return "\n".join(map(_painted, text.split("\n")))


def _painted(line: str) -> str:
    for words, colour in _COLOURS.items():
        if begin := re.match(words, line):
            return coloured(begin[0], colour) + line[begin.end() :]
    return line


def _wrapped(line: str, columns: int) -> Sequence[str]:
    """Wraps a line only between words, so that a folder's name can still be copied. Does not wrap table rows."""
    label = _SENTENCE.match(line)
    if len(line) <= columns or label is None:
        return [line]
    indent = " " * label.end()
    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(result: Mapping[str, Any], folder: Path, *, details: bool) -> Iterator[str]:
    answer = answer_of(result)
    details |= any(reason["code"] == NOT_SAVED for reason in result["reasons"])
    # `check` cannot read a run that ended before its first query.
    details |= result["calibration"] is None
    yield f"{answer.verdict}  {result['scenario']}  {result['backend']}  {result['model']}"
    for reason in result["reasons"]:
        yield f"  reason  {reason['code']}: {reason['text']}"
    yield ""
    rows = {"answer": answer.headline, **answer_rows(result)}
    yield from (f"{label:<{_LABEL}}{text}" for label, text in rows.items())
    yield ""
    if details:
        yield from _details(result)
    yield f"{'results':<{_LABEL}}{folder}"
    if not details:
        yield f"{'details':<{_LABEL}}{program()} check {quote(str(folder))} --details"


def _details(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields everything that the first screen omits, starting with doubts and notes."""
    notes = [f"not for submission: {note}" for note in result["not_for_submission"]]
    notes += [] if result.get("isolated", True) else [NOT_ISOLATED]
    yield from (f"  doubt   {doubt['code']}: {doubt['text']}" for doubt in result["doubts"])
    yield from (f"  note    {note}" for note in notes)
    if notes or result["doubts"]:
        yield ""
    if numbers := list(_numbers(result)):
        yield from (*numbers, "")


def run_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines of `python -m harness runs`. A run whose folder no longer exists is marked `removed`.

    Offline gets no p99, because this p99 would only reflect how many samples were issued at once.
    """
    units = {"folder": "", "verdict": "", "headline": "count", "p99": "ns", "accuracy": "count"}
    columns = [Column(name, unit) for name, unit in {**units, "reasons": ""}.items()]
    yield from aligned(columns, [_run_cells(row) for row in rows])


def _run_cells(row: Mapping[str, Any]) -> Sequence[Cell]:
    value, accuracy = row["headline_value"], row["accuracy"]
    headline = {"value": value, "unit": row["headline_unit"]}
    return (
        row["folder"],
        row["verdict"],
        show_quantity(headline) if value is not None else None,
        row["p99_ns"] if _has_latency(row) else None,
        f"{accuracy:.2f}" if accuracy is not None else None,
        f"{'(removed) ' if row['removed'] else ''}{row['reasons']}",
    )


def _has_latency(row: Mapping[str, Any]) -> bool:
    """Returns whether the run has latencies. row: a row of the database, with a scenario that this version may not
    know.
    """
    scenario = row["scenario"]
    return scenario not in SCENARIOS or not scenario_named(scenario).all_at_once


def _numbers(result: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{label:<{_LABEL}}{text}" for label, text in facts(result))
    yield from _power(result["power"], result["power_reason"])
    tables = (
        latency_table(result, journal=True),
        stage_table(result),
        host_table(result),
        node_table(result),
        models_table(result),
        curve_table(result),
    )
    for table in tables:
        if table is not None:
            yield ""
            yield table.about
            yield from aligned(table.columns, table.rows)
            yield from table.notes


def facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (label, text) pairs for the scenario's metric, the rates, and the cost of the load generator."""
    headline, rates = result["headline"], result["throughput_per_s"]
    if headline:
        yield "metric", f"{headline['name']}: {show_quantity(headline)}"
    if rates:
        known = [
            f"{show_rate(rates[key])}/s {name}"
            for key, name in RATES.items()
            if rates.get(key) is not None
        ]
        yield "rate", ", ".join(known)
    if result.get("client"):
        yield "client", _client(result["client"])
    elif result.get("reference"):
        completed = rates["completed"] if rates else None
        disturbed = bool(of_the_machine(result))
        yield (
            "overhead",
            load_generator.line(result["reference"], completed, was_disturbed=disturbed),
        )
    elastic = (result.get("plan") or {}).get("elastic")
    if elastic is not None and elastic["cpus"] is not None:
        yield "alone", _elastic(elastic)


def _elastic(elastic: Mapping[str, Any]) -> str:
    """Returns how many queries had all cores, and the time of such a query with all cores and with fewer cores."""
    times = [show_ns(elastic[key]) for key in ("wide_ns", "narrow_ns")]
    samples = counted(elastic["samples"], "query", "queries")
    return f"{samples} had all {len(elastic['cpus'])} cores: {times[0]} instead of {times[1]}"


def _client(client: Mapping[str, Any]) -> str:
    """Returns the client's limits, and how busy the client was."""
    servers = counted(len(client["peers"]), "server")
    parts = [
        f"{counted(client['connections'], 'connection')} to each of {servers}, {client['dispatcher']}"
    ]
    if client["ceiling_per_s"] is not None:
        parts.append(
            f"against a null server, the client reaches {show_rate(client['ceiling_per_s'])} samples/s, and a single "
            f"request takes {show_ns(client['floor_p50_ns'])} (median)"
        )
    else:
        parts.append(f"not measured against a null server: {client['no_ceiling']}")
    if client["busy_max"] is not None:
        parts.append(f"in its busiest second it was {show_percent(client['busy_max'])} busy")
    return "; ".join(parts)


def latency_table(result: Mapping[str, Any], *, journal: bool) -> Table | None:
    """Returns a table with one row per percentile; None without latencies. journal: adds the journal's percentiles."""
    latency, intervals = result["latency_ns"], result.get("latency_intervals_ns") or {}
    if not latency:
        return None
    scenario = scenario_named(result["scenario"])
    per = "query" if scenario.by_query else "sample"
    about = f"Latency of a {per} by {_source(latency['source'])}; mean {show_ns(latency['mean'])}."
    if scenario.all_at_once:
        about += " It shows how long a sample waited for the samples that were issued with it."
    columns = [Column("percentile"), Column("latency", "ns")]
    about += "" if journal else _other_p99(latency, intervals)
    notes: list[str] = []
    spans = [_interval_cells(intervals.get(name)) for name in PERCENTILES]
    if intervals:
        level = show_percent(intervals["level"])
        if all(one[0] == "-" for one in spans):  # a note states why
            # On a page, these too narrow intervals would be the only ones.
            spans = [one[1:] if journal else () for one in spans]
            columns += [Column(f"{level} if independent", "count")] if journal else []
        else:
            columns += [Column(f"{level} interval", "count"), Column("if independent", "count")]
        columns += [Column("by the journal", "ns")] if journal else []
        length_s = (result.get("queries") or {}).get("took_s")
        if kept_up(result):
            notes += _without_interval(intervals, length_s)
        else:
            notes.append(
                "No intervals: the rate was too high, so the latency grows with the length of the run."
            )
    cells = [(name, latency[name], *span) for name, span in zip(PERCENTILES, spans, strict=True)]
    rows = [row[: len(columns)] for row in cells]
    return Table("latency", "Latency", about, columns, rows, notes)


def _other_p99(latency: Mapping[str, Any], intervals: Mapping[str, Any]) -> str:
    """Returns a sentence about the p99 in the plots of a page, which LoadGen does not measure; "" if both are equal."""
    ours = (intervals.get("p99") or {}).get("journal")
    if ours is None or show_ns(ours) == show_ns(latency["p99"]):
        return ""
    return f" The plots show the journal's latencies, whose p99 is {show_ns(ours)}."


def _interval_cells(one: Mapping[str, Any] | None) -> Sequence[Cell]:
    """Returns the intervals as cells; `-` if the run is too short."""
    if one is None:
        return ()
    spans = (show_span(*one[kind]) or "-" for kind in ("block_interval", "order_statistic"))
    return (*spans, one["journal"])


def _without_interval(intervals: Mapping[str, Any], length_s: float | None) -> Iterator[str]:
    """Yields one note that lists the percentiles without an interval, and how long a run must be to give them one.

    length_s: length of the finished run; None if unknown.
    """
    names: dict[int, list[str]] = {}
    for name in PERCENTILES:
        if times_longer(intervals[name]):
            names.setdefault(longest_needed(intervals, name), []).append(name)
    if names:
        lengths = (
            f"{show_longer(times, length_s)} for {', '.join(of)}" for times, of in names.items()
        )
        yield f"Too few independent parts for an interval: make a run of {'; '.join(lengths)}."


def stage_table(result: Mapping[str, Any]) -> Table | None:
    """Returns the table; None without stages.
    Skips Offline's first stages, which only reflect the number of samples.
    """
    stages = result["stages_ns"]
    if not stages:
        return None
    waits = waits_of_all(result["scenario"])
    worked = {name: stage for name, stage in stages.items() if name not in waits}
    whole = sum(stage["share"] for stage in worked.values()) or 1.0
    columns = (Column("stage"), Column("p50", "ns"), Column("p99", "ns"), Column("share", "share"))
    rows = [(n, stage["p50"], stage["p99"], stage["share"] / whole) for n, stage in worked.items()]
    about = "Where a sample spent its time, according to the journal."
    if waits:
        about += (
            " The shares are of the time after the queue, because all samples are issued at once."
        )
    client = result.get("client") or {}
    if why := client.get("no_notice"):
        about += f" `notice` is part of `remote`: {why}."
    return Table("stages", "Stages", about, columns, rows)


def _source(text: str) -> str:
    """Returns the source of the numbers: `LoadGen`, `harness` (for the harness scheduler) or `the journal`."""
    return "the journal" if "from the journal" in text else text.split(maxsplit=1)[0]


def _power(power: Mapping[str, Any] | None, reason: str | None) -> Iterator[str]:
    """Yields the lines about power; nothing without --meter."""
    if reason not in (None, NO_METER):
        yield f"{'power':<{_LABEL}}not measured: {reason}"
    for at, reading in enumerate(power["readings"] if power else ()):
        idle = reading["idle_watts"]
        watts = {"mean": reading["mean_watts"], "peak": reading["peak_watts"], "idle": idle}
        words = [f"{n} {show_si(w, 'W')}" for n, w in watts.items() if w is not None]
        joules = f"{show_si(reading['joules'], 'J')}, {show_si(reading['joules_per_query'], 'J')} per query"
        if "joules_per_output_token" in reading:
            joules += f", {show_si(reading['joules_per_output_token'], 'J')} per output token"
        origin = f"({reading['source']}, {reading['provenance']})"
        yield f"{'' if at else 'power':<{_LABEL}}{'  '.join([*words, joules, origin])}"
    if power:
        yield from (
            f"{'':<{_LABEL}}{m['source']}: no reading: {m['reason']}" for m in power["missing"]
        )
        yield f"{'':<{_LABEL}}{power['note']}"


def show_quantity(quantity: Mapping[str, Any]) -> str:
    if quantity["unit"] == "ns":
        return show_ns(quantity["value"])
    return f"{show_rate(quantity['value'])} {quantity['unit']}"
