"""Reads the usable numbers of LoadGen's detail log. Treats unusable numbers as missing. Has no side effects."""

from harness.core import numbers
from harness.loadgen.logs import DetailLog

_MOST = 10**10
"""A larger number of samples means that the log is damaged."""


def number(log: DetailLog, key: str) -> float | None:
    """Returns a finite number; None if the log contains none under this key."""
    return numbers.number(log.get(key))


def queries(log: DetailLog) -> int:
    """Returns the number of completed queries; 0 if no run can have produced the log's number."""
    count = number(log, "result_query_count")
    return int(count) if count is not None and 1 <= count <= _MOST else 0


def samples(log: DetailLog) -> int:
    """Returns the number of completed samples; 0 if no run can have produced the log's numbers.

    If each sample is issued equally often, Offline's query is padded to a multiple of the number of samples in memory.
    """
    per_query = number(log, "generated_samples_per_query")
    if per_query is None:
        per_query = number(log, "effective_samples_per_query")
    if per_query is None or not 1 <= per_query <= _MOST:
        return 0
    return queries(log) * int(per_query)


def by_query(log: DetailLog) -> bool:
    """Returns whether LoadGen judges the latency of queries, not of samples."""
    return bool(log.get("effective_scenario") == "MultiStream")
