"""Makes the traces and figures that several pages have in common, as plotly.js takes them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.results.pages.page import Figure

_ROW_REM = 1.6
_AXES_REM = 8.0
_WIDE_REM: float = Figure._field_defaults["height_rem"] + 1
"""A figure of this height takes the page's whole width, so that long names have room."""


def rounded(value: float | None, scale: float = 1.0) -> float | None:
    """value * scale in six digits: more are invisible, and make the page larger."""
    return None if value is None else float(f"{value * scale:.6g}")


def line(name: str, x: Iterable[Any], y: Iterable[Any], **more: Any) -> dict[str, Any]:
    """A line with a marker at each point; `more` are further keys of the trace."""
    return {"name": name, "x": list(x), "y": list(y), "mode": "lines+markers", **more}


def tall(rows: int) -> float:
    """The height of a wide figure with a row of text for each of `rows`."""
    return max(_WIDE_REM, _AXES_REM + _ROW_REM * rows)


def heat_map(
    title: str,
    about: str,
    x: tuple[str, Sequence[object]],
    y: tuple[str, Sequence[str]],
    z: Sequence[Sequence[float | None]],
    height_rem: float,
    **more: Any,
) -> Figure:
    """x, y: title and categories of an axis, y from the top. z: by row. more: keys of the trace."""
    trace = {
        "type": "heatmap",
        "x": [str(category) for category in x[1]],
        "y": list(y[1]),
        "z": z,
        "colorscale": "Viridis",
        **more,
    }
    axes: Mapping[str, Mapping[str, Any]] = {
        "xaxis": {"title": x[0], "type": "category"},
        "yaxis": {"title": y[0], "type": "category", "autorange": "reversed", "automargin": True},
    }
    return Figure(title, about, [trace], axes, height_rem)
