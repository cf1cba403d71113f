"""Draws the page of `runs --history`, which follows the numbers of a workload on one machine from run to run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import median
from string import ascii_uppercase
from typing import Any, NamedTuple

from harness.core.units import counted, show_percent
from harness.results.numbers import Number
from harness.results.pages.heading import subject
from harness.results.pages.page import (
    Article,
    Figure,
    Html,
    aligned_table,
    chip,
    counted_codes,
    whole,
    with_meanings,
)
from harness.results.pages.runs.overview import OPTIONS, Overview, first_articles
from harness.results.pages.runs.rows import (
    Addresses,
    Row,
    exact_load,
    linked,
    load_text,
    main_number,
    main_text,
    numbers,
    shown,
)
from harness.results.pages.words import words

LEAST_POINTS = 2
"""Minimum number of points in a plot."""

_FEWEST_DRAWN = 4
"""Minimum number of runs for a course in the overview, and for plots on a page of several workloads."""

_LISTED = 50

_FEWEST_BEFORE = 3
"""Minimum number of earlier VALID runs whose range is an expectation for the newest run."""

_WIDE = 5
"""Smallest ratio of the largest number to the smallest that makes the axis of several lines logarithmic."""

_MOST_MARKS = 8
_MOST_TICKS = 6
_VERSION_LENGTH = 24
"""Largest number of characters of a version in a mark's label."""
_COMMIT_LENGTH = 7


