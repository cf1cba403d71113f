"""The bars on every page have names in the caller's order, and no bar lacks a value."""

from typing import Any

from harness.results.pages.plots import bars, bars_in_rows

NAMES = ["first", "second", "third"]
SERIES: dict[str, list[float | None]] = {
    "a": [None, 1 / 3, 3.0],
    "b": [2.0, None, 0.0],
    "empty": [None, None, None],
}


def test_upright_bars_keep_their_order_if_values_are_missing() -> None:
    figure = bars("t", "about", ("name", "ms"), NAMES, SERIES, "group")
    assert figure.data == [
        {"type": "bar", "name": "a", "x": ["second", "third"], "y": [0.333333, 3.0]},
        {"type": "bar", "name": "b", "x": ["first", "third"], "y": [2.0, 0.0]},
    ]
    assert figure.layout["barmode"] == "group"
    assert figure.layout["xaxis"]["categoryarray"] == NAMES
    assert (figure.layout["xaxis"]["title"], figure.layout["yaxis"]["title"]) == ("name", "ms")


def test_bars_in_rows_begin_on_top_and_have_room_for_each_name() -> None:
    axis: dict[str, Any] = {"title": "ms", "type": "log"}
    figure = bars_in_rows(
        "t",
        "about",
        axis,
        NAMES * 20,
        {"a": [1.0] * 60},
        "stack",
        {"a": "red"},
        textposition="none",
    )
    (trace,) = figure.data
    assert trace["orientation"] == "h"
    assert trace["marker"] == {"color": "red"}
    assert trace["textposition"] == "none"
    assert figure.layout["xaxis"] == axis
    assert figure.layout["yaxis"]["range"] == [59.5, -0.5]
    assert figure.height_rem > 60
