"""Writes advise.html: the advice with plots."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

from harness.core.units import NS_PER_MS, counted, show_ns
from harness.explain.advise.content import AdviceEntry, Content, Layer, Realised
from harness.explain.advise.output import apply
from harness.explain.advise.output import text as advise_report
from harness.explain.advise.record import share_saved
from harness.results.pages import page
from harness.results.pages.heading import Badges, heading
from harness.results.pages.page import Article, Figure, table
from harness.results.pages.plots import bars_in_rows, rounded, shortened, tall

PAGE = "advise.html"
_MOST_LAYERS = 12
"""The plot shows at most this many layers, the slowest ones. advise.json has all of them."""

_MOST_TENSORS = 12
_LEAST_GAIN = -1.0
"""A plot of gains ends at twice the time, because one bad setting would squeeze the others."""

_LONGEST_OPERATORS = 24
"""Maximum number of characters of a layer's operators in a plot."""


def write(advice: Content, folder: Path) -> Path:
    """Writes the page and returns its path. If plotly is not installed, raises PluginUnavailable with the missing
    extra.
    advice: the content of advise.json.
    """
    title = folder.resolve().name
    return page.write(articles(advice, folder), title, folder / PAGE, script_in=folder)


def articles(advice: Content, folder: Path) -> list[Article]:
    """folder: contains the files that the commands on the page use."""
    return [Article(list(_head(advice, folder)), list(figures(advice)), list(_tail(advice)))]


def figures(advice: Content) -> Iterator[Figure]:
    """Yields the plots for which numbers exist."""
    if ranked := advice["advice"]:
        yield _gains(ranked)
    layers = advice["layers"][:_MOST_LAYERS]
    yield bars_in_rows(
        "Layers, alone",
        "Total time of equal layers under the current setting and under each layer's best graph level"
        f"{'; the slowest layers' if len(layers) < len(advice['layers']) else ''}.",
        {"title": "time, ms"},
        [_layer_name(i, one) for i, one in enumerate(layers, 1)],
        {
            "now": [one["now_ns"] and one["now_ns"] * one["count"] / NS_PER_MS for one in layers],
            "best": [one["best_ns"] * one["count"] / NS_PER_MS for one in layers],
        },
        "group",
    )
    levels = advice["levels"]
    yield bars_in_rows(
        "Gain from fusion and layout",
        "The whole model at each graph level of ONNX Runtime, and how many kernels it runs.",
        {"title": "time, ms"},
        [f"{one['graph']}, {one['kernels'] or 'no'} kernels" for one in levels],
        {
            "predicted": [_ms(one["predicted_ns"]) for one in levels],
            "measured": [_ms(one["measured_ns"]) for one in levels],
        },
        "group",
    )
    weights = advice["parts"].get("weights")
    if isinstance(weights, list) and any("histogram" in row for row in weights):
        yield _weights([row for row in weights if "histogram" in row])


def _gains(ranked: Sequence[AdviceEntry]) -> Figure:
    realised = [one["realised"]["gain"] for one in ranked if one["realised"]]
    far = {
        one["change"]: low
        for one in ranked
        if one["realised"] and (low := _end(one["realised"], "low")) < _LEAST_GAIN
    }
    is_cut = bool(far) or min(realised, default=0.0) < _LEAST_GAIN
    highest = (_end(one["realised"], "high") for one in ranked if one["realised"])
    most = max(0.1, *realised, *(one["gain"] for one in ranked), *highest)
    made = bars_in_rows(
        "Settings tried: predicted and realised",
        "Share of the time saved; a negative share means slower. A thin line is the 95 % interval; if it contains 0, the "
        f"gain is undecided.{' Bars and lines are cut off at -100 %; a number beside the cut states the end.' if is_cut else ''}",
        {
            "title": "time saved, %",
            # Room for the numbers beside the cut, also on a narrow screen.
            **({"range": [_LEAST_GAIN * 160, most * 110]} if is_cut else {}),
        },
        [one["change"] for one in ranked],
        {
            "predicted": [one["gain"] * 100 for one in ranked],
            "realised": [one["realised"] and one["realised"]["gain"] * 100 for one in ranked],
        },
        "group",
    )
    measured = [one["realised"] for one in ranked if one["realised"]]
    whiskers = {"error_x": _whiskers(measured)} if any(one["low"] for one in measured) else {}
    data = [{**one, **(whiskers if one["name"] == "realised" else {})} for one in made.data]
    cut = [
        {
            "x": _LEAST_GAIN * 100,
            "y": one["change"],
            "text": f"{one['realised']['gain'] * 100:.0f} %",
            "showarrow": False,
            "xanchor": "left",
            "yshift": -_BELOW_PIXELS,
            "font": {"color": "#ffffff"},
        }
        for one in ranked
        if one["realised"] and one["realised"]["gain"] < _LEAST_GAIN
    ]
    ends = [
        {
            "x": _LEAST_GAIN * 100,
            "y": change,
            "text": f"{low * 100:.0f} %",
            "showarrow": False,
            "xanchor": "right",
            "yshift": -_BELOW_PIXELS,
        }
        for change, low in far.items()
    ]
    return made._replace(data=data, layout={**made.layout, "annotations": [*cut, *ends]})


