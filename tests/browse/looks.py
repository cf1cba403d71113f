"""Snapshots of a run for the tests of live pages."""

from typing import Any

from harness.run.supervisor.metrics.course import Snapshot, Totals

NO_TOTALS = Totals((), {}, 0, {}, {}, None, None, None, None, {}, [], [])


def look(at_s: float, completed: float = 0, **more: Any) -> Snapshot:
    """Returns a snapshot. more: fields of Snapshot or Totals."""
    totals = NO_TOTALS._replace(**{k: v for k, v in more.items() if k in Totals._fields})
    others = {k: v for k, v in more.items() if k not in Totals._fields}
    plain: dict[str, Any] = {
        "elapsed_s": None,
        "scenario": "server",
        "offered": None,
        "failed": 0.0,
        "in_flight": 0.0,
        "progress": 0.5,
    }
    return Snapshot(
        at_s=at_s,
        phase="performance",
        completed=completed,
        is_valid=None,
        totals=totals,
        **{**plain, **others},
    )
