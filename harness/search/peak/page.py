"""Writes peak.html with the result of the search, a plot of the loads that were tried, and a table of the runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log10
from pathlib import Path
from typing import Any

from harness.core.config.parse import Slo, parse_slos, searched
from harness.core.units import NS_PER_MS, show_rate
from harness.results.evidence.stages import reported_percentile
from harness.results.pages import page, tiles
from harness.results.pages.heading import Badges, heading, is_doubted, task
from harness.results.pages.page import Article, Figure, RunLink
from harness.results.pages.plots import (
    INVALID,
    UNJUDGED,
    VALID,
    bound_at,
    bound_line,
    label_sides,
    line,
    rounded,
)
from harness.results.pages.tables import Table
from harness.results.pages.tiles import Tile
from harness.search.peak import table
from harness.search.peak.content import Content, Probe

PAGE = "peak.html"
LOADS = "Loads tried"
"""Title of the first plot."""

_KINDS = (
    ("VALID at full length", "circle", VALID),
    ("passed, shorter run", "circle-open", VALID),
    ("failed", "x", INVALID),
    ("not judged", "diamond-open", UNJUDGED),
)
"""Name, symbol and colour of each kind of run."""


def write(content: Content, folder: Path) -> Path:
    return page.write(articles(content), folder.resolve().name, folder / PAGE, script_in=folder)


def articles(content: Content, linked: Callable[[str], RunLink] | None = None) -> list[Article]:
    """linked: returns the link to a run's page, from the run's folder; None leaves the runs without links."""
    lines = [*table.conclusion(content)] or ["no peak: no run of the search has ended"]
    head = [heading(["Peak", *task(content)], badges(content)), *page.conclusion(lines)]
    runs = [linked(probe["folder"]) for probe in content["probes"]] if linked else []
    tail = list(page.section(_headed(table.probes_table(content)), runs=runs, cards=True))
    return [Article(head, list(figures(content)), tail)]


def tiles_so_far(content: Content) -> str:
    """Returns the loads between which the peak lies so far, as HTML, with dashes before a run has been judged."""
    judged = [
        (one["load"], one["kind"] != "full", one["passed"])
        for one in content["probes"]
        if one["load"] and one["passed"] is not None
    ]
    short, full = (
        max(
            (load for load, is_short, is_passed in judged if is_passed and is_short is kind),
            default=None,
        )
        for kind in (True, False)
    )
    # As soon as a full run has ended, only full runs show how high the peak is at least.
    has_full = not all(is_short for _, is_short, _ in judged)
    least = (full if has_full else short) or 0.0
    failed, is_short = min(
        (
            (load, is_short)
            for load, is_short, is_passed in judged
            if not is_passed and load > least
        ),
        default=(None, False),
    )
    failed_at = "in a short run" if is_short else "at full length"
    if short is not None and full is not None and short < full:
        short = None  # a full run has passed at a higher load
    unit = content["unit"]
    shown = (
        ("Passed at full length", full, "" if full else "none so far"),
        ("Passed in a short run", short, _confirmed(short, judged)),
        (
            "Lowest failed load above it" if full else "Lowest load that failed",
            failed,
            failed_at if failed else "none so far",
        ),
    )
    return tiles.html(
        [
            Tile(label, "-" if load is None else f"{show_rate(load)} {unit}", text)
            for label, load, text in shown
        ]
    )


def _confirmed(short: float | None, judged: Sequence[tuple[float, bool, bool | None]]) -> str:
    """States what full runs showed about a load that passed in a short run. judged: loads, whether the run was short, and
    whether it passed.
    """
    full = [passed for load, is_short, passed in judged if load == short and not is_short]
    if short is None or any(full):
        return ""
    return "failed at full length" if full else "not confirmed"


def badges(content: Content) -> Badges:
    if content["peak"] is None:
        return Badges("INVALID" if content["finished"] else "", bool(content["warnings"]))
    # Another machine, or this machine at rest, may have a much higher peak.
    verdict = "UNDECIDED" if table.is_of_machine(content) else "VALID"
    return Badges(verdict, bool(content["warnings"]) or is_doubted([table.confirming_run(content)]))


def _headed(probes: Table) -> Table:
    """Names the columns that have no name on the screen because their content explains itself."""
    names = iter(("kind", "outcome", "doubts"))
    heads = [one if one.name else one._replace(name=next(names)) for one in probes.columns]
    rows = [[*row[:-1], str(row[-1]).removeprefix("doubts: ")] for row in probes.rows]
    return probes._replace(columns=heads, rows=rows)


def figures(content: Content) -> Iterator[Figure]:
    """Yields a plot of the judged value against the load; yields nothing if fewer than two loads were judged."""
    slo = searched(parse_slos(content["slo"]))
    assert slo is not None
    # A calibration is left out, because it is not judged and its low load would squeeze the other loads together.
    made = [p for p in content["probes"] if p["load"] and p["kind"] != "calibration"]
    probes = [p for p in made if _judged(p, slo) is not None]
    if len(probes) < 2:
        return
    if slo.of:
        what, most = f"queries later than {slo}, %", (1 - slo.percentile) * 100
        shapes = [bound_at(most, "y", f"{most:.3g} %")]
    else:
        what = f"{reported_percentile(slo.percentile)} latency, ms"
        shapes = bound_line(slo.bound_ns / NS_PER_MS, "y")
    requested = "requested, " if table.is_rate(content["unit"]) else ""
    axis = _loads_axis(f"{requested}{content['unit']}", [p["load"] for p in probes if p["load"]])
    names: list[Mapping[str, Any]] = []
    if (peak := content["peak"]) is not None:
        upright = {
            "name": "peak",
            "type": "line",
            "x0": peak,
            "x1": peak,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
        }
        shapes = [*shapes, {**upright, "line": {"color": VALID, "width": 1}}]
        text = {"text": "peak", "font": {"color": VALID}, "showarrow": False, "xanchor": "right"}
        # On a logarithmic axis, plotly expects the logarithm.
        at = log10(peak) if axis.get("type") == "log" else peak
        names = [{**text, "x": at, "y": 1, "yref": "paper", "yanchor": "top"}]
    yield Figure(
        LOADS,
        f"The runs of the search, numbered as in the table.{_below(probes, slo)}",
        [*_traces(content["probes"], probes, slo)],
        {
            "xaxis": axis,
            "yaxis": {"title": what, "type": "linear" if slo.of else "log"},
            "shapes": shapes,
            "annotations": names,
        },
        height_rem=26,
    )


def _below(probes: Sequence[Probe], slo: Slo) -> str:
    """Explains failed runs whose judged percentile is within the bound; '' without such a run."""
    bound_ms = slo.bound_ns / NS_PER_MS
    if slo.of or not any(
        p["passed"] is False and (_judged(p, slo) or 0.0) <= bound_ms for p in probes
    ):
        return ""
    return (
        " A run below the bound failed if more of its queries were late than LoadGen allows for the planned number "
        "of queries, which may end the run early."
    )


def _loads_axis(title: str, loads: Sequence[float]) -> Mapping[str, Any]:
    """Returns the axis for the loads, which is logarithmic because each load is a multiple of an earlier one."""
    return {"title": title, "tickformat": ",", **({"type": "log"} if min(loads) > 0 else {})}


_NUMBER_DISTANCE, _NUMBER_REACH = (0.02, 0.08), (0.012, 0.05)
"""Room of a run's number in the plot, as `label_sides` takes it."""


