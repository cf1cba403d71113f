"""Formats a change between two sides for the table: as a row, a percentage and a factor."""

import math
from collections.abc import Sequence

from harness.core.units import counted, show_ns, show_rate, show_si
from harness.results.compare.compare import (
    ALIKE,
    BETTER,
    SAME,
    UNDECIDED,
    WORSE,
    Change,
    Comparison,
)
from harness.results.pages.tables import Column
from harness.results.pages.words import words

WIDEST = 100
"""An interval is not shown if its ends differ by more than this factor, because such an interval comes from a few very
different runs and says nothing.
"""


_FIRST = ("p99", "p50", "throughput", "tokens", "ttft_p99", "tpot_p99", "accuracy")
"""Numbers to show after the number that decides the verdict. The energy per query from the first source comes last."""


_MOST_NAMED = 3
"""The title of the collapsed changes names at most this many numbers per verdict."""


def parted(comparison: Comparison) -> tuple[Sequence[Change], Sequence[Change]]:
    """Returns the changes that a page shows first, and the remaining changes."""
    named = {change.name: change for change in comparison.changes}
    headline = [comparison.headline.name] if comparison.headline is not None else []
    energy = [name for name in named if name.startswith("joules_per_query.")][:1]
    first = [name for name in dict.fromkeys((*headline, *_FIRST, *energy)) if name in named]
    return [named[name] for name in first], [
        change for name, change in named.items() if name not in first
    ]


def folded(changes: Sequence[tuple[str, Change]]) -> str:
    """Returns the title of the collapsed changes on a page: '19 other numbers; worse: p90 latency'. changes: with the
    letter of the side, which the title names if there are several.
    """
    sides = list(dict.fromkeys(letter for letter, _ in changes))
    judged = [counted(len({change.name for _, change in changes}), "other number")]
    for letter in sides:
        for verdict in (WORSE, BETTER):
            names = [
                words(one.name) for by, one in changes if (by, one.verdict) == (letter, verdict)
            ]
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            if names:
                whose = f"{letter} " if len(sides) > 1 else ""
                judged.append(f"{whose}{verdict}: {', '.join(names[:_MOST_NAMED])}{more}")
    return "; ".join(judged)


def columns(other: str = "B") -> list[Column]:
    """Returns the columns of `row`. other: letter of the second side."""
    names = ("number", "A", other, "change", "interval", "verdict")
    return [Column(name, "count" if name in ("A", other, "change") else "") for name in names]


def row(change: Change) -> Sequence[str]:
    before, after = (_quantity(value, change.unit) for value in (change.before, change.after))
    return change.name, before, after, size(change), interval(change), _verdict(change)


def row_in_words(change: Change) -> Sequence[str]:
    """Returns the row for a page, where the number has no name from code."""
    name, *others = row(change)
    return words(name), *others


def _verdict(change: Change) -> str:
    if change.is_scheduled and change.verdict in (SAME, UNDECIDED):
        return "set by the schedule"
    return change.verdict or "not ranked"


def _quantity(value: float, unit: str) -> str:
    if unit == "ns":
        return show_ns(value)
    if unit == "samples/s":
        return f"{show_rate(value)}/s"
    if unit == "J":
        return show_si(value, "J")
    if unit.startswith("samples"):  # because the name already says `per core`
        return show_rate(value)
    return f"{value:.2f} {unit}" if unit == "%" else f"{value:.4g} {unit}"


def why(change: Change) -> str:
    """Returns the reason for the verdict in one sentence."""
    if change.verdict is None:
        return "The sides cannot be compared, so nothing is ranked."
    if change.is_scheduled and change.verdict in (SAME, UNDECIDED):
        return "The schedule sets this number on both sides."
    judged = _percent(change.noise).removeprefix("+")
    if change.verdict in (BETTER, WORSE):
        return _why_judged(change, judged)
    if change.verdict == UNDECIDED:
        return _why_undecided(change, judged)
    return _why_same(change, judged)


def _why_same(change: Change, judged: str) -> str:
    if change.noise == 0:
        return "The interval includes a change of 0."
    if (
        change.low is not None
        and change.high is not None
        and max(-change.low, change.high) <= ALIKE
    ):
        return f"The whole interval lies within ±{ALIKE * 100:.0f} %."
    return f"The change is not above the noise of {judged}."


