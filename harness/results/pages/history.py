"""Draws the page of `runs --history`, which follows the numbers of a workload on one machine from run to run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from harness.core.units import NS_PER_MS, counted, show_ns, show_rate, show_si
from harness.loadgen.scenario import scenario_named
from harness.results import database, run_folder
from harness.results.numbers import Number
from harness.results.numbers import numbers as numbers_of
from harness.results.pages.page import Article, Figure, link, table
from harness.results.pages.words import words

MOST = 12
"""Largest number of workloads on a page, because each workload has several plots."""

LEAST_POINTS = 2
"""Minimum number of points in a plot."""

_LISTED = 50
_MOST_MARKS = 8
_VERSION_LENGTH = 24
"""Largest number of characters that a mark's label shows of a version."""
_COMMIT_LENGTH = 7
Row = Mapping[str, Any]
T = TypeVar("T")


def load_text(row: Row) -> str:
    """Returns the load that the user set; '' without one. Runs with different loads cannot be ranked.

    A rate has two digits, because calibrated rates differ a little from run to run.
    """
    scenario = scenario_named(row["scenario"])
    if row["peak"] is not None:
        return f"peak at {row['slo']}"
    if row["concurrency"] is not None:
        return f"{row['concurrency']} in flight"
    if row["arrivals_sha256"] is not None:
        return f"arrivals {str(row['arrivals_sha256'])[:8]}"
    if scenario.scheduled:
        rate = row["asked_per_s"]
        known = isinstance(rate, int | float) and math.isfinite(rate)
        return f"{show_rate(float(f'{rate:.2g}'))} queries/s" if known else "unknown rate"
    return f"{row['samples_per_query']} samples per query" if scenario.by_query else ""


def numbers(row: Row) -> dict[str, Number]:
    """Returns the numbers that the run measured, without numbers that the user set.

    Omits the rate if queries came on a schedule, and the latency in Offline, where it only reflects how many samples
    were issued. Shows the load that a search found instead of the latency, because this latency is just below the
    bound.
    """
    scenario, is_peak = scenario_named(row["scenario"]), row["peak"] is not None
    axis = scenario.search_axis if row["concurrency"] is None else None
    is_paced = scenario.scheduled and row["concurrency"] is None
    was_set = {"samples/s", "ns"} if is_peak else {"samples/s"} if is_paced else set()
    peak = Number(row["peak"], axis.unit if axis else "in flight", higher_is_better=True)
    found: dict[str, Any] = {"peak": peak, **numbers_of(database.content_of(row))}
    shown = {"accuracy": f"accuracy.{row['metric']}", "headline": "early-stopping estimate"}
    return {
        shown.get(name, name): _in_ms(number)
        for name, number in found.items()
        if number.unit not in was_set
        if isinstance(number.value, int | float) and math.isfinite(number.value)
    }


def _in_ms(number: Number) -> Number:
    is_time = number.unit == "ns"
    return number._replace(value=number.value / NS_PER_MS, unit="ms") if is_time else number


Linked = Callable[[str], str]
"""Maps the folder of a run in the database to its name, with a link to the run's page if the page exists."""


def reports_in(results: Path, page: Path) -> Linked:
    """Returns a function that links from `page` to a run's report.html, if the run has one."""
    return lambda folder: link(run_name(folder), results / folder / "report.html", page)


def run_name(folder: str) -> str:
    """Returns the start of the run if the folder is named after it: '2026-11-28 15:26:40'; else the folder."""
    found = run_folder.TIMED.fullmatch(folder)
    return f"{found[1]} {found[2]}:{found[3]}:{found[4]}" if found else folder


