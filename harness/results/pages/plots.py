"""Builds traces and figures for plotly.js that several pages share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from harness.core.config.parse import Slo
from harness.core.units import NS_PER_MS, show_duration
from harness.results.pages.page import Figure

_ROW_REM = 1.6
_AXES_REM = 8.0
_WIDE_REM: float = Figure._field_defaults["height_rem"] + 1
"""Height of a figure as wide as the page, which leaves room for long names."""


def rounded(value: float | None, scale: float = 1.0) -> float | None:
    """Returns value * scale, rounded to six digits. More digits would be invisible and would only enlarge the page."""
    return None if value is None else float(f"{value * scale:.6g}")


def line(name: str, x: Iterable[Any], y: Iterable[Any], **more: Any) -> dict[str, Any]:
    """Draws a line with a marker at each point. more: additional keys of the trace."""
    return {"name": name, "x": list(x), "y": list(y), "mode": "lines+markers", **more}


def shortened(name: str, most: int) -> str:
    """Returns a name with at most `most` characters. A long name keeps its beginning and end, which distinguish
    kernels.
    """
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


_SIDES = {
    "top center": (0, 1),
    "bottom center": (0, -1),
    "middle left": (-1, 0),
    "middle right": (1, 0),
}
"""Maps a place of a label beside its point to its direction."""

Place = tuple[float, float]


def label_sides(
    points: Sequence[Place],
    labelled: Iterable[int],
    distance: Place,
    reach: Place,
    corners: Sequence[Place] = (),
    *,
    only_free: bool = False,
) -> Mapping[int, str]:
    """Returns the place of each label, by the number of its point, where it covers the fewest other points and earlier
    labels. only_free: leaves out points whose label would cover any.

    points: x and y, as logarithms on a logarithmic axis. labelled: numbers of points, the most important first.
    distance: of the middle of a label from its point. reach: half the width and height of a label. Both are shares of
    the plot's width and height. corners: further places in the plot.
    """
    if not points:
        return {}
    xs, ys = ([one[k] for one in (*points, *corners)] for k in (0, 1))
    wide, high = (max(max(ends) - min(ends), 1e-9) for ends in (xs, ys))

    def is_near(one: Place, other: Place, size: float) -> bool:
        across, up = abs(one[0] - other[0]) / wide, abs(one[1] - other[1]) / high
        return across < size * reach[0] and up < size * reach[1]

    found: dict[int, str] = {}
    labels: list[Place] = []
    for number in labelled:
        x, y = points[number]
        others = [one for i, one in enumerate(points) if i != number]
        places = {
            side: (x + across * distance[0] * wide, y + up * distance[1] * high)
            for side, (across, up) in _SIDES.items()
        }
        covered = {
            side: sum(is_near(at, one, 1) for one in others)
            + sum(is_near(at, one, 2) for one in labels)
            + (not min(xs) <= at[0] <= max(xs))  # its end would be cut off
            for side, at in places.items()
        }
        side = min(covered, key=covered.__getitem__)
        if not (only_free and covered[side]):
            found[number] = side
            labels.append(places[side])
    return found


def tall(rows: int) -> float:
    """Returns the height of a wide figure that contains this many rows of text."""
    return max(_WIDE_REM, _AXES_REM + _ROW_REM * rows)


def bound_line(bound_ms: float | None, axis: str) -> list[Mapping[str, Any]]:
    """Draws the SLO's bound as a dashed line with a label. page.js sets the colour."""
    if bound_ms is None:
        return []
    return [bound_at(bound_ms, axis, show_duration(round(bound_ms * NS_PER_MS)))]


def token_limit(slo: Slo, axis: str, line_name: str) -> Mapping[str, Any]:
    """Draws the bound of a token time in the colour of its line, because a plot may have a bound for each token time.

    line_name: name of the trace with the times that the SLO limits.
    """
    of, _, percentile = slo.name.partition(":")
    shown = f"{of.upper()} limit {show_duration(slo.bound_ns)} ({percentile})"
    bound = bound_at(slo.bound_ns / NS_PER_MS, axis, shown)
    return {
        **bound,
        "legendgroup": line_name,
        "label": {**bound["label"], "text": shown},
    }


