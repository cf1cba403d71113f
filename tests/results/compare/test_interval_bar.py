"""All interval bars in a comparison's table share one scale, with `no change` in the middle."""

import math
import re

import pytest

from harness.results.compare.compare import Change
from harness.results.compare.interval_bar import Scale


def change(share: float, low: float | None = None, high: float | None = None) -> Change:
    return Change("p99", "ns", 1.0, 1 + share, share, low, high, 0.0, False, None)


def point(image: str) -> float:
    (x,) = re.findall(r'circle cx="([\d.]+)"', image)
    return float(x)


def ends(image: str) -> tuple[float, float]:
    ((low, high),) = re.findall(r'd="M([\d.]+) 8H([\d.]+)"', image)
    return float(low), float(high)


def test_equal_factors_lie_equally_far_from_the_middle() -> None:
    doubled, halved = change(1.0, 0.9, 1.1), change(-0.5, -0.6, -0.4)
    scale = Scale([doubled, halved])
    assert point(scale.image(doubled)) - 90 == pytest.approx(90 - point(scale.image(halved)))
    low, high = ends(scale.image(halved))
    assert 0 <= low < point(scale.image(halved)) < high < 90
    assert scale.marks == ("x 0.33", "x 1", "x 3")


def test_one_wide_row_does_not_press_the_others_together() -> None:
    """Bug: a row of 300 % left only a few pixels for the other rows."""
    narrow = [change(0.1, 0.08, 0.12)] * 3
    scale = Scale([*narrow, change(3.0, 0.5, 9.0)])
    assert scale.marks == ("-17 %", "0 %", "+20 %")
    low, high = ends(scale.image(narrow[0]))
    assert 120 < low < high < 180


@pytest.mark.parametrize("others", [1, 2, 4])
def test_a_far_larger_change_is_cut_off_and_states_its_value(others: int) -> None:
    """Bug: the largest of two or three changes, and the change of the main number, set the scale of all others."""
    large, small = change(4.0), [change(0.01)] * others
    scale = Scale([large, *small])
    assert scale.marks == ("-5 %", "0 %", "+5 %")
    assert 'aria-label="scale of the change, -5 % to +5 %"' in scale.axis
    image = scale.image(large)
    assert "circle" not in image
    assert '<text x="168" y="12" text-anchor="end">x 5</text>' in image
    assert "<text" not in scale.image(small[0])


def test_a_table_with_only_large_changes_shows_their_size() -> None:
    assert Scale([change(5.0)] * 3).marks == ("x 0.1", "x 1", "x 10")


def test_a_small_change_does_not_look_large() -> None:
    scale = Scale([change(0.001, 0.0, 0.002)])
    assert scale.marks == ("-5 %", "0 %", "+5 %")
    assert point(scale.image(change(0.001, 0.0, 0.002))) == pytest.approx(90 + 90 * 0.0205, abs=0.2)


def test_largest_change_of_single_runs_is_a_point_at_the_scales_end() -> None:
    one = change(0.5)
    assert point(Scale([one]).image(one)) == 180


@pytest.mark.parametrize(("share", "tip"), [(500.0, "180"), (-0.999, "0"), (math.inf, "180")])
def test_a_change_beyond_the_scale_is_an_arrow(share: float, tip: str) -> None:
    image = Scale([change(share)]).image(change(share))
    assert "circle" not in image
    assert f"3L{tip} 8L" in image


def test_an_open_interval_reaches_the_end_of_the_scale() -> None:
    wide = change(0.5, 0.2, math.inf)
    assert ends(Scale([wide]).image(wide))[1] == 180


@pytest.mark.parametrize(("low", "high"), [(None, 0.6), (0.4, None)])
def test_only_the_point_is_drawn_without_an_interval(low: float | None, high: float | None) -> None:
    one = change(0.5, low, high)
    assert "H" not in Scale([one]).image(one)


def test_a_change_from_zero_has_no_image() -> None:
    none = change(0.0)._replace(before=0.0)
    assert Scale([none]).image(none) == ""


def test_an_interval_that_is_cut_off_ends_in_an_arrow() -> None:
    """Bug: the interval ended at the edge of the scale as if it were whole."""
    narrow = [change(0.1, 0.08, 0.12)] * 3
    wide = change(0.05, -1.0, 0.1)
    image = Scale([*narrow, wide]).image(wide)
    assert "<circle" in image
    assert "M8 3L0 8L8 13z" in image
    assert "M172 3L180 8" not in image
