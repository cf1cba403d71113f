"""Gathers the repeats of each configuration of a task, and judges which configurations beat others."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from harness.core.stats import student_t
from harness.results.evidence.between_runs import EXTREME, LEAST_FREEDOM, SMALLEST_CHANGE
from harness.results.numbers import Number
from harness.results.pages.runs.rows import Row, named
from harness.results.pages.words import settings, words

Numbers = Mapping[str, Number]
Member = tuple[Row, Numbers]


class Configuration(NamedTuple):
    """The runs of one model, backend and set of settings."""

    name: str
    """The settings that distinguish the configuration from the others of its task."""
    runs: Sequence[Member]
    numbers: Numbers
    """Medians over the runs. `low` and `high` are the smallest and largest number of a run."""


def gathered(members: Sequence[Member]) -> list[Configuration]:
    """Returns the configurations of a task. A run whose settings are unknown is a configuration. members: newest
    first.
    """
    groups: dict[tuple[str, str, str], list[Member]] = {}
    for row, values in members:
        known = row["settings"] or row["folder"]
        groups.setdefault((row["model"], row["backend"], known), []).append((row, values))
    names = _names([runs[0][0] for runs in groups.values()])
    return [
        Configuration(name, runs, _medians([values for _, values in runs]))
        for name, runs in zip(names, groups.values(), strict=True)
    ]


def _names(rows: Sequence[Row]) -> list[str]:
    """Returns a distinct name for each configuration. The names have the settings that differ, until they are distinct."""
    found = [_settings(row) for row in rows]
    names: list[list[str]] = [[] for _ in rows]
    for setting in dict.fromkeys(key for one in found for key in one):
        if len(set(map(tuple, names))) == len(rows):
            break
        if len({one.get(setting) for one in found}) > 1:
            for name, one in zip(names, found, strict=True):
                if setting in one:  # the settings of an old run are unknown
                    name.append(_named(setting, one[setting]))
    joined = [" · ".join(name) or _label(row) for name, row in zip(names, rows, strict=True)]
    return [
        f"{name} · {named(row)}" if joined.count(name) > 1 else name
        for name, row in zip(joined, rows, strict=True)
    ]


def _settings(row: Row) -> Mapping[str, str]:
    """Returns the settings of a run as words, the most important first."""
    try:
        stored = json.loads(row["settings"] or "{}")
    except (TypeError, ValueError):  # the row is not from the harness
        stored = {}
    known = dict(settings(stored)) if isinstance(stored, dict) else {}
    first = {"model": row["model"], "backend": row["backend"]}
    return first | {key: known[key] for key in _FIRST if key in known} | known


_FIRST = tuple(map(words, ("precision", "device", "instances", "threads", "max_batch")))
_BARE = ("model", "backend", "precision", "device", "framework")
"""Settings whose values are understood without the setting's name."""


def _named(setting: str, value: str) -> str:
    return value if setting in _BARE else f"{setting} {value}"


def _label(row: Row) -> str:
    return f"{row['model']} · {row['backend']}"


def _medians(runs: Sequence[Numbers]) -> Numbers:
    found: dict[str, list[Number]] = {}
    for values in runs:
        for name, number in values.items():
            found.setdefault(name, []).append(number)
    return {name: _median(same) for name, same in found.items()}


def _median(same: Sequence[Number]) -> Number:
    values = [number.value for number in same]
    return same[0]._replace(value=median(values), low=min(values), high=max(values))


class Margin(NamedTuple):
    """Least differences between two configurations that count, on the scale of `_scaled`."""

    gain: float = 0.0
    """A gain counts only if it is larger."""
    loss: float = 0.0
    """A loss counts only if it is larger."""


Margins = Callable[[str], Margin]
"""Maps the name of a number to its margin."""


class Noise:
    """Noise of each number of a task. All configurations ran on one machine, so their spread is pooled."""

    def __init__(self, configurations: Sequence[Configuration]) -> None:
        values: dict[str, list[list[float]]] = {}
        for one in configurations:
            for name in one.numbers:
                own = [_scaled(number[name]) for _, number in one.runs if name in number]
                values.setdefault(name, []).append(own)
        self._widths = {
            name: width for name, groups in values.items() if (width := _width(groups)) is not None
        }

    def is_known(self, name: str) -> bool:
        return name in self._widths

    def between(self, ours: Configuration, theirs: Configuration) -> Margins:
        return lambda name: self._margin(name, ours, theirs)

    def _margin(self, name: str, ours: Configuration, theirs: Configuration) -> Margin:
        """Returns the margin of a number. The margin of a number with unknown noise is wide only for gains, so that a
        loss that may be real keeps a configuration on the front.
        """
        kind = ours.numbers[name].kind
        least = 0.0 if kind == "exact" else math.log1p(SMALLEST_CHANGE)
        if not self.is_known(name):
            return Margin(math.log1p(EXTREME[kind]) if kind in EXTREME else 0.0, least)
        counts = (sum(name in number for _, number in one.runs) for one in (ours, theirs))
        widest = max(least, self._widths[name] * math.sqrt(sum(1 / count for count in counts)))
        return Margin(widest, widest)


def _width(groups: Sequence[Sequence[float]]) -> float | None:
    """Returns half the width of the interval of one run, from the pooled spread within the groups; None if the groups
    have too few values.
    """
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < LEAST_FREEDOM:
        return None
    squares = sum(float(np.var(group)) * len(group) for group in groups)
    return student_t(freedom) * math.sqrt(squares / freedom)


def exact(_name: str) -> Margin:
    """Returns the margin with which each difference counts."""
    return Margin()


def beats(ours: Numbers, theirs: Numbers, margins: Margins = exact) -> bool:
    """Returns whether the first numbers are better in at least one number and worse in none. A number that the second
    ones lack does not count.
    """
    if not theirs.keys() <= ours.keys():
        return False
    is_better = False
    for name, number in theirs.items():
        gain, margin = _gain(ours[name], number), margins(name)
        if gain < -margin.loss:
            return False
        is_better = is_better or gain > margin.gain
    return is_better


def _gain(ours: Number, theirs: Number) -> float:
    return (_scaled(ours) - _scaled(theirs)) * (1 if ours.higher_is_better else -1)


_LEAST = 1e-12


def _scaled(number: Number) -> float:
    """Returns the logarithm of a number, because noise is a factor, or a score unchanged, because a score may be 0."""
    return number.value if number.kind == "exact" else math.log(max(number.value, _LEAST))
