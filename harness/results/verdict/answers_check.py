"""Compares answers of the performance run with the accuracy run's: fast and wrong must not pass.

Modelled on MLPerf's compliance test TEST01, in every quick run of both modes: LoadGen logs about
LOGGED of the performance run's answers, and each is compared with the accuracy run's answer to the
same sample.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.loadgen.logs import ACCURACY, ANSWERS, read_answers
from harness.results.agreement import decode, is_close

LOGGED = 500
"""Expected number of logged answers: LoadGen draws them at random."""

FEWEST = 100
"""Answers below which the comparison shows little."""

LIMIT_BYTES = 64 << 20
"""Size of all logged answers; LoadGen keeps them in memory until the run's end."""


class Compared(NamedTuple):
    answers: int
    """Answers compared."""
    differing: int
    """Answers that differ by more than the tolerance."""
    first: str
    """The first differing pair; empty without one."""


def compare(performance: Path, accuracy: Path, dtype: str, tolerance: float) -> Compared:
    """performance, accuracy: folders of the two runs. dtype: of an answer's elements. tolerance: see
    `is_close`. Raises AccuracyLogError where a log cannot be read.
    """
    right = {answer.sample: answer.payload for answer in read_answers(accuracy / ACCURACY)}
    count = differing = 0
    first = ""
    ours = performance / ANSWERS
    for sample, payload in read_answers(ours if ours.is_file() else performance / ACCURACY):
        count += 1
        expected = right.get(sample, b"")
        pair = (decode(payload, dtype), decode(expected, dtype))
        if payload != expected and not is_close(*pair, tolerance):
            differing += 1
            first = first or f"sample {sample}: {_show(payload, dtype)}, {_show(expected, dtype)}"
    return Compared(count, differing, first)


def _show(payload: bytes, dtype: str) -> str:
    kind = np.dtype(dtype)
    if not payload or len(payload) % kind.itemsize:
        return f"{len(payload)} bytes"
    values = decode(payload, kind)
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return " ".join(f"{v:.7g}" for v in values[:3].tolist()) + more
