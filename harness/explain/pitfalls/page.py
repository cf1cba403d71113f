"""pitfalls.html: the cost of each change of the input as bars, from the content of pitfalls.json."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.results.pages import page
from harness.results.pages.page import Article, Figure, table

PAGE = "pitfalls.html"

LEAST_SHOWN_PERCENT = 1e-4
"""Of the input's range: the left end of the logarithmic axis."""

_COLOURS = {"dangerous": "#c0392b", "small": "#d9a520", "differs": "#4a78b0", "harmless": "#4c9a5b"}
_ROW_REM = 1.6
_AXES_REM = 8.0
_WIDE_REM = Figure._field_defaults["height_rem"] + 1
"""A higher figure has the page's whole width: names of changes are long."""


def write(reports: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """The page's path. reports: of pitfalls.json. A PluginUnavailable names the extra that is missing."""
    articles = [Article(list(_head(one)), list(figures(one)), list(_tail(one))) for one in reports]
    return page.write(articles, "pitfalls", folder / PAGE, script_in=folder)


def figures(report: Mapping[str, Any]) -> Iterator[Figure]:
    """Answers that agree, where there are answers; then by how much the input changes."""
    changes = report["changes"]
    if any(one["agreement"] is not None for one in changes):
        yield _bars(
            "Answers that agree",
            "Share of the samples whose answer is the baseline's, by change; the worst on top.",
            changes,
            [_percent(one["agreement"]) for one in changes],
            {"title": "agreement, %", "range": [0, 112]},
        )
    low, high = report["input_range"]
    span = (high - low) or 1.0
    means = [one["input_mean_difference"] for one in changes]
    shares = [None if mean is None else _percent(mean / span) for mean in means]
    yield _bars(
        "Change of the input",
        "Mean difference of the input's values, as a share of their range; no bar where there is "
        "none, or where it is not finite.",
        changes,
        [share if share is not None and share > LEAST_SHOWN_PERCENT else None for share in shares],
        {"title": "mean difference, % of the input's range", "type": "log", "range": [-4, 2.5]},
    )


def _bars(
    title: str,
    about: str,
    changes: Sequence[Mapping[str, Any]],
    values: Sequence[float | None],
    axis: Mapping[str, Any],
) -> Figure:
    """A bar a change, coloured by its verdict. values: in %; None has no bar."""
    data = []
    for verdict, colour in _COLOURS.items():
        shown = [
            (_name(change), value)
            for change, value in zip(changes, values, strict=True)
            if change["verdict"] == verdict and value is not None
        ]
        if shown:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": [name for name, _ in shown],
                    "x": [value for _, value in shown],
                    "text": [f"{value:.3g} %" for _, value in shown],
                    "textposition": "outside",
                    "cliponaxis": False,
                    "hoverinfo": "y+text",
                    "name": verdict,
                    "marker": {"color": colour},
                }
            )
    rows = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [_name(change) for change in reversed(changes)],
        "range": [-0.5, len(changes) - 0.5],
        "dtick": 1,
    }
    height_rem = max(_WIDE_REM, _AXES_REM + _ROW_REM * len(changes))
    return Figure(title, about, data, {"xaxis": axis, "yaxis": rows}, height_rem)


def _name(change: Mapping[str, Any]) -> str:
    return f"{change['kind']}: {change['change']}"


def _percent(share: float | None) -> float | None:
    return None if share is None else float(f"{share * 100:.6g}")


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    on = f"on {report['backend']}" if report["backend"] else "inputs only"
    yield f"<h1>Pitfalls · {escape(report['model'])} · {escape(report['dataset'])} · {escape(on)}</h1>"
    low, high = report["input_range"]
    score = report["no_score"] or "no score"
    if report["score"] is not None:
        score = f"{report['metric']} {report['score']:.2f}"
    line = f"{report['samples']:,} samples, input {low:.4g} to {high:.4g}, {score}"
    yield f"<p><b>{escape(line)}</b></p>"
    for note in report["notes"]:
        yield f'<p class="quiet">{escape(note)}</p>'


def _tail(report: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Changes</h2>"
    heads = (
        *("kind", "change", "verdict", "values that differ"),
        *("largest", "mean", "agreement", report["metric"] or "score"),
    )
    yield table(heads, [_row(change) for change in report["changes"]], numbers=5)
    if report["not_possible"]:
        yield "<h2>Not possible</h2>"
        rows = [[one["kind"], one["name"], one["reason"]] for one in report["not_possible"]]
        yield table(("kind", "change", "why"), rows)


def _row(change: Mapping[str, Any]) -> list[str]:
    largest, mean = change["input_max_difference"], change["input_mean_difference"]
    agreement, score = change["agreement"], change["score"]
    return [
        *(change["kind"], change["change"], change["verdict"]),
        f"{change['input_share_differing'] * 100:.1f} %",
        "not finite" if largest is None else f"{largest:.4g}",
        "not finite" if mean is None else f"{mean:.3g}",
        "-" if agreement is None else f"{agreement * 100:.1f} %",
        "-" if score is None else f"{score:.2f}",
    ]