def _place(probe: Probe, slo: Slo) -> tuple[float, float]:
    """Returns the place of a run's mark, in the scale of the axes."""
    load, judged = probe["load"] or 0.0, _judged(probe, slo) or 0.0
    return log10(load) if load > 0 else 0.0, judged if slo.of or judged <= 0 else log10(judged)


def _traces(
    every: Sequence[Probe], shown: Sequence[Probe], slo: Slo
) -> Iterator[Mapping[str, Any]]:
    numbers = {id(probe): number for number, probe in enumerate(every, 1)}
    marks = [_place(probe, slo) for probe in shown]
    sides = label_sides(marks, range(len(shown)), _NUMBER_DISTANCE, _NUMBER_REACH)
    places = {id(probe): sides[i] for i, probe in enumerate(shown)}
    for name, symbol, colour in _KINDS:
        ours = [probe for probe in shown if _kind(probe) == name]
        if ours:
            yield {
                **line(name, [p["load"] for p in ours], [_judged(p, slo) for p in ours]),
                "mode": "markers+text",
                "text": [str(numbers[id(probe)]) for probe in ours],
                "textposition": [places[id(probe)] for probe in ours],
                "marker": {"symbol": symbol, "size": 11, "color": colour},
            }


def _kind(probe: Probe) -> str:
    if probe["passed"] is None:
        return "not judged"
    if not probe["passed"]:
        return "failed"
    return "VALID at full length" if probe["kind"] == "full" else "passed, shorter run"


def _judged(probe: Probe, slo: Slo) -> float | None:
    """Returns the latency in ms at the SLO's percentile. For an SLO on token times, returns the share of late queries
    in %.
    """
    if slo.of:
        late, queries = probe["late"], probe["queries"]
        return None if late is None or not queries else rounded(late / queries, 100)
    value_ns = (probe["latency_ns"] or {}).get(reported_percentile(slo.percentile))
    return rounded(value_ns, 1 / NS_PER_MS)
