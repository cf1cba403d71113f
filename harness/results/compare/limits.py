"""Checks a comparison against the limits of `--fail-on`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from harness.errors import Regression, RunInvalid, refuse
from harness.results.compare.change_text import interval, size
from harness.results.compare.compare import (
    UNDECIDED,
    UNDECIDED_LIMIT,
    WORSE,
    Change,
    Comparison,
)


class Limit(NamedTuple):
    text: str
    """The limit as the user wrote it."""
    name: str
    """Name of the number, or `undecided`."""
    change: float
    """Largest change that passes, as a share of the first side, such as 0.05 or -0.03."""


class Judged(NamedTuple):
    """Result of checking one limit. broken: whether the change exceeds both the noise and the limit."""

    limit: Limit
    broken: bool
    line: str
    is_hidden: bool = False
    """Whether the noise is too large to decide if the limit is broken."""


def parse_limit(text: str) -> Limit:
    """Parses 'p99:+5%' (an increase of at most 5 %) or 'undecided'. Raises ValueError for any other text."""
    if text.strip() == UNDECIDED_LIMIT:
        return Limit(text, UNDECIDED_LIMIT, 0.0)
    match = re.fullmatch(r"(\w.*):([+-]\d+(?:\.\d+)?)%", text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a limit: write number:change, e.g. p99:+5% or throughput:-3%, or {UNDECIDED_LIMIT}"
        )
    if match[1] == UNDECIDED_LIMIT:
        raise ValueError(f"{text!r} is not a limit: {UNDECIDED_LIMIT} takes no number")
    return Limit(text, match[1], float(match[2]) / 100)


def judge(comparison: Comparison, limits: Sequence[Limit]) -> list[Judged]:
    """Checks the comparison against the limits. Raises a ConfigError that lists each limit whose number was not
    measured or whose sign is wrong.
    """
    changes = {change.name: change for change in comparison.changes}
    problems = []
    of_numbers = [limit for limit in limits if limit.name != UNDECIDED_LIMIT]
    for limit in of_numbers:
        change = changes.get(limit.name)
        if change is None:
            near = get_close_matches(limit.name, changes, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(changes)}"
            problems.append(
                f"--fail-on {limit.text}: {limit.name} was not measured on both sides: {hint}"
            )
        elif (limit.change > 0) == change.higher_is_better and limit.change:
            turned = f"{limit.name}:{-limit.change * 100:+g}%"
            problems.append(
                f"--fail-on {limit.text}: such a change is an improvement: write {turned}"
            )
    refuse(problems)
    judged = [_judged(limit, changes[limit.name]) for limit in of_numbers]
    decided = [_decided(one, comparison, judged) for one in limits if one.name == UNDECIDED_LIMIT]
    return [*judged, *decided]


def _decided(limit: Limit, comparison: Comparison, of_numbers: Sequence[Judged]) -> Judged:
    """Checks the limit `undecided`: that noise hides none of the limits of numbers or, without such limits, that the
    comparison is decided.
    """
    if comparison.refusals:
        return Judged(limit, False, "unknown    undecided: the sides are not comparable")
    if of_numbers:
        hidden = [one.limit.text for one in of_numbers if one.is_hidden]
        if not hidden:
            return Judged(limit, False, "kept       undecided: every other limit is decided")
        return Judged(limit, True, f"broken     undecided: noise hides {', '.join(hidden)}")
    if comparison.headline is None:
        why = "the number of the scenario was not measured on both sides"
        return Judged(limit, True, f"broken     undecided: {why}")
    broken = comparison.verdict == UNDECIDED
    word = "broken" if broken else "kept"
    return Judged(limit, broken, f"{word:<9}  undecided: the comparison is {comparison.verdict}")


def _judged(limit: Limit, change: Change) -> Judged:
    allowed = f"against {limit.change * 100:+g} %"
    if change.verdict is None:
        line = f"unknown    {limit.name} {allowed}: the sides are not comparable"
        return Judged(limit, False, line)
    summary = f"{limit.name} {size(change)} {allowed}"
    worst = change.low if change.higher_is_better else change.high
    if _is_beyond(change.change, limit, change):
        if change.verdict == WORSE:
            return Judged(limit, True, f"broken     {summary}")
        noise = "not shown to be more than noise"
    elif change.verdict == UNDECIDED and worst is not None and _is_beyond(worst, limit, change):
        noise = "noise may hide a larger change"
    else:
        return Judged(limit, False, f"kept       {summary}")
    advice = f"{noise} (interval {interval(change)}): make more runs in turns"
    return Judged(limit, False, f"undecided  {summary}, {advice}", is_hidden=True)


def _is_beyond(value: float, limit: Limit, change: Change) -> bool:
    return value < limit.change if change.higher_is_better else value > limit.change


def exit_status(comparisons: Sequence[tuple[Comparison, Sequence[Judged]]]) -> int:
    """Returns exit status 4 if the sides must not be ranked, because then no limit can be checked. Returns 6 if a limit
    is broken or if only the first side meets its SLO, and 0 otherwise.
    """
    if any(comparison.refusals for comparison, _ in comparisons):
        return RunInvalid.exit_status
    broken = any(one.broken for _, judged in comparisons for one in judged)
    missed = any(comparison.missing is comparison.after for comparison, _ in comparisons)
    return Regression.exit_status if broken or missed else 0