def _end(measured: Realised, name: Literal["low", "high"]) -> float:
    """Returns an end of a gain's interval, as a share; the gain itself without an interval."""
    end = measured[name]
    return share_saved(end) if end else measured["gain"]


_BELOW_PIXELS = 6
"""Distance of the bar of a realised gain from the middle of its row."""


def _whiskers(measured: Sequence[Realised]) -> Mapping[str, Any]:
    """Returns the distances from each measured gain to the ends of its interval, in percentage points."""
    below: list[float | None] = []
    above: list[float | None] = []
    for one in measured:
        # Without an interval, both distances are unknown, and no line is drawn.
        low, high = (share_saved(end) if end else None for end in (one["low"], one["high"]))
        if low is None or high is None:
            below.append(None)
            above.append(None)
            continue
        below.append(rounded((one["gain"] - max(low, min(one["gain"], _LEAST_GAIN))) * 100))
        above.append(rounded((high - one["gain"]) * 100))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "width": 4}


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS


def _layer_name(number: int, layer: Layer) -> str:
    """Returns a name on two lines, because one line would fill half of a narrow screen: the operators, and the shape,
    which distinguishes layers.
    """
    operators = shortened(
        layer["ops"].replace("BatchNormalization", "BatchNorm"), _LONGEST_OPERATORS
    )
    shape = layer["makes"].partition("[")
    times = f" x{layer['count']}" if layer["count"] > 1 else ""
    return f"{number}. {operators}<br>{''.join(shape[1:]) or shape[0]}{times}"


def _weights(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws a histogram per tensor, scaled from -1 to 1 times the tensor's largest value."""
    shown = sorted(rows, key=lambda row: -row["elements"])[:_MOST_TENSORS]
    bins: list[tuple[float | None, float | None, str, float | None]] = []
    for row in shown:
        edge = max(abs(row["least"]), abs(row["largest"])) or 1.0
        counts, span = row["histogram"]["counts"], row["histogram"]
        width = (span["to"] - span["from"]) / len(counts)
        for i, count in enumerate(counts):
            left, share = (span["from"] + i * width) / edge, count / row["elements"]
            bins.append((rounded(left), rounded(width / edge), row["name"], rounded(share, 100)))
    lefts, widths, names, shares = zip(*bins, strict=True)
    return Figure(
        "Distribution of weights",
        "Share of each tensor's values in each of 32 bins"
        f"{'; the largest tensors' if len(shown) < len(rows) else ''}. A stronger colour is a larger share, up to "
        f"{max(share or 0.0 for share in shares):.3g} %.",
        [
            {
                "type": "bar",
                "orientation": "h",
                "base": lefts,
                "x": widths,
                "y": names,
                # A colour bar has style attributes, which the policy of browse forbids.
                "marker": {"color": shares},
                "hovertemplate": "%{y}, from %{base:.3g} of the largest: %{marker.color:.3g} %<extra></extra>",
            }
        ],
        {
            "xaxis": {"title": "value / largest of its tensor"},
            "yaxis": {"autorange": "reversed", "dtick": 1},
        },
        height_rem=tall(len(shown)),
    )


def badges(advice: Content) -> Badges:
    notes = advise_report.notes(advice)
    return Badges(doubted=any(line.split()[0] == "doubt" for line in notes))


def _head(advice: Content, folder: Path) -> Iterator[str]:
    notes = list(advise_report.notes(advice))
    yield heading(["Advise", advice["model"]["name"]], badges(advice))
    yield page.headline(advise_report.conclusion(advice))
    setting = ", ".join([advice["runtime"], advice["now"]])
    yield from page.labelled([f"{'setting':<12}{setting}", *notes])
    for label, command in apply.commands(advice, folder):
        lines = command.replace(" && ", " &&\n")
        yield f"<p>{label[:1].upper() + label[1:]}:</p>{page.command_html(lines)}"


def _tail(advice: Content) -> Iterator[str]:
    yield from page.section(advise_report.advice_table(advice), cards=True)
    yield "<h2>Questions</h2>"
    for asked in advice["questions"]:
        question = escape(f"{asked['question']} {asked['asked']}")
        yield f"<p><strong>{question}</strong><br>{escape(asked['answer'])}</p>"
    for one in advise_report.other_tables(advice):
        yield from page.section(one, is_folded=True, cards=True)
    path = advice["lower_bound"]["path"]
    yield "<h2>Critical path</h2>"
    yield f"<p>{show_ns(advice['lower_bound']['parallel_ns'])} over {counted(len(path), 'layer')}.</p>"
    unexpected = advice["kernels"]["unexpected"]
    if unexpected:
        yield "<h2>Kernels that compute nothing</h2>"
        heads = ("kernel", "operator", "why", "time")
        cells = [(k["name"], k["op"], k["why"], show_ns(k["ns"])) for k in unexpected]
        yield table(heads, cells, numbers=1, cards=True)
    yield "<h2>Coverage and checks</h2>"
    yield from page.labelled(advise_report.facts(advice))
