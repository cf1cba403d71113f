"""Prints the table at the end of a run; result.json holds the same numbers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.units import show_ns, show_percent, show_rate, show_si
from harness.loadgen.scenario import scenario_named
from harness.results.evidence import reference
from harness.results.evidence.stages import PERCENTILES
from harness.results.pages.tables import Cell, Column, aligned
from harness.results.power import NO_METER

RATES = {"asked": "requested", "scheduled": "scheduled", "completed": "completed"}
"""Key of `throughput_per_s` -> its name on a page and in a table."""

NOT_ISOLATED = "not isolated: a plug-in ran in a process of the harness (docs/verdict.md)"


def lines(result: Mapping[str, Any], folder: Path) -> Iterator[str]:
    yield f"{result['verdict']}  {result['scenario']}  {result['backend']}  {result['model']}"
    for reason in result["reasons"]:
        yield f"  reason  {reason['code']}: {reason['text']}"
    for doubt in result["doubts"]:
        yield f"  doubt   {doubt['code']}: {doubt['text']}"
    for note in result["not_for_submission"]:
        yield f"  note    not for submission: {note}"
    if not result.get("isolated", True):
        yield f"  note    {NOT_ISOLATED}"
    yield ""
    yield from _numbers(result)
    yield f"{'results':<12}{folder}"


def run_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`python -m harness runs`: one line a run; `removed` where its folder is gone."""
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
        row["p99_ns"],
        f"{accuracy:.2f}" if accuracy is not None else None,
        f"{'(removed) ' if row['removed'] else ''}{row['reasons']}",
    )


def _numbers(result: Mapping[str, Any]) -> Iterator[str]:
    headline = result["headline"]
    if headline:
        yield f"{'headline':<12}{headline['name']}: {show_quantity(headline)}"
    rates = result["throughput_per_s"]
    if rates:
        known = [(name, rates[key]) for key, name in RATES.items() if rates.get(key) is not None]
        yield f"{'throughput':<12}{'  '.join(f'{n} {show_rate(rate)}/s' for n, rate in known)}"
    latency = result["latency_ns"]
    if latency:
        per = "query" if scenario_named(result["scenario"]).by_query else "sample"
        text = "  ".join(f"{name} {show_ns(latency[name])}" for name in PERCENTILES)
        mean = show_ns(latency["mean"])
        yield f"{'latency':<12}{text}  ({_source(latency['source'])}, per {per}; mean {mean})"
    accuracy = result["accuracy"]
    if accuracy:
        yield f"{'accuracy':<12}{show_accuracy(accuracy)}"
    yield from _power(result["power"], result["power_reason"])
    yield from _intervals(result.get("latency_intervals_ns"), latency)
    if result.get("reference"):
        rate = rates["completed"] if rates else None
        yield f"{'reference':<12}{reference.line(result['reference'], rate)}"
    stages = result["stages_ns"]
    if stages:
        yield ""
        columns = (
            Column("stage"),
            Column("p50", "ns"),
            Column("p99", "ns"),
            Column("share", "share"),
        )
        yield from aligned(columns, [(name, *stage.values()) for name, stage in stages.items()])
        yield ""


def _source(text: str) -> str:
    """LoadGen, harness (its own scheduler) or journal."""
    return "journal" if "from the journal" in text else text.split(maxsplit=1)[0]


def _intervals(
    intervals: Mapping[str, Any] | None, quoted: Mapping[str, Any] | None
) -> Iterator[str]:
    """One line a percentile; `-` where the run is too short for an end. The journal's stamps may differ
    from LoadGen's by some us, so its intervals stand beside its own percentiles.
    """
    if not intervals:
        return
    level = show_percent(intervals["level"])
    heads = (f"{level} order statistic", f"{level} by blocks")
    yield ""
    if quoted and _source(quoted["source"]) == "LoadGen":
        yield (
            "Intervals of the percentiles by the journal, which has its own clock readings; quote those "
            "above, by LoadGen:"
        )
    yield f"{'':<6}{'journal':>10}{heads[0]:>24}{heads[1]:>24}{'early stopping':>18}"
    for name, one in intervals.items():
        if isinstance(one, Mapping):
            order, drawn = (_span(one[kind]) for kind in ("order_statistic", "block_interval"))
            early = one["early_stopping"]
            bound = show_ns(early) if early is not None else "-"
            at = show_ns(one["estimate"])
            yield f"{name:<6}{at:>10}{order:>24}{drawn:>24}{bound:>18}"


def _span(ends: Sequence[float | None]) -> str:
    return " to ".join("-" if end is None else show_ns(end) for end in ends)


def _power(power: Mapping[str, Any] | None, reason: str | None) -> Iterator[str]:
    """No lines without --meter."""
    if reason not in (None, NO_METER):
        yield f"{'power':<12}not measured: {reason}"
    for at, reading in enumerate(power["readings"] if power else ()):
        idle = reading["idle_watts"]
        watts = {"mean": reading["mean_watts"], "peak": reading["peak_watts"], "idle": idle}
        words = [f"{n} {show_si(w, 'W')}" for n, w in watts.items() if w is not None]
        joules = f"{show_si(reading['joules'], 'J')}, {show_si(reading['joules_per_query'], 'J')} a query"
        origin = f"({reading['source']}, {reading['provenance']})"
        yield f"{'' if at else 'power':<12}{'  '.join([*words, joules, origin])}"
    if power:
        yield from (f"{'':<12}{m['source']}: no reading: {m['reason']}" for m in power["missing"])
        yield f"{'':<12}{power['note']}"


def show_quantity(quantity: Mapping[str, Any]) -> str:
    if quantity["unit"] == "ns":
        return show_ns(quantity["value"])
    return f"{show_rate(quantity['value'])} {quantity['unit']}"


def show_accuracy(accuracy: Mapping[str, Any]) -> str:
    if accuracy["value"] is None:
        return f"not measured: {accuracy['reason']}"
    target = accuracy["target"]
    digits = 2 if accuracy["unit"] == "%" else 5
    against = f" (target {target:g} {accuracy['unit']})" if target is not None else ""
    return (
        f"{accuracy['metric']} {accuracy['value']:.{digits}f} {accuracy['unit']}{against}, "
        f"{accuracy['samples']:,} samples"
    )
