"""Reads the numbers of LoadGen's detail log that a calculation can use; others count as missing. Pure."""

from harness.loadgen.logs import DetailLog

_MOST = 10**10
"""No run has more samples; a larger number is a damaged log."""


def number(log: DetailLog, key: str) -> float | None:
    """An int or a finite float; None where the log has no such value."""
    value = log.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 else None


def queries(log: DetailLog) -> int:
    """Completed queries; 0 where the log's number is not one of a run."""
    count = number(log, "result_query_count")
    return int(count) if count is not None and 1 <= count <= _MOST else 0


def samples(log: DetailLog) -> int:
    """Completed samples; 0 if the log's numbers cannot come from a run.

    If each sample is issued equally often, Offline's query is filled up to a multiple of the samples held.
    """
    per_query = number(log, "generated_samples_per_query")
    if per_query is None:
        per_query = number(log, "effective_samples_per_query")
    if per_query is None or not 1 <= per_query <= _MOST:
        return 0
    return queries(log) * int(per_query)


def by_query(log: DetailLog) -> bool:
    """Whether LoadGen judges the latency of whole queries, not of samples."""
    return bool(log.get("effective_scenario") == "MultiStream")
