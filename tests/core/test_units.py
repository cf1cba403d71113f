"""Numbers with units are parsed exactly, and printed with three digits."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.core.units import (
    LONGEST_NS,
    NS_PER_S,
    counted,
    parse_duration_ns,
    show_bytes,
    show_ns,
    show_percent,
    show_rate,
    show_share,
    show_si,
    show_wait,
    write_duration,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("500us", 500_000),
        ("15ms", 15_000_000),
        ("1.5ms", 1_500_000),
        ("0.1ns", 0),
        ("2s", 2_000_000_000),
        ("0.000000001s", 1),
        ("2min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        (" 10s ", 10_000_000_000),
        # The number has more digits than a float can hold.
        ("9007199254740993ns", 9_007_199_254_740_993),
    ],
)
def test_a_duration_with_its_unit_is_parsed_exactly(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    "text",
    ["", "10", "10 s", "-1s", "+1s", "1e3ms", "1,5s", ".5s", "5.s", "10S", "s", "10sec", "nans"],
)
def test_a_duration_without_a_plain_number_and_unit_is_refused(text: str) -> None:
    message = f"{text!r} is not a duration: write it with its unit, e.g. 500us, 15ms, 2s"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_duration_ns(text)


@given(st.integers(0, LONGEST_NS))
def test_a_written_duration_parses_to_the_same_value(ns: int) -> None:
    assert parse_duration_ns(write_duration(ns)) == ns


SHOWN = [
    # write_duration uses the largest unit that represents the value exactly.
    *((write_duration, ns, text) for ns, text in (
        (0, "0s"), (1, "1ns"), (1500, "1500ns"), (90 * NS_PER_S, "90s"), (120 * NS_PER_S, "2min"),
    )),
    # show_ns shows three digits and a suitable unit.
    *((show_ns, ns, text) for ns, text in (
        (0, "0 ns"), (999, "999 ns"), (999.6, "1.00 us"), (1_000, "1.00 us"), (99_960, "100 us"),
        (999_600, "1.00 ms"), (1_234_567, "1.23 ms"), (-1_500_000, "-1.50 ms"),
        (12_345_000_000, "12.3 s"), (4e12, "4,000 s"),
    )),
    # show_rate shows three digits for values below a hundred.
    *((show_rate, rate, text) for rate, text in (
        (0, "0.00"), (1 / 600, "0.00167"), (0.0996, "0.10"), (3.214, "3.21"), (32.14, "32.1"),
        (99.96, "100"), (12_345.6, "12,346"),
    )),
    # show_bytes uses decimal units.
    *((show_bytes, count, text) for count, text in (
        (0, "0 B"), (999, "999 B"), (1_500, "1.50 kB"), (317e6, "317 MB"),
    )),
    # show_wait uses everyday units.
    *((show_wait, seconds, text) for seconds, text in (
        (0.2, "1 s"), (1.6, "2 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"),
        (11_100, "3 h 05 min"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("show", "value", "text"), SHOWN)
def test_a_number_is_shown_with_its_unit(
    show: Callable[[Any], str], value: float, text: str
) -> None:
    assert show(value) == text


def _digits(number: str) -> int:
    return sum(c.isdigit() for c in number)


@given(st.integers(1_000, 999 * 10**9))
def test_a_shown_time_is_rounded_to_three_digits(ns: int) -> None:
    number, unit = show_ns(ns).split()
    size = {"us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert _digits(number) == 3
    assert abs(float(number) * size - ns) <= 0.00501 * ns


@given(st.integers(1_000, 999 * 10**9))
@example(999_600)
def test_shown_bytes_have_three_digits(count: int) -> None:
    number, _unit = show_bytes(count).split()
    assert _digits(number) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00123, "1.23 mJ"),
        (45.3, "45.3 J"),
        (31e3, "31.0 kJ"),
        (7e-6, "7.00 uJ"),
        (5e-9, "5.00 nJ"),
    ],
)
def test_si_prefixes_are_chosen_by_size(value: float, text: str) -> None:
    assert show_si(value, "J") == text


@pytest.mark.parametrize(
    ("share", "digits", "signed", "text"),
    [
        (0.96, 0, False, "96 %"),
        (0.1234, 1, True, "+12.3 %"),
        (-0.05, 0, True, "-5 %"),
        (12.5, 0, False, "1,250 %"),
    ],
)
def test_a_percentage_has_a_space_before_its_sign(
    share: float, digits: int, signed: bool, text: str
) -> None:
    assert show_percent(share, digits, signed=signed) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0 %"),
        (1.0, "100.0 %"),
        (0.9234, "92.3 %"),
        (6673 / 6676, "99.96 %"),
        (0.99999, "99.999 %"),
        (0.0004, "0.04 %"),
        (0.00001, "0.001 %"),
    ],
)
def test_a_share_below_one_is_never_shown_as_all(share: float, text: str) -> None:
    """Bug: although 3 of 6,676 answers missed an SLO, the result said that `100.0 %` had met it."""
    assert show_share(share) == text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (1, ("run",), "1 run"),
        (0, ("run",), "0 runs"),
        (2000, ("query", "queries"), "2,000 queries"),
    ],
)
def test_a_noun_agrees_with_its_number(count: int, words: tuple[str, ...], text: str) -> None:
    assert counted(count, *words) == text


PERCENT_FORMAT = re.compile(r"\{[^{}\n]*:[^{}\n]*%\}")
"""Finds format strings such as `{share:.1%}`, which are not allowed because they write no space before the percent
sign.
"""

TEMPLATES = ("explain/profile/page.py",)
"""Files that are not checked; the page uses Plotly's own format."""


def test_no_text_writes_a_percentage_in_another_way() -> None:
    folder = Path(__file__).parents[2] / "harness"
    wrong = [
        f"{path.relative_to(folder)}: {found}"
        for path in sorted(folder.rglob("*.py"))
        for found in PERCENT_FORMAT.findall(path.read_text(encoding="utf-8"))
        if path.relative_to(folder).as_posix() not in TEMPLATES
    ]
    assert wrong == []
