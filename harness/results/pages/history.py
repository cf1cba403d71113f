"""Draws `runs --history`: the numbers of a workload on one machine from run to run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.units import NS_PER_MS, counted
from harness.loadgen.scenario import scenario_named
from harness.results.pages.page import Article, Figure, link, table

MOST = 12
"""Workloads on one page: each has several plots."""

_LISTED = 50
Row = Mapping[str, Any]


class Told(NamedTuple):
    """One number of a run, from runs.sqlite."""

    value: float
    unit: str
    higher_is_better: bool


def numbers(row: Row) -> dict[str, Told]:
    """Numbers that the run measured; no latency in Offline, where it only reflects the samples issued."""
    per_ms = 1 / NS_PER_MS
    latency = not scenario_named(row["scenario"]).all_at_once
    early = row["headline_value"] if row["headline_unit"] == "ns" else None
    higher = not row["lower_is_better"]
    found: dict[str, tuple[Any, float, str, bool]] = {
        "early-stopping estimate": (early, per_ms, "ms", False),
        "throughput": (row["completed_per_s"], 1.0, "samples/s", True),
        "p50 latency": (row["p50_ns"] if latency else None, per_ms, "ms", False),
        "p99 latency": (row["p99_ns"] if latency else None, per_ms, "ms", False),
        f"accuracy, {row['metric']}": (row["accuracy"], 1.0, "", higher),
        f"energy, {row['energy_source']}": (row["joules_per_sample"], 1.0, "J/sample", False),
    }
    return {
        name: Told(value * factor, unit, better)
        for name, (value, factor, unit, better) in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def history(rows: Sequence[Row], results: Path, page: Path) -> list[Article]:
    """rows: newest first. One article for each workload, the one that ran last first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (row["model"], row["scenario"], row["backend"], row["dataset"], row["host"] or "-")
        groups.setdefault(key, []).append(row)
    articles = [
        Article(
            list(_head(key, members)),
            list(_figures(members[::-1])),
            [_listed(members, results, page)],
        )
        for key, members in list(groups.items())[:MOST]
    ]
    if len(groups) > MOST:
        left = f"{len(groups) - MOST} more are left out: choose by --model, --backend, --scenario"
        articles.append(Article([f"<p>{left}, --host or --since.</p>"], [], []))
    return articles


def _head(key: Sequence[str], members: Sequence[Row]) -> Iterator[str]:
    *words, dataset, host = key
    yield f"<h1>{escape(' · '.join(words))}</h1>"
    invalid = sum(row["verdict"] != "VALID" for row in members)
    removed = sum(row["removed"] for row in members)
    told = f"{counted(len(members), 'run')} on {host} with the dataset {dataset}"
    told += f", {invalid} of them INVALID" if invalid else ""
    told += f", {removed} whose folders are gone" if removed else ""
    yield f'<p class="quiet">{escape(told)}. Settings may differ from run to run: compare says'
    yield "how, and whether a change is more than noise.</p>"


def _figures(members: Sequence[Row]) -> Iterator[Figure]:
    """members: oldest first. INVALID runs are crosses, and no line leads to them."""
    told = [(row, numbers(row)) for row in members]
    for name in dict.fromkeys(name for _, found in told for name in found):
        have = [(row, found[name]) for row, found in told if name in found]
        good = [one for one in have if one[0]["verdict"] == "VALID"]
        bad = [one for one in have if one[0]["verdict"] != "VALID"]
        data = []
        if good:
            data.append({**_points(good), "mode": "lines+markers", "name": "VALID"})
        if bad:
            cross = {"symbol": "x-thin-open", "size": 10, "color": "#c0392b"}
            data.append({**_points(bad), "mode": "markers", "name": "INVALID", "marker": cross})
        unit = have[0][1].unit
        yaxis: dict[str, Any] = {"title": f"{name}, {unit}" if unit else name}
        if not name.startswith("accuracy"):
            yaxis["rangemode"] = "tozero"
        yield Figure(
            name.capitalize(),
            "Each point is a run.",
            data,
            {"xaxis": {"type": "date", "title": "begun, UTC"}, "yaxis": yaxis, "showlegend": True},
            height_rem=18,
        )


def _points(have: Sequence[tuple[Row, Told]]) -> dict[str, Any]:
    return {
        "x": [str(row["started"])[:23] for row, _ in have],
        "y": [float(f"{told.value:.6g}") for _, told in have],
        "text": [hover(row) for row, _ in have],
    }


def hover(row: Row) -> str:
    """Text that plotly shows at a point, escaped because plotly interprets some HTML."""
    commit = f", harness {row['harness_commit'][:10]}" if row["harness_commit"] else ""
    return escape(f"{row['folder']}{commit} {row['reasons']}")


def shown(told: Told | None) -> str:
    return "-" if told is None else f"{told.value:,.5g} {told.unit}".rstrip()


def _listed(members: Sequence[Row], results: Path, page: Path) -> str:
    told = {row["folder"]: numbers(row) for row in members[:_LISTED]}
    names = list(dict.fromkeys(name for found in told.values() for name in found))
    rows = [
        (
            link(row["folder"], results / row["folder"] / "report.html", page),
            f"{row['verdict']} {row['reasons']}",
            *(shown(told[row["folder"]].get(name)) for name in names),
        )
        for row in members[:_LISTED]
    ]
    return table(("run", "verdict", *names), rows, numbers=len(names))
