"""Recomputes the numbers in result_summary.json from the events, and compares the results with the published numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.submit.endpoints.witness.events import Events

_TOLERANCE = 1e-9
"""Two numbers agree if their relative difference does not exceed this value. The value is small because the client also
computes with 64-bit floating-point numbers.
"""


class Row(NamedTuple):
    name: str
    published: float | None
    recomputed: float | None
    why: str = ""
    """Reason why the number was not recomputed; '' if it was recomputed."""

    @property
    def agrees(self) -> bool:
        """Whether the published and the recomputed number are equal. A number that was not recomputed does not agree."""
        if self.published is None or self.recomputed is None:
            return self.published is None and self.recomputed is None
        return abs(self.published - self.recomputed) <= _TOLERANCE * max(1.0, abs(self.recomputed))

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "agrees": self.agrees}


def compare(events: Events, summary: Mapping[str, Any]) -> Iterator[Row]:
    """Yields a row for each published number."""
    yield from _counts(events, summary)
    for name, values in series(events).items():
        yield from _series(name, values, summary.get(name), events.uncounted)
    yield from _rates(events, summary)


def series(events: Events) -> Mapping[str, Sequence[float] | None]:
    """Returns the client's series under their names in result_summary.json; None for a token series if tokens were not
    counted.
    """
    done = events.completed
    counted = not events.uncounted
    tpot = [one for s in events.samples if (one := s.tpot_ns) is not None]
    lengths = [s.tokens for s in done if s.tokens is not None]
    return {
        "ttft": [s.first_ns - s.issued_ns for s in events.samples if s.first_ns is not None],
        "latency": [s.complete_ns - s.issued_ns for s in done if s.complete_ns is not None],
        "tpot": tpot if counted else None,
        "output_sequence_lengths": lengths if counted else None,
    }


def duration_ns(events: Events) -> int:
    """Returns the time from the start of the performance tracking to the last completion."""
    if events.start_ns is None or events.last_complete_ns is None:
        return 0
    return events.last_complete_ns - events.start_ns


def _counts(events: Events, summary: Mapping[str, Any]) -> Iterator[Row]:
    failed = sum(s.failed for s in events.samples)
    ours = {
        "duration_ns": duration_ns(events),
        "n_samples_issued": len(events.samples),
        "n_samples_completed": len(events.completed),
        "n_samples_failed": failed,
    }
    for name, value in ours.items():
        yield Row(name, _number(summary.get(name)), float(value))


def _series(
    name: str, values: Sequence[float] | None, block: object, uncounted: str
) -> Iterator[Row]:
    published = block if isinstance(block, Mapping) else {}
    percentiles = published.get("percentiles")
    percentiles = percentiles if isinstance(percentiles, Mapping) else {}
    named = {"total": "total", "min": "min", "max": "max", "avg": "mean"}
    if values is None:
        for key in named:
            yield Row(f"{name}.{key}", _number(published.get(key)), None, uncounted)
        return
    array = np.asarray(values, dtype=np.float64)
    whole = all(isinstance(value, int) for value in values)
    for key in named:
        yield Row(f"{name}.{key}", _number(published.get(key)), _rollup(key, values, whole))
    for key, value in percentiles.items():
        own = float(np.percentile(array, float(key), method="lower")) if len(array) else None
        yield Row(f"{name}.p{key}", _number(value), own)


def _rollup(key: str, values: Sequence[float], whole: bool) -> float | None:
    if not values:
        return None
    total = sum(values) if whole else float(sum(values))
    return {
        "total": float(total),
        "min": float(min(values)),
        "max": float(max(values)),
        "avg": total / len(values),
    }[key]


def _rates(events: Events, summary: Mapping[str, Any]) -> Iterator[Row]:
    """Compares the rates, and the metrics that MLCommons defines and publishes."""
    spent_s = duration_ns(events) / 1e9
    own = metrics(events)
    qps = len(events.completed) / spent_s if spent_s else None
    yield Row("qps", _number(summary.get("qps")), qps)
    why = events.uncounted
    yield Row("tps", _number(summary.get("tps")), own["system_tps"], why)
    tpot = summary.get("tpot")
    found = tpot.get("percentiles") if isinstance(tpot, Mapping) else None
    p90 = found.get("90", found.get("90.0")) if isinstance(found, Mapping) else None
    published = 1e9 / p90 if isinstance(p90, int | float) and p90 > 0 else None
    yield Row("tps_per_user", published, own["tps_per_user"], why)


def metrics(events: Events) -> Mapping[str, float | None]:
    """Returns system_tps and tps_per_user; both are None if tokens were not counted, or if no TPOT is positive."""
    found, spent_s = series(events), duration_ns(events) / 1e9
    lengths, tpot = found["output_sequence_lengths"], found["tpot"]
    p90 = float(np.percentile(tpot, 90, method="lower")) if tpot else 0.0
    return {
        "system_tps": sum(lengths) / spent_s if lengths and spent_s else None,
        "tps_per_user": 1e9 / p90 if p90 > 0 else None,
    }


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]