def _why_judged(change: Change, judged: str) -> str:
    if change.noise == 0:
        return "The interval excludes a change of 0."
    if change.low is None or change.high is None:
        return f"The change is above {judged}, which equal runs have never shown."
    return f"The whole interval lies beyond a change of {judged}."


def _why_undecided(change: Change, judged: str) -> str:
    if math.isinf(change.noise):
        return "The noise between the runs is unknown, so nothing is judged."
    if change.low is None or change.high is None:
        return f"Without an interval, only a change above {judged} is judged."
    if change.low <= 0 <= change.high:
        return (
            "The interval includes a change of 0. The verdict `no difference` needs several runs per side, "
            f"and an interval within ±{ALIKE * 100:.0f} %."
        )
    return f"The change is not significantly larger than the noise of {judged}."


def interval(change: Change) -> str:
    if change.low is None or change.high is None or not change.has_ratio:
        return "-"
    if is_useless(1 + change.low, 1 + change.high):
        return f"wider than x {WIDEST}"
    return f"{_share(change.low, change)} to {_share(change.high, change)}"


def is_useless(low: float, high: float) -> bool:
    """Returns whether an interval is too wide to show. low, high: factors."""
    return high > WIDEST * low


def size(change: Change) -> str:
    return _share(change.change, change) if change.has_ratio else "-"


def _share(share: float, change: Change) -> str:
    """Formats a share in percent, or as a factor if the change or an end of its interval is at least a factor of two."""
    least = min(change.change, change.low or 0.0)
    most = max(change.change, change.high or 0.0)
    return _percent(share, as_factor=most >= 1 or least <= SMALL - 1)


def _percent(share: float, *, as_factor: bool = False) -> str:
    """Formats a share in percent. A change by at least a factor of two is formatted as a factor, because +400 % is
    easily misread.
    """
    if as_factor or share >= 1:
        return f"x {1 + share:.3g}"
    return f"{round(share * 100, 1) + 0.0:+.1f} %"  # adding 0.0 turns -0.0 into 0.0


def against(change: Change) -> str:
    """Formats the change as a factor if the number is a latency or a rate, and as a percentage otherwise."""
    if not (change.is_speed and change.has_ratio):
        return size(change)
    if not change.higher_is_better and is_as_long(change):
        return f"{times_as_long(change)} as long"
    return f"{times(change)} as {'high' if change.higher_is_better else 'fast'}"


def times(change: Change) -> str:
    """Returns the factor with its interval. A factor above 1 is an improvement."""
    return show_factors(*factors(change))


def factors(change: Change) -> tuple[float, float | None, float | None]:
    """Returns how many times better the second side is, and both ends of the interval; None for an unknown end."""
    shares = [change.change, change.low, change.high]
    ends = [None if share is None else 1 + share for share in shares]
    if not change.higher_is_better:
        ends = [None if end is None else 1 / max(end, 1e-12) for end in ends]
        ends[1:] = ends[:0:-1]
    value, low, high = ends
    assert value is not None
    return value, low, high


SMALL = 0.5
"""A factor of a rate below this value is shown by its inverse, because 0.199 is harder to read than 5.01."""


def is_as_long(change: Change) -> bool:
    """Returns whether the inverse of `times` is shown: for a longer latency, whose change in percent is this factor, and
    for a rate that is much lower.
    """
    return factors(change)[0] < (SMALL if change.higher_is_better else 1)


def times_as_long(change: Change) -> str:
    """Returns the inverse of `times`: how many times longer the second side takes, with its interval."""
    value, low, high = factors(change)
    return show_factors(1 / value, high and 1 / high, low and 1 / low)


def show_factors(value: float, low: float | None, high: float | None) -> str:
    """Formats the output of `factors`: '1.18 x (1.11 to 1.25)'."""
    if low is None or high is None:
        ends = "no interval"
    else:
        ends = (
            f"wider than x {WIDEST}"
            if is_useless(low, high)
            else f"{_factor(low)} to {_factor(high)}"
        )
    return f"{_factor(value)} x ({ends})"


def _factor(value: float) -> str:
    """Formats a factor with three digits: '0.850', '1.30', '1,230'."""
    return show_rate(value) if value >= 100 else f"{value:#.3g}".rstrip(".")
