"""Prints a search: a line as each run ends, and a table from peak.json at the end."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.codes import INTERRUPTED
from harness.core.config.parse import parse_slo
from harness.core.units import NS_PER_S, show_ns, show_rate
from harness.results.evidence.stages import PERCENTILES
from harness.results.pages.tables import Cell, Column, aligned
from harness.search.peak.cause import confirming_run, machine_warnings, set_by_machine
from harness.search.peak.probe import Probe

SHORTFALL = 0.02
"""A queue was left at the end where the completed rate is this share below the offered rate. The
search resolves no smaller difference.
"""


def warnings(content: Mapping[str, Any]) -> Iterator[str]:
    """Reasons not to quote the rate as it stands, from the content of peak.json."""
    yield from machine_warnings(content)
    yield from _unsustained(content)


def _unsustained(content: Mapping[str, Any]) -> Iterator[str]:
    """A warning where the peak is above the rate that the system sustains.

    A run stays VALID while its growing queue stays within the bound: a run of D seconds passes at up
    to 1 + bound / D times the capacity, and completes the backlog after its last arrival.
    """
    if content["peak"] is None:
        return
    run = confirming_run(content)
    offered, completed = run["scheduled_per_s"], run["completed_per_s"]
    if not offered or completed is None or completed >= (1 - SHORTFALL) * offered:
        return
    bound_ns = parse_slo(content["slo"]).bound_ns
    short = run["queries"] / offered * NS_PER_S < bound_ns / SHORTFALL
    advice = f", best to {show_ns(bound_ns / SHORTFALL)}" if short else ""
    yield (
        f"{show_rate(completed)} of {show_rate(offered)} queries/s offered were completed: a queue was "
        f"left at the end, so this is more than is sustained: lengthen --duration{advice}"
    )


def progress(number: int, probe: Probe, unit: str) -> str:
    """One line about a run that has just ended."""
    outcome = _outcome(probe.passed, probe.ended) or probe.kind
    name = "full-length run" if probe.kind == "full" else "run"
    at = "" if probe.load is None else f" at {show_rate(probe.load)} {unit}"
    late = "" if probe.late is None else f", {probe.late:,} of {probe.queries:,} queries late"
    return f"{name} {number}{at}: {outcome}{late}, {probe.seconds:.1f} s"


def _outcome(passed: bool | None, ended: str | None) -> str:
    """The outcome in one word, '' for a calibration that went well."""
    if ended is not None:
        return "stopped" if ended == INTERRUPTED else ended
    return {None: "", True: "passed", False: "failed"}[passed]


def lines(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The table from the content of peak.json."""
    unit, slo = content["unit"], content["slo"]
    head = (
        ("PEAK" if content["peak"] is not None else "NO PEAK") if content["finished"] else "STOPPED"
    )
    yield f"{head}  {content['scenario']}  {content['backend']}  {content['model']}  {slo}"
    yield ""
    percentile = reported_percentile(parse_slo(slo).percentile)
    columns = (
        Column("run", "count"),
        Column(""),
        Column(unit, "samples/s"),
        Column("queries", "count"),
        Column("late", "count"),
        Column("p50", "ns"),
        Column(percentile, "ns"),
        Column("batch", "samples"),
        Column("took", "s"),
        Column(""),
        Column(""),
    )
    rows = [_row(number, probe, percentile) for number, probe in enumerate(content["probes"], 1)]
    yield from aligned(columns, rows)
    yield ""
    yield from _summary(content)
    yield f"{'results':<12}{folder}"


def reported_percentile(percentile: float) -> str:
    """The name of the percentile in results that is `percentile`, in (0, 1), or the next above it."""
    return next(
        (n for n, fraction in PERCENTILES.items() if fraction >= percentile - 1e-9), "p99.9"
    )


def _row(number: int, probe: Mapping[str, Any], percentile: str) -> list[Cell]:
    latency_ns = probe["latency_ns"] or {}
    return [
        number,
        probe["kind"],
        probe["load"],
        probe["queries"],
        probe["late"],
        latency_ns.get("p50"),
        latency_ns.get(percentile),
        probe["mean_batch"],
        f"{probe['seconds']:.1f} s",
        _outcome(probe["passed"], probe["ended"]),
        f"doubts: {' '.join(probe['doubts'])}" if probe["doubts"] else "",
    ]


def _summary(content: Mapping[str, Any]) -> Iterator[str]:
    unit, above = content["unit"], content["failed_above"]
    if content["peak"] is None:
        fastest_ns = content.get("fastest_ns")
        if fastest_ns is not None:
            bound_ns = parse_slo(content["slo"]).bound_ns
            yield (
                f"no load meets {content['slo']}: the fastest answer took {show_ns(fastest_ns)}, the "
                f"bound is {show_ns(bound_ns)}: raise --slo"
            )
            return
        least = min((p["load"] for p in content["probes"] if p["passed"] is False), default=None)
        if content["finished"] and least is not None:
            yield f"no full-length run passed, down to {show_rate(least)} {unit}: raise --slo"
        return
    peak = f"{show_rate(content['peak'])} {unit}"
    if set_by_machine(content):
        peak += ", set by delays of the machine and not by the model"
    elif any(machine_warnings(content)):
        peak += ", on a machine that was not at rest"
    short = " (a short probe)" if content["failed_above_kind"] == "probe" else ""
    if above is None:
        yield f"{'peak':<12}{peak}: VALID at full length; nothing above it failed or was tried"
    else:
        yield (
            f"{'peak':<12}{peak}: VALID at full length; the lowest above it that failed: "
            f"{show_rate(above)}{short}"
        )
    if content["ended_early"] is not None:
        yield f"{'ended early':<12}{content['ended_early']}"
    for text in content["warnings"]:
        yield f"{'warning':<12}{text}"
