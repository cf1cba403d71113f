"""Summarises the metrics that servers reported during the performance run. Has no side effects."""

from collections.abc import Mapping, Sequence
from typing import cast

from harness.machine.family import Row
from harness.machine.host_log import HostLog
from harness.results.schema.client import OtherSeries, Servers
from harness.wire.server_series import column_of, columns


def section(log: HostLog | None, window_ns: tuple[int, int] | None, absent: str) -> Servers | None:
    """Returns the section `servers`; None if the run has neither rows nor a reason why rows are missing. window_ns:
    LoadGen's window.
    """
    if log is None and not absent:
        return None
    rows = log.within(window_ns) if log is not None and window_ns is not None else []
    single = {name: column for name, column in columns().items() if not column.label}
    gauges = [name for name, column in single.items() if not column.is_counter]
    grown = {name: _grown(rows, name) for name, column in single.items() if column.is_counter}
    largest = {f"{name}_max": max(_values(rows, name), default=None) for name in gauges}
    reported_length = largest.pop("acceptance_length_max")
    found = {
        "rows": len(rows),
        "absent": absent,
        **largest,
        **grown,
        "batch_mean": _ratio(grown["inferences"], grown["executions"]),
        "cache_hit_share": _ratio(
            grown["cached_tokens"], grown["cache_queried_tokens"] or grown["prompt_tokens"]
        ),
        **_drafts(rows, grown, reported_length),
        "series": _others(rows),
    }
    return cast("Servers", found)


def _drafts(
    rows: Sequence[Row], grown: Mapping[str, float | None], reported_length: float | None
) -> dict[str, object]:
    """Returns the keys about speculative decoding. reported_length: tokens per step, if the server reports no counters."""
    per_draft = _ratio(grown["accepted_tokens"], grown["drafts"])
    places = sorted({int(n) for row in rows for n in map(_position, row) if n.isdecimal()})
    accepted = [_grown(rows, f"{_ACCEPTED_AT}{place}") for place in places]
    shares = [_ratio(count, grown["drafts"]) for count in accepted]
    return {
        "acceptance_share": _ratio(grown["accepted_tokens"], grown["drafted_tokens"]),
        "acceptance_length": reported_length if per_draft is None else 1 + per_draft,
        "acceptance_by_position": None if not shares or None in shares else shares,
    }


_ACCEPTED_AT = "accepted_tokens_at_"


def _position(column: str) -> str:
    return column.removeprefix(_ACCEPTED_AT) if column.startswith(_ACCEPTED_AT) else ""


def _others(rows: Sequence[Row]) -> dict[str, OtherSeries]:
    """Returns the series of --server-metric by name."""
    names = sorted({n for row in rows for n in row if n != "wall_ns" and column_of(n) is None})
    return {
        name: {"first": values[0], "last": values[-1], "largest": max(values)}
        for name in names
        if (values := _values(rows, name))
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [row[column] for row in rows if column in row]


def _grown(rows: Sequence[Row], column: str) -> float | None:
    """Returns a counter's growth; None with fewer than two values, or if the server reset the counter."""
    values = _values(rows, column)
    return values[-1] - values[0] if len(values) > 1 and values == sorted(values) else None
