"""Summarises the metrics that servers reported during the performance run. Pure."""

from collections.abc import Sequence
from typing import cast

from harness.machine.family import Row
from harness.machine.host_log import HostLog
from harness.results.schema.client import Servers
from harness.wire.server_metrics import COUNTERS, GAUGES


def section(log: HostLog | None, window_ns: tuple[int, int] | None, absent: str) -> Servers | None:
    """Returns None for a run without rows and without a reason for that. window_ns: LoadGen's window."""
    if log is None and not absent:
        return None
    rows = log.within(window_ns) if log is not None and window_ns is not None else []
    grown = {name: _grown(rows, name) for name in COUNTERS}
    inferences, executions = grown["inferences"], grown["executions"]
    found = {
        "rows": len(rows),
        "absent": absent,
        **{f"{name}_max": max(_values(rows, name), default=None) for name in GAUGES},
        **grown,
        "batch_mean": inferences / executions if inferences and executions else None,
    }
    return cast("Servers", found)


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [row[column] for row in rows if column in row]


def _grown(rows: Sequence[Row], column: str) -> float | None:
    """Returns the growth of a counter; None with fewer than two values, or if the server began to count again."""
    values = _values(rows, column)
    return values[-1] - values[0] if len(values) > 1 and values == sorted(values) else None