def bound_at(value: float, axis: str, shown: str) -> Mapping[str, Any]:
    """Draws a bound as a line. value: in the axis's unit. shown: the value as text, with its unit."""
    across = {"x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper"}
    if axis == "y":
        across = {"y0": value, "y1": value, "x0": 0, "x1": 1, "xref": "paper"}
    label = {"text": f"{shown} allowed", "textposition": "middle", "padding": 4}
    if axis == "y":  # at the left, the label would touch the marks of the axis
        label |= {"yanchor": "bottom", "textposition": "end"}
    return {"type": "line", "name": "bound", **across, "line": {"dash": "dash"}, "label": label}


VALID, INVALID, UNJUDGED = "#1a7f37", "#b8301f", "#57606a"
"""Colours of runs by verdict. page.js replaces them on a dark page."""

Series = Mapping[str, Sequence[float | None]]
"""Maps a name in the legend to one value per name on the axis. A None value is drawn without a bar."""

Mode = Literal["group", "stack"]
"""Whether the bars for one name are side by side or stacked."""


def bars(
    title: str, about: str, axes: tuple[str, str], names: Sequence[str], series: Series, mode: Mode
) -> Figure:
    """Draws vertical bars. axes: titles of both axes. names: from left to right."""
    layout = {
        "barmode": mode,
        "xaxis": {"title": axes[0], **_categories(names)},
        "yaxis": {"title": axes[1]},
        "legend": {"traceorder": "normal"},
    }
    return Figure(title, about, list(_bars(names, series, "x", "y")), layout)


def bars_in_rows(
    title: str,
    about: str,
    axis: Mapping[str, Any],
    names: Sequence[str],
    series: Series,
    mode: Mode,
    colours: Mapping[str, str] | None = None,
    **more: Any,
) -> Figure:
    """Draws horizontal bars, with room for long names.

    axis: title of the value axis. names: from top to bottom. colours: colour by name in the legend; default: the page's
    colours. more: additional keys for each trace.
    """
    data = []
    for trace in _bars(names, series, "y", "x"):
        own = {"marker": {"color": colours[trace["name"]]}} if colours else {}
        data.append({**trace, "orientation": "h", **own, **more})
    downwards = {"range": [len(names) - 0.5, -0.5], "dtick": 1}
    layout = {
        "barmode": mode,
        "xaxis": axis,
        "yaxis": _categories(names) | downwards,
        "legend": {"traceorder": "normal"},
    }
    lines = max((name.count("<br>") + 1 for name in names), default=1)
    return Figure(title, about, data, layout, tall(round(len(names) * (1 + 0.4 * (lines - 1)))))


def _categories(names: Sequence[str]) -> dict[str, Any]:
    """Returns an axis with all names in order, including names without a bar."""
    return {"type": "category", "categoryorder": "array", "categoryarray": list(names)}


def _bars(names: Sequence[str], series: Series, at: str, value: str) -> Iterator[dict[str, Any]]:
    """Yields a trace for each of `series` that has values. at, value: keys for the names and the values."""
    for title, values in series.items():
        shown = {n: rounded(v) for n, v in zip(names, values, strict=True) if v is not None}
        if shown:
            yield {"type": "bar", "name": title, at: [*shown], value: [*shown.values()]}


def heat_map(
    title: str,
    about: str,
    x: tuple[str, Sequence[object]],
    y: tuple[str, Sequence[str]],
    z: Sequence[Sequence[float | None]],
    height_rem: float,
    best: float | None = None,
    **more: Any,
) -> Figure:
    """Draws a heat map. x, y: title and categories of an axis; y starts at the top. z: by row. best: cells with this
    value get a border. more: additional keys of the trace.
    """
    trace = {
        "type": "heatmap",
        "x": [str(category) for category in x[1]],
        "y": list(y[1]),
        "z": z,
        "zsmooth": False,
        "xgap": 1,
        "ygap": 1,
        **more,
    }
    axes: Mapping[str, Any] = {
        "xaxis": {"title": x[0], "type": "category"},
        "yaxis": {"title": y[0], "type": "category", "autorange": "reversed", "automargin": True},
        "shapes": [
            cell_border(column, row)
            for row, cells in enumerate(z)
            for column, cell in enumerate(cells)
            if cell is not None and cell == best
        ],
    }
    return Figure(title, about, [trace], axes, height_rem)


def cell_border(column: int, row: int) -> Mapping[str, Any]:
    """Draws a border around a cell of a heat map. page.js sets the colour."""
    edges = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    return {"type": "rect", **edges, "line": {"width": 3}}