def history(rows: Sequence[Row], addresses: Addresses, choice: str = OPTIONS) -> list[Article]:
    """Returns an overview, then one article per workload and load with several runs, the most recent first.

    rows: newest first. choice: as in `first_articles`.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (*(row[name] for name in ("model", "scenario", "backend")), load_text(row))
        key += (row["dataset"], row["dataset_digest"] or "", row["host"] or "-")
        groups.setdefault(key, []).append(row)

    # With two or three points, a plot shows no more than the table, but takes the room of ten rows.
    several = sum(len(members) > 1 for members in groups.values())
    fewest = LEAST_POINTS if several == 1 else _FEWEST_DRAWN

    hosts = {key[-1] for key in groups}
    is_shared = len(hosts) == 1 < len(groups)
    introduction = _INTRODUCTION
    if is_shared:
        introduction += f'<p class="quiet">All runs are on {escape(min(hosts))}.</p>'

    def article(key: Sequence[str], members: Sequence[Row]) -> Article:
        figures = list(_figures(members[::-1], addresses)) if len(members) >= fewest else []
        head = _head(key, members, "" if is_shared else f" on {key[-1]}", has_plots=bool(figures))
        return Article(list(head), figures, [_table(members, addresses)])

    page = _PAGE._replace(introduction=introduction)
    return first_articles(groups, page, article, addresses, choice)


_INTRODUCTION = (
    '<p class="quiet">A workload has a model, scenario, backend, data, machine and load: without <code>--target-qps</code>, '
    "each Server run has another load. Workloads with fewer than "
    f"{_FEWEST_DRAWN} runs have only a table. The overview compares VALID runs. Settings may differ from run to run: "
    "compare shows how, and whether a change is more than noise.</p>"
)
_READING = (
    "A plot shows the runs of one workload on one machine, the newest on the right; a line connects VALID runs, and "
    "crosses are INVALID runs. A click on a point opens its run."
)


def _summary(members: Sequence[Row]) -> Sequence[str]:
    """Returns the cells of a workload in the overview. Compares the newest VALID run with the VALID runs before it, and
    names a newer INVALID run. members: newest first.
    """
    valid = [row for row in members if row["verdict"] == "VALID"]
    invalid = len(members) - len(valid)
    runs = f"{len(members)}, {invalid} INVALID" if invalid else f"{len(members)}"
    newest = valid[0] if valid else members[0]
    shown_result = escape(main_text(newest))
    if not valid:
        shown_result += f" {with_meanings('INVALID')} of {whole(_minute(newest))}"
    elif members[0] is not newest:
        later = f"newer: {with_meanings('INVALID')} of {whole(_minute(members[0]))}"
        shown_result += f'<br><span class="quiet">{later}</span>'
    if valid and _is_of_many_settings(valid):
        valid, members = (
            [row for row in some if row["settings"] == newest["settings"]]
            for some in (valid, members)
        )
    main = main_number(newest)
    found = (numbers(row).get(main[0]) for row in valid[1:]) if main is not None else ()
    before = [number.value for number in found if number is not None]
    against = _against(main[1], before) if main is not None else ""
    start = whole(_minute(newest)) if valid else "-"
    return (runs, start, Html(shown_result), against, _spark(members))


def _is_of_many_settings(members: Sequence[Row]) -> bool:
    """Returns whether studies among the runs vary the settings, as grids do. The order of such runs has no meaning."""
    inside = {row["settings"] for row in members if "/" in str(row["folder"])}
    return len(inside) > 1


def _minute(row: Row) -> str:
    return str(row["started"])[:16].replace("T", " ")


def _against(newest: Number, before: Sequence[float]) -> str:
    """Compares the newest number with the earlier numbers. Only `compare` shows whether a change is more than noise."""
    if not before:
        return ""
    middle = median(before)
    change = _change(newest.value, middle) if middle else "-"
    if len(before) < _FEWEST_BEFORE:
        is_better = (newest.value > middle) == newest.higher_is_better
        direction = "better" if is_better else "worse"
        return (
            f"{change} ({direction}), too few runs to judge" if newest.value != middle else change
        )
    if min(before) <= newest.value <= max(before):
        return f"{change}, within their range"
    kind = "better" if (newest.value > max(before)) == newest.higher_is_better else "worse"
    # No colour of a verdict: only `compare` knows the noise.
    colour = "uncertain" if kind == "worse" else "quiet"
    return Html(f"{escape(change)}, {chip(f'{kind} than all {len(before)}', colour)}")


def _change(value: float, middle: float) -> str:
    """Formats a change in percent, or as a factor from a factor of two on, because +1,471 % is easily misread."""
    ratio = value / middle
    return show_percent(ratio - 1, 1, signed=True) if 0.5 < ratio < 2 else f"x {ratio:.3g}"


_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24


def _spark(members: Sequence[Row]) -> str:
    """Draws the main number of a workload's runs as a small line from zero through the VALID runs. A filled point is
    the newest VALID run, and a cross is an INVALID run.
    """
    main = main_number(members[0])
    if main is None:
        return ""
    found = [
        (row["verdict"] == "VALID", number.value)
        for row in members[:_LISTED][::-1]
        if (number := numbers(row).get(main[0])) is not None
    ]
    values = [value for _, value in found]
    if len(values) < _FEWEST_DRAWN or min(values) < 0 or max(values) == 0:
        return ""
    step, edge = (_SPARK_WIDTH - 8) / (len(values) - 1), 4
    points = [
        (
            is_valid,
            f"{edge + i * step:.1f}",
            f"{_SPARK_HEIGHT - edge - value / max(values) * (_SPARK_HEIGHT - 2 * edge):.1f}",
        )
        for i, (is_valid, value) in enumerate(found)
    ]
    valid = [(x, y) for is_valid, x, y in points if is_valid]
    marks = [
        f'<path class="reason" stroke="currentColor" d="M{x} {y}m-3-3l6 6m0-6l-6 6"/>'
        for is_valid, x, y in points
        if not is_valid
    ]
    marks += [f'<circle cx="{x}" cy="{y}" r="3" fill="currentColor"/>' for x, y in valid[-1:]]
    return Html(
        f'<svg class="interval" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" width="{_SPARK_WIDTH}" '
        f'height="{_SPARK_HEIGHT}" stroke="currentColor" fill="none" aria-hidden="true">'
        f'<polyline points="{" ".join(f"{x},{y}" for x, y in valid)}"/>{"".join(marks)}</svg>'
    )


def _title(key: Sequence[str], members: Sequence[Row]) -> str:
    model, scenario, backend, _, dataset, *_ = key
    load = exact_load(members)
    return " · ".join([subject(model, dataset), scenario, backend, *([load] if load else [])])


_PAGE = Overview(
    "History: the numbers of each workload, run after run",
    _INTRODUCTION,
    _READING,
    (
        "workload",
        "runs",
        "newest VALID, UTC",
        "result",
        "against the median before",
        "course",
    ),
    _summary,
    _title,
    lambda row: row,
    "workload",
    "run",
    len,
)


def _head(
    key: Sequence[str], members: Sequence[Row], where: str, *, has_plots: bool
) -> Iterator[str]:
    """Yields the top of an article. where: the machine, if the page does not name it."""
    yield f"<h1>{escape(_title(key, members))}</h1>"
    invalid = sum(row["verdict"] != "VALID" for row in members)
    removed = sum(row["removed"] for row in members)
    summary = f"{counted(len(members), 'run')}{where}"
    summary += f", {invalid} of them INVALID" if invalid else ""
    summary += f", {removed} with removed folders" if removed else ""
    same = [f"{words(name)} {shown(one)}" for name, one in _same(members).items()]
    summary += f". Without a change: {', '.join(same)}" if same else ""
    yield f'<p class="quiet">{escape(summary)}.</p>'
    if has_plots and (changes := _changes(members[::-1])):
        named = (f"<b>{one.letter}</b>\u00a0{whole(one.text)}" for one in changes)
        yield f'<p class="quiet">Versions (dotted lines): {"; ".join(named)}.</p>'


def _same(members: Sequence[Row]) -> dict[str, Number]:
    """Returns the numbers that are the same in all runs that have them, and that at least LEAST_POINTS runs have."""
    values: dict[str, list[Number]] = {}
    for row in members:
        for name, number in numbers(row).items():
            values.setdefault(name, []).append(number)
    return {
        name: found[0]
        for name, found in values.items()
        if len(found) >= LEAST_POINTS and len({number.value for number in found}) == 1
    }


_PERCENTILE = re.compile(r"(?:^|[_.])(p\d+(?:\.\d+)?|mean)$")


def _family(name: str) -> tuple[str, str]:
    """Returns the name of a number's plot and the name of its line: 'ttft_p99' -> ('TTFT', 'p99')."""
    found = _PERCENTILE.search(name)
    if found is None:
        return words(name), words(name)
    return words(name[: found.start()]) or "latency", found[1]