def history(rows: Sequence[Row], linked: Linked) -> list[Article]:
    """Returns one article per workload and load, the most recent first. rows: newest first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (*(row[name] for name in ("model", "scenario", "backend")), load_text(row))
        key += (row["dataset"], row["dataset_digest"] or "", row["host"] or "-")
        groups.setdefault(key, []).append(row)

    def article(key: Sequence[str], members: Sequence[Row]) -> Article:
        rows = _table(members, linked)
        return Article(list(_head(key, members)), list(_figures(members[::-1])), [rows])

    hint = "are not shown: choose with --model, --backend, --scenario, --host or --since"
    return first_articles(groups, article, _INTRODUCTION, hint)


_INTRODUCTION = (
    "<h1>History: the numbers of each workload, run after run</h1>"
    '<p class="quiet">A plot shows one number of one workload on one machine, with the newest run on the right. The '
    "line connects VALID runs; a cross is an INVALID run. A dotted line marks the first run with a different version. "
    "Settings may differ from run to run: compare shows how, and whether a change is more than noise.</p>"
)


def first_articles(
    groups: Mapping[tuple[str, ...], list[T]],
    article: Callable[[tuple[str, ...], list[T]], Article],
    introduction: str,
    hint: str,
) -> list[Article]:
    """Returns an article for each of the first MOST groups.

    introduction: HTML at the top of the page. hint: text that follows the number of skipped groups.
    """
    articles = [article(key, members) for key, members in list(groups.items())[:MOST]]
    titles = [one.head[0] for one in articles]
    if len(articles) > 1:
        articles = [
            one._replace(head=[f'<div id="{_ID}{i}">{one.head[0]}</div>', *one.head[1:]])
            for i, one in enumerate(articles)
        ]
        articles.insert(0, Article([introduction, *_contents(titles)], [], []))
    elif articles:
        articles = [one._replace(head=[introduction, *one.head]) for one in articles]
    if len(groups) > MOST:
        articles.append(Article([f"<p>{len(groups) - MOST} more {hint}.</p>"], [], []))
    return articles


_ID = "workload-"


def _contents(titles: Sequence[str]) -> Iterator[str]:
    """Yields links to the articles. titles: their headings as HTML."""
    yield '<nav aria-label="contents"><ul>'
    for i, title in enumerate(titles):
        name = title.removeprefix("<h1>").removesuffix("</h1>")
        yield f'<li><a href="#{_ID}{i}">{name}</a></li>'
    yield "</ul></nav>"


def _head(key: Sequence[str], members: Sequence[Row]) -> Iterator[str]:
    model, scenario, backend, load, dataset, _digest, host = key
    heading = [f"{model} on {dataset}", scenario, backend, *([load] if load else [])]
    yield f"<h1>{escape(' · '.join(heading))}</h1>"
    invalid = sum(row["verdict"] != "VALID" for row in members)
    removed = sum(row["removed"] for row in members)
    summary = f"{counted(len(members), 'run')} on {host}"
    summary += f", {invalid} of them INVALID" if invalid else ""
    summary += f", {removed} with removed folders" if removed else ""
    same = [f"{words(name)} {shown(one)}" for name, one in _same(members).items()]
    summary += f". The same in every run: {', '.join(same)}" if same else ""
    yield f'<p class="quiet">{escape(summary)}.</p>'


def _same(members: Sequence[Row]) -> dict[str, Number]:
    """Returns the numbers that are the same in all of several runs."""
    if len(members) < LEAST_POINTS:
        return {}
    first, *others = (numbers(row) for row in members)
    return {
        name: number
        for name, number in first.items()
        if all(name in other and other[name].value == number.value for other in others)
    }


def _figures(members: Sequence[Row]) -> Iterator[Figure]:
    """Yields a plot per number that differs from run to run. INVALID runs are crosses that the line skips. members: oldest first."""
    measured = [(row, numbers(row)) for row in members]
    marks, same = _versions(members), _same(members)
    for name in dict.fromkeys(name for _, values in measured for name in values):
        points = [(row, values[name]) for row, values in measured if name in values]
        if len(points) < LEAST_POINTS or name in same:  # the table shows this number
            continue
        valid = [point for point in points if point[0]["verdict"] == "VALID"]
        invalid = [point for point in points if point[0]["verdict"] != "VALID"]
        data = []
        if valid:
            data.append({**_trace(valid), "mode": "lines+markers", "name": "VALID"})
        if invalid:
            cross = {"symbol": "x-thin-open", "size": 10, "color": "#c0392b"}
            data.append({**_trace(invalid), "mode": "markers", "name": "INVALID", "marker": cross})
        unit = points[0][1].unit
        title = words(name)
        yaxis: dict[str, Any] = {"title": f"{title}, {unit}" if unit else title}
        yaxis |= limits(name, [number.value for _, number in points])
        yield Figure(
            title,
            f"Each point is a run.{' A dotted line marks the first run with a different version.' if marks else ''}",
            data,
            {
                "xaxis": {"type": "date", "title": "start, UTC"},
                "yaxis": yaxis,
                "showlegend": True,
                "shapes": marks,
            },
            height_rem=18,
        )


def _versions(members: Sequence[Row]) -> list[dict[str, Any]]:
    """Marks each run whose version of the framework or harness differs from the run before. members: oldest first.

    Marks only the last _MOST_MARKS changes, so that the labels stay readable.
    """
    marks = []
    for before, row in pairwise(members):
        changed = [
            f"{prefix}{str(row[key])[:length]}"
            for key, prefix, length in (
                ("framework", "", _VERSION_LENGTH),
                ("harness_commit", "harness ", _COMMIT_LENGTH),
            )
            if row[key] and before[key] and row[key] != before[key]
        ]
        if changed:
            label = {"text": escape(", ".join(changed)), "textangle": -90}
            across = {"x0": _start(row), "x1": _start(row), "y0": 0, "y1": 1, "yref": "paper"}
            dotted = {"line": {"dash": "dot", "width": 1}, "label": label}
            marks.append({"type": "line", **across, **dotted})
    return marks[-_MOST_MARKS:]


def _start(row: Row) -> str:
    """Returns the start of a run in the format that plotly reads: UTC, in milliseconds."""
    return str(row["started"])[:23]


def limits(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Returns the limits of an axis for a number. The axis of an accuracy in percent ends at 100."""
    if not name.startswith("accuracy"):
        return {"rangemode": "tozero"}
    return {"maxallowed": 100} if max(values) <= 100 else {}


