"""Estimates the noise between runs of one configuration from runs on the same machine.

Two equal runs differ by more than the noise within each run. Several runs per side show how large this difference is.
If the runs of the sides alternated, a drift of the machine affects both sides equally. Otherwise a change must also
exceed the largest difference between two equal runs, and nothing is judged if the machine disturbed one side more than
the other. With one run per side, only earlier runs of the same configuration show the noise.
"""

import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.core.units import counted
from harness.errors import ConfigError
from harness.results import database, records
from harness.results.compare import comparable
from harness.results.compare.finished import FinishedRun
from harness.results.evidence.between_runs import (
    EXTREME,
    LEAST_FREEDOM,
    SMALLEST_CHANGE,
    between_runs,
)
from harness.results.numbers import speeds
from harness.results.run_files import read_files, reading_run
from harness.types import Array

LEAST_EQUAL_RUNS = 10
"""The largest difference between earlier equal runs counts as noise only if at least this many earlier equal runs
exist.
"""

_MOST_UNLIKE = 0.5
"""If the sides' shares of disturbed runs differ by at least this much, no number is judged."""

_MOST_READ = 100
"""At most this many earlier runs are read, newest first."""


class Noise(NamedTuple):
    """Noise between the runs of two sides, in differences of logarithms."""

    source: str
    """Origin of the noise, in words that fit into a sentence."""
    smallest: Mapping[str, float]
    """Maps a kind of number to the smallest change that gets a verdict, as a share."""
    counts_within: bool = False
    """Whether the noise within the runs is added to the noise between the runs."""
    between: bool = False
    """Whether the spread within each side was used to measure the noise."""
    in_turns: bool = False
    """Whether the runs of the sides alternated, so that a drift of the machine affected both sides equally."""
    apart: Mapping[str, float] | None = None
    """Maps the name of a number to the largest difference expected between equal runs, in logarithms; None if
    differences between equal runs do not count.
    """
    is_given: bool = False
    """Whether the user set the noise. A change below a noise that the user set does not count as a difference."""

    def half_width(
        self, name: str, before: Sequence[float], after: Sequence[float], level: float
    ) -> float | None:
        """Returns half the width of the interval of mean(after) - mean(before); None if the runs do not show the width.

        before, after: logarithms of the number, one per run. level: confidence.
        """
        halves = [between_runs(before, after, level) if self.between else None]
        halves += [self.apart.get(name)] if self.apart is not None else []
        return max((half for half in halves if half is not None), default=None)


def noise_of(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], option: float | None
) -> Noise:
    """Finds the noise between the runs. option: the share from --noise, which replaces the noise of the runs."""
    smallest = dict.fromkeys(EXTREME, SMALLEST_CHANGE)
    if option is not None:
        return Noise(
            "from --noise",
            dict.fromkeys(EXTREME, option),
            counts_within=True,
            between=True,
            is_given=True,
        )
    runs = len({run.measured for run in (*before, *after)})
    between = runs - 2 >= LEAST_FREEDOM
    sizes = f"{len(before)} and {counted(len(after), 'run')}"
    if between and in_turns(before, after):
        return Noise(f"measured by {sizes}, made in turns", smallest, between=True, in_turns=True)
    if disturbed := _disturbed(before, after):
        nothing = dict.fromkeys(EXTREME, math.inf)
        source = f"unknown: {disturbed}, and the sides did not take turns"
        return Noise(source, nothing, counts_within=not between, between=between)
    if between:
        groups = [list(map(_plain_numbers, side)) for side in (before, after)]
        # If the machine drifts steadily, the means of two sides with n runs each differ by n / (n - 1) times the
        # largest difference within one side.
        drift = runs / (runs - 2)
        apart = {name: drift * most for name, most in _largest_differences(groups).items()}
        source = (
            f"measured by {sizes}; the sides did not take turns, so an interval extends in each direction by at least "
            f"{drift:.3g} times the largest difference between two runs of one side"
        )
        return Noise(source, smallest, between=True, apart=apart)
    compared = {run.measured for run in (*before, *after)}
    groups = [list(_earlier(side[0], compared)) for side in (before, after)]
    equal = max(map(len, groups))
    if equal >= LEAST_EQUAL_RUNS:
        source = (
            f"measured by {equal} earlier equal runs of {database.path_in(before[0].folder.parent)}"
        )
        return Noise(source, smallest, counts_within=True, apart=_largest_differences(groups))
    few = "one run per side does" if runs <= 2 else "two runs and one do"
    source = f"unknown: {few} not show how much equal runs differ"
    return Noise(source, EXTREME, counts_within=True)