def _figures(members: Sequence[Row], addresses: Addresses) -> Iterator[Figure]:
    """Yields a plot per kind of number, without numbers that are the same in every run.

    The percentiles of a latency are the lines of one plot. INVALID runs are crosses in the colour of the line, which
    skips them. members: oldest first.
    """
    measured = [(row, numbers(row)) for row in members]
    marks = [_mark(change) for change in _changes(members)]
    same, axis = _same(members), _starts(members)
    families: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for _, values in measured for name in values):
        known = sum(name in values for _, values in measured)
        if known >= LEAST_POINTS and name not in same:  # the table shows the other numbers
            families.setdefault(_family(name)[0], []).append(name)
    for title, names in families.items():
        data = [trace for name in names for trace in _lines(name, measured, addresses)]
        values = [y for trace in data for y in trace["y"]]
        unit = next(v[names[0]].unit for _, v in measured if names[0] in v)
        wide = len(names) > 1 and min(values) > 0 and max(values) > _WIDE * min(values)
        yaxis: dict[str, Any] = {"title": f"{title}, {unit}" if unit else title}
        yaxis |= {"type": "log"} if wide else limits(names[0], values)
        yield Figure(
            f"{title[:1].upper()}{title[1:]}",
            "",
            _with_key(data),
            {
                "xaxis": axis,
                "yaxis": yaxis,
                "showlegend": True,
                # The letters of the marks are between the plot and the legend.
                "legend": {"y": 1.1 if marks else 1.02, "traceorder": "normal"},
                "shapes": marks,
            },
            height_rem=18,
        )


def _lines(
    name: str, measured: Sequence[tuple[Row, Mapping[str, Number]]], addresses: Addresses
) -> Iterator[dict[str, Any]]:
    """Yields the line of a number's VALID runs, and the crosses of its INVALID runs."""
    points = [(row, values[name]) for row, values in measured if name in values]
    valid = [point for point in points if point[0]["verdict"] == "VALID"]
    invalid = [point for point in points if point[0]["verdict"] != "VALID"]
    number = _family(name)[1]
    if valid:
        yield {**_trace(name, valid, addresses), "mode": "lines+markers", "name": number}
    if invalid:
        # The legend group gives the crosses the colour of the line.
        marks = {"mode": "markers", "name": _INVALID, "legendgroup": number, "marker": _CROSS}
        yield {**_trace(name, invalid, addresses), **marks, "showlegend": False}


_INVALID = "INVALID"
_CROSS = {"symbol": "circle-x-open", "size": 11, "line": {"width": 2}}


