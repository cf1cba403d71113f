"""Some answers of the performance run against the accuracy run's: fast and wrong must not pass.

After MLPerf's compliance test TEST01, in every quick run of both modes: LoadGen logs about
WANTED of the performance run's answers, and each is compared with the accuracy run's for the same
sample.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.loadgen.logs import ACCURACY, ANSWERS, read_answers
from harness.results.agreement import decode, is_close

WANTED = 500
"""Answers; LoadGen draws them with a probability, so it is only about so many."""

FEWEST = 100
"""With fewer than these compared, little is known."""


LIMIT_BYTES = 64 << 20
"""Of logged answers; LoadGen keeps them in memory until the run's end."""


class Compared(NamedTuple):
    """answers: how many. differing: of them. first: what was different in the first of these."""

    answers: int
    differing: int
    first: str


def compare(performance: Path, accuracy: Path, dtype: str, tolerance: float) -> Compared:
    """Folders of the two runs. dtype: of one answer's elements. tolerance: of floats, relative,
    with what is small measured by the answer's median. An AccuracyLogError when a log cannot be read.
    """
    right = {answer.sample: answer.payload for answer in read_answers(accuracy / ACCURACY)}
    count = differing = 0
    first = ""
    ours = performance / ANSWERS
    for sample, payload in read_answers(ours if ours.is_file() else performance / ACCURACY):
        count += 1
        wanted = right.get(sample, b"")
        pair = (decode(payload, dtype), decode(wanted, dtype))
        if payload != wanted and not is_close(*pair, tolerance):
            differing += 1
            first = first or f"sample {sample}: {_show(payload, dtype)}, {_show(wanted, dtype)}"
    return Compared(count, differing, first)


def _show(payload: bytes, dtype: str) -> str:
    kind = np.dtype(dtype)
    if not payload or len(payload) % kind.itemsize:
        return f"{len(payload)} bytes"
    values = decode(payload, kind)
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return " ".join(f"{v:.7g}" for v in values[:3].tolist()) + more