def _disturbed(before: Sequence[FinishedRun], after: Sequence[FinishedRun]) -> str:
    """Returns how the machine disturbed one side more than the other; '' if it disturbed both equally."""
    shares, seen = [], set()
    for side in (before, after):
        doubts = [run.disturbances for run in side]
        shares.append(sum(map(bool, doubts)) / len(side))
        seen |= set().union(*doubts)
    alone = min(len(before), len(after)) == 1
    if not seen or (not alone and abs(shares[0] - shares[1]) < _MOST_UNLIKE):
        return ""
    named = ", ".join(sorted(seen))
    return f"the machine disturbed {'a run' if alone else 'the runs of one side'} ({named})"


def in_turns(before: Sequence[FinishedRun], after: Sequence[FinishedRun]) -> bool:
    """Returns whether each run has a run of the other side directly before or after it, as in ABBAAB."""
    started = sorted(
        [(str(run.result.get("started")), 0) for run in before]
        + [(str(run.result.get("started")), 1) for run in after]
    )
    sides = [side for _, side in started]
    return len(before) == len(after) and all(
        one != other for one, other in zip(sides[::2], sides[1::2], strict=True)
    )


def _plain_numbers(run: FinishedRun) -> Mapping[str, float]:
    return {name: number.value for name, number in run.numbers.items() if number.kind != "exact"}


def _largest_differences(
    groups: Sequence[Sequence[Mapping[str, float]]],
) -> Mapping[str, float]:
    """Returns a mapping from a number's name to its largest difference, in logarithms, between two runs in one group.

    groups: the numbers of equal runs, by group. Skips numbers that are 0 or negative.
    """
    largest: dict[str, float] = {}
    for group in groups:
        for name in set().union(*group):
            logs: Array = np.log([run[name] for run in group if run.get(name, 0.0) > 0])
            if len(logs) > 1:
                largest[name] = max(largest.get(name, 0.0), float(np.ptp(logs)))
    return largest


def _earlier(first: FinishedRun, compared: Collection[str]) -> Iterator[Mapping[str, float]]:
    """Yields latencies and rates from other VALID runs of the same configuration on the same machine. Reads the
    database in the folder that contains the run's folder.

    compared: values of `measured` for the compared runs, which are skipped. Copies of a run count once.
    """
    results = first.folder.resolve().parent
    alike = {key: str(first.result[key]) for key in ("scenario", "backend", "model", "verdict")}
    try:
        rows = database.newest_first(results, _MOST_READ, **_literal(alike))
    except sqlite3.Error:
        return
    seen = set(compared)
    settings, machine = comparable.settings(first.config), machine_of(first.environment)
    if machine is None:
        return
    for folder in (results / row["folder"] for row in rows if not row["removed"]):
        try:
            run = read_files(folder, with_evidence=False)
            if (
                comparable.settings(run.config) != settings
                or machine_of(run.environment) != machine
            ):
                continue
            measured = records.measured(folder, run.result)
            with reading_run(folder):
                found = {name: float(one.value) for name, one in speeds(run.result).items()}
        except ConfigError:
            continue
        if measured not in seen:
            seen.add(measured)
            yield found


def _literal(conditions: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the conditions as SQLite patterns that match only the given texts."""
    escaped = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
    return {name: text.translate(escaped) for name, text in conditions.items()}


def machine_of(environment: Mapping[str, Any]) -> object:
    return (environment.get("machine") or {}).get("fingerprint")
