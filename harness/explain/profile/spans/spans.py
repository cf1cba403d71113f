"""Joins spans of all levels on one time line, finds their parents, and writes a Chrome trace.

Source: XSP (Li et al., IPDPS 2020), section III: spans with levels, parents by intervals.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.explain.profile.options import LEVELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of time at one level. start_ns, end_ns: on a clock that all spans share.
    group, lane: place in the drawing. Spans of a lane are disjoint or nested.
    parent: ID of the span that contains this span.
    ambiguous: whether several spans could be the parent; if so, parent is None.
    """

    id: int
    name: str
    level: str
    start_ns: int
    end_ns: int
    group: str = "run"
    lane: str = ""
    parent: int | None = None
    ambiguous: bool = False
    tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def holds(self, other: "Span") -> bool:
        return self.start_ns <= other.start_ns and other.end_ns <= self.end_ns


def with_parents(spans: Sequence[Span]) -> list[Span]:
    """Returns the spans in order.

    The parent of a span is the span that contains it at the next higher level with spans. If several spans at that
    level contain it, as in parallel work, the span is marked ambiguous. Profiling with one thread avoids ambiguous
    spans.
    """
    present = [level for level in LEVELS if any(span.level == level for span in spans)]
    above = dict(zip(present[1:], present, strict=False))
    by_level = {level: _Sorted(s for s in spans if s.level == level) for level in present}
    return [
        span
        if span.parent is not None or span.level not in above
        else _adopted(span, by_level[above[span.level]].holding(span))
        for span in spans
    ]


def _adopted(span: Span, containers: Sequence[Span]) -> Span:
    if len(containers) == 1:
        return replace(span, parent=containers[0].id)
    return replace(span, ambiguous=len(containers) > 1)


class _Sorted:
    """Spans sorted by start. `_latest` is the running maximum of the spans' ends, so that a search can stop early."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans, key=lambda s: s.start_ns)
        self._starts = [s.start_ns for s in self._spans]
        self._latest: list[int] = []
        for span in self._spans:
            self._latest.append(max(span.end_ns, self._latest[-1] if self._latest else 0))

    def holding(self, span: Span) -> list[Span]:
        containers = []
        i = bisect_right(self._starts, span.start_ns) - 1
        while i >= 0 and self._latest[i] >= span.end_ns:
            if self._spans[i].holds(span):
                containers.append(self._spans[i])
            i -= 1
        return containers


def chrome_trace(spans: Sequence[Span], trace_id: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a trace of complete events for chrome://tracing and ui.perfetto.dev, with times in us since the start of
    the first span.

    Each group is drawn as a process, and each lane as a thread.
    """
    start_ns = min((span.start_ns for span in spans), default=0)
    groups = {name: i for i, name in enumerate(dict.fromkeys(s.group for s in spans), 1)}
    lanes = {one: i for i, one in enumerate(dict.fromkeys((s.group, s.lane) for s in spans), 1)}
    events: list[dict[str, Any]] = [_meta("process_name", groups[name], 0, name) for name in groups]
    events += [_meta("thread_name", groups[g], lanes[g, lane], lane) for g, lane in lanes]
    for span in spans:
        args = {"id": span.id, "level": span.level, "trace_id": trace_id, **span.tags}
        if span.parent is not None:
            args["parent"] = span.parent
        if span.ambiguous:
            args["ambiguous"] = True
        events.append(
            {
                "name": span.name,
                "cat": span.level,
                "ph": "X",
                "ts": (span.start_ns - start_ns) / 1e3,
                "dur": span.duration_ns / 1e3,
                "pid": groups[span.group],
                "tid": lanes[span.group, span.lane],
                "args": args,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(about)}


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def lanes(intervals: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yields a lane number for each interval. Intervals in the same lane do not overlap.

    intervals: (start, end), ascending by start.
    """
    free_at: list[int] = []
    for start, end in intervals:
        lane = next((i for i, free in enumerate(free_at) if free <= start), len(free_at))
        if lane == len(free_at):
            free_at.append(end)
        else:
            free_at[lane] = end
        yield lane