def _with_key(data: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds what the legend lacks: the percentiles that only INVALID runs have, and the cross."""
    lines = {trace["name"] for trace in data}
    groups = dict.fromkeys(trace["legendgroup"] for trace in data if trace["name"] == _INVALID)
    absent: list[dict[str, Any]] = [
        {"x": [None], "y": [None], "mode": "lines", "name": group}
        for group in groups
        if group not in lines
    ]
    if groups:
        cross = {**_CROSS, "color": "#888888"}
        absent.append(
            {"x": [None], "y": [None], "mode": "markers", "name": _INVALID, "marker": cross}
        )
    return [*data, *absent]


class _Change(NamedTuple):
    """A change of version between two runs."""

    letter: str
    place: float
    """Position on the axis of a plot, where the oldest run is at 0."""
    text: str
    """The new versions and the first run that has them."""


def _changes(members: Sequence[Row]) -> list[_Change]:
    """Returns the changes of the framework's and the harness's version from run to run. members: oldest first.

    Returns only the last _MOST_MARKS changes, so that the plots stay readable. A letter stands for the versions, because
    their names would overlap.
    """
    found = []
    for place, (before, row) in enumerate(pairwise(members)):
        changed = [
            f"{prefix}{str(row[key])[:length]}"
            for key, prefix, length in (
                ("framework", "", _VERSION_LENGTH),
                ("harness_commit", "harness ", _COMMIT_LENGTH),
            )
            if row[key] and before[key] and row[key] != before[key]
        ]
        if changed:
            found.append((place + 0.5, f"{', '.join(changed)} from {_start(row)} on"))
    last = found[-_MOST_MARKS:]
    return [_Change(letter, *change) for letter, change in zip(ascii_uppercase, last, strict=False)]


def _mark(change: _Change) -> dict[str, Any]:
    """Draws a line with the letter of a change above the plot."""
    across = {"x0": change.place, "x1": change.place, "y0": 0, "y1": 1, "yref": "paper"}
    where = {"textposition": "end", "textangle": 0, "xanchor": "center", "yanchor": "bottom"}
    dotted = {"line": {"dash": "dot", "width": 1}, "label": {"text": change.letter, **where}}
    return {"type": "line", **across, **dotted}


def _starts(members: Sequence[Row]) -> dict[str, Any]:
    """Returns the axis of the runs. members: oldest first.

    Names the starts of at most _MOST_TICKS runs, the newest and others at the same distance, in two short lines: plotly
    would turn a long text on a narrow screen and cut it off at the edge. The names have seconds if runs of one minute
    are among them.
    """
    named = members[::-1][:: -(-len(members) // _MOST_TICKS)]
    are_close = len({_start(row)[:11] for row in named}) < len(named)
    ticks = {
        _start(row)[: None if are_close else 11].replace(" ", "<br>"): row["folder"]
        for row in named
    }
    return {
        "type": "category",
        "categoryarray": [row["folder"] for row in members],
        "title": "runs in order, named by start (UTC)",
        "tickvals": list(ticks.values()),
        "ticktext": list(ticks),
        "tickangle": 0,
    }


def _start(row: Row) -> str:
    """Returns the start of a run without its year, in UTC: 11-28 14:01:57."""
    return str(row["started"])[5:19].replace("T", " ")


def limits(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Returns the limits of an axis for a number. The axis of an accuracy in percent ends at 100."""
    if not name.startswith("accuracy"):
        return {"rangemode": "tozero"}
    return {"maxallowed": 100} if max(values) <= 100 else {}


def _trace(name: str, points: Sequence[tuple[Row, Number]], addresses: Addresses) -> dict[str, Any]:
    return {
        "x": [row["folder"] for row, _ in points],
        "y": [float(f"{number.value:.6g}") for _, number in points],
        # Otherwise a point on the edge, such as an accuracy of 100 %, would be clipped.
        "cliponaxis": False,
        "customdata": [f"{_family(name)[1]} {shown(number)}" for _, number in points],
        "text": [hover(row) for row, _ in points],
        "hovertemplate": "%{customdata}<br>%{text}",
        "meta": {"links": [addresses(row) for row, _ in points]},
    }


def hover(row: Row) -> str:
    """Returns the text that plotly shows at a point. The text is escaped, because plotly interprets some HTML."""
    commit = f", harness {row['harness_commit'][:10]}" if row["harness_commit"] else ""
    verdict = row["verdict"] if row["verdict"] != "VALID" else ""
    return escape(f"{row['folder']}{commit} {verdict} {row['reasons']}").strip()


def _table(members: Sequence[Row], addresses: Addresses) -> str:
    measured = [(row, numbers(row)) for row in members[:_LISTED]]
    known = dict.fromkeys(name for _, values in measured for name in values)
    # The head of the article has the numbers that all runs share.
    shared = {n for n in _same(members) if all(n in values for _, values in measured)}
    names = [name for name in known if name not in shared]
    # The reasons come last, because the numbers must be visible on a narrow screen without scrolling.
    has_reasons = any(row["reasons"] for row, _ in measured)
    has_doubts = any(row.get("doubts") for row, _ in measured)  # runs.sqlite has none
    rows = [
        (
            linked(row, addresses),
            with_meanings(row["verdict"]),
            *(shown(values.get(name)) for name in names),
            *([with_meanings(row["reasons"])] if has_reasons else []),
            *([counted_codes(row["doubts"].split(), "doubt", "uncertain")] if has_doubts else []),
        )
        for row, values in measured
    ]
    last = [*(["reasons"] if has_reasons else []), *(["doubts"] if has_doubts else [])]
    heads = ("run", "verdict", *map(words, names), *last)
    is_number = [False] * 2 + [True] * len(names) + [False] * len(last)
    return aligned_table(heads, rows, is_number, cards=has_reasons)