def _trace(points: Sequence[tuple[Row, Number]]) -> dict[str, Any]:
    return {
        "x": [_start(row) for row, _ in points],
        "y": [float(f"{number.value:.6g}") for _, number in points],
        "cliponaxis": False,  # an accuracy of 100 % lies on the edge
        "text": [hover(row) for row, _ in points],
    }


def hover(row: Row) -> str:
    """Returns the text that plotly shows at a point. The text is escaped, because plotly interprets some HTML."""
    commit = f", harness {row['harness_commit'][:10]}" if row["harness_commit"] else ""
    return escape(f"{row['folder']}{commit} {row['reasons']}")


def shown(number: Number | None) -> str:
    """Formats a number with its unit, as on the screen of a run; `-` for None."""
    if number is None:
        return "-"
    value, unit = number.value, number.unit
    if unit == "ms":
        return show_ns(value * NS_PER_MS)
    if unit == "J":
        return show_si(value, "J")
    if number.kind == "exact":
        return f"{value:.2f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip()
    return f"{show_rate(value)} {unit}".rstrip()


def _table(members: Sequence[Row], linked: Linked) -> str:
    measured = [(row, numbers(row)) for row in members[:_LISTED]]
    names = list(dict.fromkeys(name for _, values in measured for name in values))
    rows = [
        (
            linked(row["folder"]),
            f"{row['verdict']} {row['reasons']}",
            *(shown(values.get(name)) for name in names),
        )
        for row, values in measured
    ]
    return table(("run", "verdict", *map(words, names)), rows, numbers=len(names))
