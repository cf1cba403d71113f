"""Plots the results of the GPU day: python benchmarks/gpu_page.py OUT/gpu_day.json PAGE.html

The page shows Server's tail by load, the stages of a query, and a table with every row. The script needs the extra
`report`.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import bars, line, rounded

Rows = Mapping[str, Mapping[str, Any]]

_LOAD = re.compile(r"load ([\d.]+)(, \d+ instances)?")
_LOOP = re.compile(r"(.+), loop, (.+)")
_STAGES = ("issue_delay", "queue", "gather", "infer", "postprocess", "complete")
_HEADS = ("row", "verdict", "samples/s", "p50, ms", "p99, ms", "peak, W")
_US_PER_MS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path, help="gpu_day.json")
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    write(json.loads(arguments.rows.read_text()), arguments.page)


def write(day: Mapping[str, Rows], out: Path) -> None:
    """Writes the page. Raises PluginUnavailable without plotly."""
    about = day.get("device", {}).get("device", {})
    title = f"{about.get('name', 'GPU')}, PyTorch {about.get('torch', 'unknown')}"
    loads = {name: rows for name, rows in day.items() if name.startswith("server")}
    figures = [tail(loads, p) for p in ("p50", "p99")] + [stages(day.get("server", {}))]
    article = Article([f"<h1>{escape(title)}</h1>"], figures, [*tables(day)])
    page.write([article], title, out, script_in=out.parent)


def targets(day: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    """Compares the harness with the bare loop, and Server's plan with the best of the other plans."""
    return {
        label: {"measured": measured, "target": target, "met": bool(met)}
        for label, measured, target, met in (*_beside_the_loop(day), *_beside_the_grid(day))
    }


def _beside_the_loop(day: Mapping[str, Rows]) -> Iterator[tuple[str, float, str, bool]]:
    rows = day.get("bare", {})
    for label, loop in rows.items():
        if (found := _LOOP.fullmatch(label)) is None or "missing" in loop:
            continue
        model, turn = found.groups()
        offline = rows.get(f"{model}, offline, {turn}", {}).get("samples_per_s")
        alone_us = rows.get(f"{model}, single-stream, {turn}", {}).get("p50_us")
        if offline is not None:
            ratio = offline / loop["samples_per_s"]
            yield f"{model}, Offline / loop, {turn}", ratio, "at least 0.97", ratio >= 0.97
        if alone_us is not None:
            more_us = alone_us - loop["p50_ns"] / 1e3
            yield (
                f"{model}, single-stream p50 - loop, us, {turn}",
                more_us,
                "at most 10",
                more_us <= 10,
            )


def _beside_the_grid(day: Mapping[str, Rows]) -> Iterator[tuple[str, float, str, bool]]:
    rows = day.get("server", {})
    for label, row in rows.items():
        grid = [other for name, other in rows.items() if name.startswith(f"{label}, ")]
        valid_us = [each["p99_us"] for each in grid if each.get("verdict") == "VALID"]
        if valid_us and row.get("p99_us") is not None:
            ratio = row["p99_us"] / min(valid_us)
            yield f"Server, {label}: p99 / best of the grid", ratio, "at most 1.1", ratio <= 1.1


def tail(loads: Mapping[str, Rows], percentile: str) -> Figure:
    """Draws one line per section and number of instances. A run that lacks this latency has no point."""
    lines: dict[str, dict[float, float | None]] = {}
    for section, rows in loads.items():
        for label, row in rows.items():
            latency_us = row.get(f"{percentile}_us")
            if latency_us is None or (found := _LOAD.fullmatch(label)) is None:
                continue
            points = lines.setdefault(f"{section}: {row['instances']} instances", {})
            points[100 * float(found[1])] = rounded(latency_us / _US_PER_MS)
    traces = [
        line(name, sorted(points), [points[x] for x in sorted(points)])
        for name, points in lines.items()
    ]
    axes = {"xaxis": {"title": "load, % of Offline"}, "yaxis": {"title": "ms", "type": "log"}}
    return Figure(f"Server: {percentile} by load", "ResNet-50, float16.", traces, axes)


def stages(rows: Rows) -> Figure:
    """Draws the median of each stage at each load that the GPU sustains."""
    at = {
        float(found[1]): row["stages_p50_us"]
        for label, row in rows.items()
        if (found := _LOAD.fullmatch(label)) and not found[2] and row.get("verdict") == "VALID"
    }
    series = {stage: [rounded(at[x][stage] / _US_PER_MS) for x in sorted(at)] for stage in _STAGES}
    names = [f"{x:.0%}" for x in sorted(at)]
    axes = ("load, % of Offline", "ms")
    return bars("Server: stages by load", "Medians.", axes, names, series, "stack")


def tables(day: Mapping[str, Rows]) -> Iterator[str]:
    """Yields one table per section, which shows runs with their numbers and all other rows as text."""
    for section, rows in day.items():
        yield f"<h2>{escape(section)}</h2>"
        runs = {label: row for label, row in rows.items() if "verdict" in row and "codes" in row}
        if runs:
            yield page.table(
                _HEADS, [[label, *cells(row)] for label, row in runs.items()], numbers=4
            )
        others = [(label, json.dumps(row)) for label, row in rows.items() if label not in runs]
        if others:
            yield page.facts(others)


def cells(row: Mapping[str, Any]) -> Sequence[str]:
    numbers = (
        row.get("samples_per_s"),
        *(_in_ms(row.get(f"{p}_us")) for p in ("p50", "p99")),
        row.get("peak_watts"),
    )
    return [
        row["verdict"],
        *("" if x is None else f"{x:,.{0 if x >= 100 else 3}f}" for x in numbers),
    ]


def _in_ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / _US_PER_MS


if __name__ == "__main__":
    main()
