"""Computes means over several runs of one configuration, and the noise between them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.core.stats import LEVEL, student_t
from harness.types import Array

LEAST_FREEDOM = 2
"""A spread with fewer degrees of freedom than this is not reported. Two runs leave one degree of freedom, and the
interval of their mean would extend six times the distance between the runs to either side.
"""

LEAST_RUNS = LEAST_FREEDOM + 1
"""With fewer runs of one configuration, no interval over runs is reported."""

SMALLEST_CHANGE = 0.02
"""A change below this share is never judged, because differences in a process's memory addresses alone can cause such a
change.
"""

EXTREME: Mapping[str, float] = {"rate": 1.0, "body": 3.0, "tail": 9.0}
"""Maps a kind of number to a change, as a share, that equal runs have never shown on any machine: factors of 2, 4 and
10.
With one run per side, only larger changes get a verdict. Source: benchmarks/equal_runs.py.
"""


def between_runs(
    before: Sequence[float], after: Sequence[float], level: float = LEVEL
) -> float | None:
    """Returns half the width of the interval of mean(after) - mean(before), from the spread within each side.

    The spread is pooled, because both sides ran on the same machine. Returns None with fewer than LEAST_FREEDOM degrees
    of freedom. level: confidence.
    """
    freedom = len(before) + len(after) - 2
    if freedom < LEAST_FREEDOM:
        return None
    error = math.sqrt(pooled_variance(before, after) * (1 / len(before) + 1 / len(after)))
    return student_t(freedom, level) * error


def pooled_variance(before: Sequence[float] | Array, after: Sequence[float] | Array) -> float:
    """Returns the pooled variance within the sides, which need at least three values together."""
    squares = sum(float(np.var(side)) * len(side) for side in (before, after))
    return squares / (len(before) + len(after) - 2)


def mean_over(values: Array) -> tuple[float, float] | None:
    """Returns Student's interval of the mean of independent values; None with one value. values: (n,)."""
    if len(values) < 2:
        return None
    mean = float(values.mean())
    half = student_t(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def over_runs(values: Sequence[float]) -> tuple[float, tuple[float, float] | None] | None:
    """Returns the geometric mean over runs of one configuration, and the interval of this mean. Student's t is applied
    to the logarithms, because the noise multiplies each value. The interval is None with fewer than LEAST_RUNS values.

    Returns None if the list is empty or contains a value of 0 or less.
    """
    if not values or min(values) <= 0:
        return None
    logs = np.log(np.asarray(values, np.float64))
    mean = math.exp(float(logs.mean()))
    interval = mean_over(logs) if len(values) >= LEAST_RUNS else None
    return mean, (math.exp(interval[0]), math.exp(interval[1])) if interval else None
