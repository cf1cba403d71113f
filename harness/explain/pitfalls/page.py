"""Writes pitfalls.html: each change's effect as bars, from the content of pitfalls.json."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import Any

from harness.core.units import counted
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure, table
from harness.results.pages.plots import bars_in_rows, rounded
from harness.results.pages.tables import Cell, Column, Table, columns

PAGE = "pitfalls.html"

LEAST_SHOWN_PERCENT = 1e-4
"""Lower end of the logarithmic axis, as a percentage of the input's range."""

_NAMED = 3
"""The headline names at most this many dangerous changes."""

_COLOURS = {
    "dangerous": "#c0392b",
    "changed": "#e67e22",
    "small": "#d9a520",
    "differs": "#4a78b0",
    "harmless": "#4c9a5b",
}


def write(reports: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Writes the page and returns its path.

    reports: `reports` of pitfalls.json. Raises PluginUnavailable if plotly is not installed.
    """
    return page.write(articles(reports), "pitfalls", folder / PAGE, script_in=folder)


def articles(reports: Sequence[Mapping[str, Any]]) -> list[Article]:
    return [Article(list(_head(one)), list(figures(one)), list(_tail(one))) for one in reports]


def figures(report: Mapping[str, Any]) -> Iterator[Figure]:
    """Yields the agreement of answers, if any, and then the change of the input."""
    changes = report["changes"]
    if any(one["agreement"] is not None for one in changes):
        yield _bars(
            "Answers that agree",
            "Share of the samples with the same answer as the baseline, by change; the worst change comes first.",
            changes,
            [rounded(one["agreement"], 100) for one in changes],
            {"title": "agreement, %", "range": [0, 112]},
        )
    low, high = report["input_range"]
    span = (high - low) or 1.0
    shares = [rounded(one["input_mean_difference"], 100 / span) for one in changes]
    pairs = zip(changes, shares, strict=True)
    changed = [(one, v) for one, v in pairs if v is None or v > LEAST_SHOWN_PERCENT]
    known = [share for _, share in changed if share is not None]
    if not known:
        return
    highest = log10(max(known)) + 0.5  # leaves room for the bar's text
    yield _bars(
        "Change of the input",
        "Mean difference of the input's values, as a share of their range; no bar if it is not finite, and no row if it "
        "is 0.",
        [one for one, _ in changed],
        [share for _, share in changed],
        {
            "title": "mean difference, % of the input's range",
            "type": "log",
            "range": [log10(LEAST_SHOWN_PERCENT), max(2.5, highest)],
        },
    )


def _bars(
    title: str,
    about: str,
    changes: Sequence[Mapping[str, Any]],
    values: Sequence[float | None],
    axis: Mapping[str, Any],
) -> Figure:
    """Draws a bar per change, coloured by verdict. values: in percent. No bar is drawn for None."""
    by_verdict = list(zip([change["verdict"] for change in changes], values, strict=True))
    return bars_in_rows(
        title,
        about,
        axis,
        [_name(change) for change in changes],
        {one: [v if verdict == one else None for verdict, v in by_verdict] for one in _COLOURS},
        "stack",
        _COLOURS,
        texttemplate="%{x:.3~g} %",
        textposition="outside",
        cliponaxis=False,
    )


def _name(change: Mapping[str, Any]) -> str:
    return f"{change['kind']}: {change['change']}"


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    on = f"on {report['backend']}" if report["backend"] else "inputs only"
    yield heading(["Pitfalls", report["model"], report["dataset"], on], Badges())
    yield page.headline(headline(report))
    yield f"<p>{escape(summary(report))}</p>"
    for note in report["notes"]:
        yield f'<p class="quiet">{escape(note)}</p>'


def headline(report: Mapping[str, Any]) -> str:
    """Counts the changes by verdict, and names the dangerous changes."""
    changes = report["changes"]
    counts = Counter(one["verdict"] for one in changes)
    parts = [f"{counts[verdict]} {verdict}" for verdict in _COLOURS if counts[verdict]]
    worst = [_name(one) for one in changes if one["verdict"] == "dangerous"][:_NAMED]
    names = f"; dangerous: {'; '.join(worst)}" if worst else ""
    more = ", …" if counts["dangerous"] > _NAMED else ""
    return f"Of {counted(len(changes), 'change')}: {', '.join(parts) or 'none'}{names}{more}"


def summary(report: Mapping[str, Any]) -> str:
    low, high = report["input_range"]
    score = "no score" if report["score"] is None else f"{report['metric']} {report['score']:.2f}"
    why = f" ({report['no_score']})" if report["no_score"] else ""
    return f"{counted(report['samples'], 'sample')}, input {low:.4g} to {high:.4g}, {score}{why}"


def changes_table(report: Mapping[str, Any]) -> Table:
    """Returns the table of changes. report: an entry of `reports` in pitfalls.json."""
    score = "score" if report["score"] is None else report["metric"]
    heads = columns("kind | change | differ [share] | max [1] | mean [1] | agree [share]")
    heads += [Column(score, "1"), Column("verdict")]
    rows: list[list[Cell]] = [
        [
            one["kind"],
            one["change"],
            one["input_share_differing"],
            _number(one["input_max_difference"], ".4g"),
            _number(one["input_mean_difference"], ".3g"),
            one["agreement"],
            None if one["score"] is None else f"{one['score']:.2f}",
            one["verdict"],
        ]
        for one in report["changes"]
    ]
    return Table("changes", "Changes", "", heads, rows)


def _number(value: float | None, form: str) -> str:
    return "not finite" if value is None else format(value, form)


def _tail(report: Mapping[str, Any]) -> Iterator[str]:
    yield from page.section(changes_table(report), cards=True)
    if report["not_possible"]:
        yield "<h2>Not possible</h2>"
        rows = [[one["kind"], one["name"], one["reason"]] for one in report["not_possible"]]
        yield table(("kind", "change", "reason"), rows, cards=True)
