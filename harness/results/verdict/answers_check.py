"""Compares the performance run's answers with the accuracy run's, so that fast but wrong answers cannot pass.

Follows MLPerf's compliance test TEST01. Every quick run with both modes is checked. LoadGen logs about LOGGED answers
of the performance run, and each is compared with the accuracy run's answer to the same sample.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.loadgen.answers import is_close
from harness.loadgen.logs import read_answers, read_logged_answers
from harness.results.agreement import decode

LOGGED = 500
"""Expected number of logged answers, which LoadGen draws at random."""

FEWEST = 100
"""If fewer answers were compared, the run gets a doubt, because such a comparison means little."""

LIMIT_BYTES = 64 << 20
"""The logged answers may take up at most this much memory, because LoadGen keeps them until the run ends."""


class Compared(NamedTuple):
    answers: int
    """Number of compared answers."""
    differing: int
    """Number of answers that differ by more than the tolerance."""
    first: str
    """The first differing pair; empty if no pair differs."""
    misplaced: int = 0
    """Number of logged answers that belong to a different sample than the journal records at the same position."""


def compare(
    performance: Path,
    accuracy: Path,
    samples: Mapping[int, int],
    dtype: str,
    tolerance: float,
    identity_bytes: int = 0,
) -> Compared:
    """Compares the logged answers.

    performance, accuracy: the accuracy logs of the two runs. samples: dataset indices in the order of issue, from the
    performance run's journal. dtype: type of an answer's elements. tolerance: see `is_close`. identity_bytes: the bytes
    at the beginning of an answer that identify its sample. With such bytes, the accuracy run's answer may be longer,
    because it ends with labels (HasOwnOrder). Raises AccuracyLogError if a log cannot be read.
    """
    if identity_bytes:
        return _compare_identified(performance, accuracy, dtype, tolerance, identity_bytes)
    right = {answer.sample: answer.payload for answer in read_answers(accuracy)}
    count = differing = misplaced = 0
    first = ""
    for logged in read_logged_answers(performance):
        sample, payload = logged.answer
        count += 1
        misplaced += samples.get(logged.order) != sample
        expected = right.get(sample, b"")
        pair = (decode(payload, dtype), decode(expected, dtype))
        if payload != expected and not is_close(*pair, tolerance):
            differing += 1
            first = first or f"sample {sample}: {_show(payload, dtype)}, {_show(expected, dtype)}"
    return Compared(count, differing, first, misplaced)


def _compare_identified(
    performance: Path, accuracy: Path, dtype: str, tolerance: float, identity_bytes: int
) -> Compared:
    right = {
        answer.payload[:identity_bytes]: answer.payload[identity_bytes:]
        for answer in read_answers(accuracy)
    }
    count = differing = 0
    first = ""
    for _, payload in read_answers(performance):
        count += 1
        identity, own = payload[:identity_bytes], payload[identity_bytes:]
        expected = right.get(identity, b"")[: len(own)]
        pair = (decode(own, dtype), decode(expected, dtype))
        if not own or (own != expected and not is_close(*pair, tolerance)):
            differing += 1
            shown = (
                f"sample {_show(identity, dtype)}: {_show(own, dtype)}, {_show(expected, dtype)}"
            )
            first = first or shown
    return Compared(count, differing, first)


def _show(payload: bytes, dtype: str) -> str:
    kind = np.dtype(dtype)
    if not payload or len(payload) % kind.itemsize:
        return f"{len(payload)} bytes"
    values = decode(payload, kind)
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return " ".join(f"{v:.7g}" for v in values[:3].tolist()) + more
