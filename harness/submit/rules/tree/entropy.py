"""Verifies the answers in DLRM-v3's performance run by their entropy, as MLCommons' script in compliance/TEST08 does.

Source: mlcommons/inference b66003e, compliance/TEST08/README.md.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.loadgen.logs import AccuracyLogError, read_answers
from harness.submit.rules.tree.verify import FAIL, PASS
from harness.types import Array

TEST08 = "TEST08"
TOLERANCE = 0.001
LEAST = np.float32(1e-7)
"""Smallest probability that the entropy uses; lower probabilities are raised to this value."""

Key = tuple[int, int]
"""Pair of timestamp and request."""


def verify_entropy(accuracy: Path, test: Path) -> str:
    """Returns the text about TEST08. accuracy, test: the whole accuracy logs from the two runs.

    In the accuracy run, each answer includes its candidates' labels and weights. For each answer that the audit logged,
    the entropy must equal the accuracy run's entropy for the same request. Raises AccuracyLogError for answers in
    another format.
    """
    known = dict(_labelled(accuracy))
    entries = matched = unmatched = different = 0
    lines = []
    for key, scores in _scored(test):
        entries += 1
        if key not in known:
            unmatched += 1
            continue
        matched += 1
        theirs, labels, weights = known[key]
        expected, actual = (_entropy(row, labels, weights) for row in (theirs, scores))
        if expected == actual == 0:
            continue
        if expected == 0 or actual == 0 or not abs(actual - expected) / abs(expected) <= TOLERANCE:
            different += 1
            lines.append(f"  NE mismatch at {key}: acc_ne={expected:.6f}, perf_ne={actual:.6f}")
    passed = matched and not unmatched and not different
    lines += [
        "",
        f"num_acc_log_entries = {len(known)}",
        f"num_perf_log_entries = {entries}",
        f"num_matched = {matched}",
        f"num_unmatched = {unmatched}",
        f"num_ne_mismatch = {different}",
        f"tolerance = {TOLERANCE * 100:.2f}%",
        "",
        PASS if passed else FAIL,
        "TEST08 verification complete",
    ]
    begun = ["Verifying accuracy. This might take a while...", "Reading accuracy mode results..."]
    return "\n".join([*begun, "Reading performance mode results...", *lines]) + "\n"


def _labelled(path: Path) -> Iterator[tuple[Key, tuple[Array, Array, Array]]]:
    """Yields the scores, labels and weights from each answer in an accuracy run's log."""
    for key, row in _rows(path):
        count = int(row[-1]) if len(row) and np.isfinite(row[-1]) else -1
        if len(row) != 1 + 3 * count:
            raise AccuracyLogError(
                f"{path}: the answer to request {key} does not consist of scores, labels, weights and their number"
            )
        yield key, (row[:count], row[count : 2 * count], row[2 * count : 3 * count])


def _scored(path: Path) -> Iterator[tuple[Key, Array]]:
    yield from _rows(path)


def _rows(path: Path) -> Iterator[tuple[Key, Array]]:
    for sample, payload in read_answers(path):
        if len(payload) % 4 or len(payload) < 8:
            raise AccuracyLogError(f"{path}: the answer to sample {sample} is not float32")
        numbers = np.frombuffer(payload, np.float32)
        if not np.isfinite(numbers[:2]).all():
            raise AccuracyLogError(f"{path}: the answer to sample {sample} names no request")
        yield (int(numbers[0]), int(numbers[1])), numbers[2:]


def _entropy(scores: Array, labels: Array, weights: Array) -> float:
    """Returns the normalised entropy, computed in float32 as in the script; 0 without candidates."""
    total = weights.sum()
    if total == 0 or len(scores) != len(labels):
        return 0.0
    likely, right = (np.clip(row, LEAST, 1 - LEAST) for row in (scores, labels))
    entropy = -np.sum(weights * (right * np.log(likely) + (1 - right) * np.log(1 - likely)))
    share = np.clip(np.sum(weights * right) / total, LEAST, 1 - LEAST)
    base = -share * np.log(share) - (1 - share) * np.log(1 - share)
    return float(entropy / (base * total)) if base else 0.0
