"""Writes advise.html: the advice with plots."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.core.units import NS_PER_MS, show_ns
from harness.explain.advise.output import text as advise_report
from harness.results.pages import page
from harness.results.pages.page import Article, Figure, table

PAGE = "advise.html"
_MOST = 40
"""Most bars in a plot."""


def write(advice: Mapping[str, Any], folder: Path) -> Path:
    """Returns the page's path. Raises PluginUnavailable, naming the missing extra, without plotly.
    advice: the content of advise.json.
    """
    article = Article(list(_head(advice)), list(figures(advice)), list(_tail(advice)))
    return page.write([article], folder.resolve().name, folder / PAGE, script_in=folder)


def figures(advice: Mapping[str, Any]) -> Iterator[Figure]:
    """The plots that there are numbers for."""
    if advice["advice"]:
        yield _predicted(advice["advice"])
    yield _layers(advice["layers"])
    yield _levels(advice["levels"])
    weights = advice["parts"].get("weights")
    if isinstance(weights, list) and any("histogram" in row for row in weights):
        yield _weights([row for row in weights if "histogram" in row])


def _predicted(advice: Sequence[Mapping[str, Any]]) -> Figure:
    gains = {
        "predicted": [one["gain"] * 100 for one in advice],
        "realised": [one["realised"]["gain"] * 100 if one["realised"] else None for one in advice],
    }
    about = "Share of the time saved; negative: slower."
    names = [one["change"] for one in advice]
    return _bars("Advice: predicted and realised", about, names, gains, "time saved, %")


def _layers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    shown = rows[:_MOST]
    names = [f"{i + 1}. {row['ops']} {row['makes']} x{row['count']}" for i, row in enumerate(shown)]
    times = {
        "now": [
            row["now_ns"] * row["count"] / NS_PER_MS if row["now_ns"] else None for row in shown
        ],
        "best": [row["best_ns"] * row["count"] / NS_PER_MS for row in shown],
    }
    about = "Sums over equal layers: under the present setting, and under each layer's best graph level."
    figure = _bars("Layers, alone", about, names, times, "ms")
    return figure._replace(height_rem=max(22, 1.4 * len(shown)))


def _bars(
    title: str,
    about: str,
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
) -> Figure:
    """Horizontal bars, one a name for each of the series; the first name on top."""
    data = [
        {"type": "bar", "orientation": "h", "y": names, "x": _all(x), "name": name}
        for name, x in series.items()
    ]
    axes = {"xaxis": {"title": unit}, "yaxis": {"autorange": "reversed", "automargin": True}}
    return Figure(title, about, data, {**axes, "barmode": "group"})


def _levels(rows: Sequence[Mapping[str, Any]]) -> Figure:
    names = [row["graph"] for row in rows]
    return Figure(
        "Gain from fusion and layout",
        "The whole model at each graph level of ONNX Runtime, and how many kernels it runs.",
        [
            {
                "type": "bar",
                "x": names,
                "y": _all([_ms(row[f"{kind}_ns"]) for row in rows]),
                "name": kind,
            }
            for kind in ("predicted", "measured")
        ]
        + [
            {
                "x": names,
                "y": [row["kernels"] for row in rows],
                "name": "kernels",
                "yaxis": "y2",
                "mode": "lines+markers",
            }
        ],
        {
            "yaxis": {"title": "ms", "rangemode": "tozero"},
            "yaxis2": {
                "title": "kernels",
                "tickmode": "auto",
                "overlaying": "y",
                "side": "right",
                "rangemode": "tozero",
            },
            "barmode": "group",
        },
    )


def _weights(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Each tensor's histogram on its own scale: -1 to 1 times its largest value."""
    shown = sorted(rows, key=lambda row: -row["elements"])[:_MOST]
    x, y, z = [], [], []
    for row in shown:
        edge = max(abs(row["least"]), abs(row["largest"])) or 1.0
        counts, span = row["histogram"]["counts"], row["histogram"]
        width = (span["to"] - span["from"]) / len(counts)
        for i, count in enumerate(counts):
            x.append(_digits((span["from"] + (i + 0.5) * width) / edge))
            y.append(row["name"])
            z.append(_digits(count / row["elements"] * 100))
    return Figure(
        "Distribution of weights",
        "Share of each tensor's values in each of 32 bins, in per cent.",
        [
            {
                "mode": "markers",
                "x": x,
                "y": y,
                "marker": {"color": z, "symbol": "square", "showscale": True, "size": 9},
                "name": "share, %",
            }
        ],
        {
            "xaxis": {"title": "value / largest of its tensor"},
            "yaxis": {"autorange": "reversed", "automargin": True},
        },
        height_rem=max(22, 1.2 * len(shown)),
    )


def _all(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else _digits(value) for value in values]


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS


def _head(advice: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>Advice · {escape(advice['model']['name'])}</h1>"
    yield f'<p class="quiet">{escape(advice["runtime"])} · {escape(advice["now"])}</p>'
    rows = [(one["question"], one["asked"], one["answer"]) for one in advice["questions"]]
    yield table(("", "question", "answer"), rows)


def _tail(advice: Mapping[str, Any]) -> Iterator[str]:
    path = advice["lower_bound"]["path"]
    yield "<h2>Critical path</h2>"
    yield f"<p>{show_ns(advice['lower_bound']['parallel_ns'])} over {len(path)} layers.</p>"
    unexpected = advice["kernels"]["unexpected"]
    if unexpected:
        yield "<h2>Kernels that compute nothing</h2>"
        heads = ("kernel", "operator", "why", "time")
        cells = [(k["name"], k["op"], k["why"], show_ns(k["ns"])) for k in unexpected]
        yield table(heads, cells, numbers=1)
    yield "<h2>All tables</h2>"
    text = escape("\n".join(advise_report.lines(advice)))
    yield f'<div class="scroll"><pre style="white-space:pre">{text}</pre></div>'
