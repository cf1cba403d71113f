"""Computes the points in the charts of one folder's live page from the snapshots of its runs."""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from harness.browse.live.points import begin_of, closing, opening, point, point_of_ended
from harness.core.files import PARTIAL
from harness.run.supervisor.metrics.course import Snapshot

LEAST_S = 0.5
"""Least time between two states that the curves show."""

BETWEEN_RUNS_S = 1.0
"""Time between two runs of a search in the curves, in which the loading of a model would take most of the room."""

MOST_POINTS = 3600
MOST_SNAPSHOTS = 60


class Past:
    """One folder's snapshots so far. All clients' pages show the same points."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.read_s = 0.0
        self.state: Snapshot | None = None
        """The current state; None if it could not be read."""
        self.last: Snapshot | None = None
        """The latest state that could be read."""
        self.begun: Snapshot | None = None
        """The latest state after a first query. While the next run of a study loads, it belongs to the previous run."""
        self.measured: Snapshot | None = None
        """The latest state in a performance phase, which knows the planned rate and number of queries."""
        self.begun_in = ""
        """Folder of the run of `begun`."""
        self.run = ""
        """Folder of the latest run."""
        self.points: deque[Mapping[str, Any]] = deque(maxlen=MOST_POINTS)
        self.count = 0
        """Number of points so far, including dropped points."""
        self._recent: deque[Snapshot] = deque(maxlen=MOST_SNAPSHOTS)
        self._origin_s: float | None = None
        """Time 0 of the curves, on the same clock as `Snapshot.at_s`: the first query of the first run that was seen."""
        self._begin_s = 0.0
        """Time of the current run's first query in the curves."""
        self._mark: str | None = None
        """Name of a phase whose first point is not added yet."""
        self._measured = ""
        """Folder of the latest run whose performance phase was seen."""
        self._is_closed = False
        """Whether the curves of the current phase have ended."""
        self._first_s = 0.0
        """Time of the first query of the current phase, on the same clock as `Snapshot.at_s`."""
        self._drawn: set[str] = set()
        """Keys of the runs whose points were added."""
        self.share: float | None = None
        """Largest share of a study's time that was shown, because a bar must not go back; None if none was shown."""

    def add(self, run: str, state: Snapshot) -> None:
        self._enter(run, state)
        if not state.has_begun or self._is_closed or self._is_omitted(state):
            return
        elapsed_s = state.elapsed_s or 0.0
        if self._origin_s is None:
            self._origin_s = state.at_s - elapsed_s - self._begin_s
        if not self._recent:
            self._first_s = state.at_s - elapsed_s
            if (begin := begin_of(state)) is not None:
                self._recent.append(begin)
        if state.is_answered:  # the curves end at the last answer, because the rate would fall to 0
            self._is_closed = True
            at_s = min(state.at_s, self._first_s + elapsed_s)
            # The counters of the cores belong to the time of the snapshot.
            state = state._replace(at_s=at_s, totals=state.totals._replace(run_cpu_s=None))
        # The rate over a few ms would set the axis of the whole run, so the next state is used instead.
        is_soon = bool(self._recent) and state.at_s - self._recent[-1].at_s < LEAST_S
        if is_soon and not self._is_closed:
            return
        self._recent.append(state)
        if len(self._recent) < 2:  # a curve needs at least two states
            return
        recent = list(self._recent)
        self._drawn.add(_key(run))
        if self._mark is not None:
            self._append(opening(recent, self._origin_s))
        elif is_soon:
            self._append(closing(recent, self._origin_s))
            return
        self._append(point(recent, self._origin_s))

    def _enter(self, run: str, state: Snapshot) -> None:
        """Stores the state, and begins a curve with a mark if the run or its phase is new."""
        if state.phase == "performance":
            self._measured, self.measured = run, state
        if run != self.run and self.points:
            self._origin_s = None
            self._begin_s = self.points[-1]["t"] + BETWEEN_RUNS_S
        if run != self.run or not self._recent or self._recent[-1].phase != state.phase:
            self._recent.clear()
            self._is_closed = False
            self._mark = _mark(run, state)
        self.state, self.last, self.run = state, state, run
        if state.has_begun:
            self.begun, self.begun_in = state, run

    def _is_omitted(self, state: Snapshot) -> bool:
        """Returns whether the state belongs to an accuracy phase after a performance phase of `run`, whose axes its
        rates would set.
        """
        return state.phase != "performance" and self._measured == self.run

    @property
    def has_measured(self) -> bool:
        """Whether `run` is in the accuracy phase after a performance phase, whose last state is `measured`."""
        begun = self.begun if self.begun_in == self.run else None
        return begun is not None and self._is_omitted(begun)

    def has_drawn(self, run: str) -> bool:
        return _key(run) in self._drawn

    def add_ended(self, run: str, result: Mapping[str, Any]) -> None:
        """Adds a point for a run that ended before a snapshot of it was read. result: content of its result.json."""
        self._drawn.add(_key(run))  # also if its result cannot be drawn
        begin_s = self.points[-1]["t"] + BETWEEN_RUNS_S if self.points else 0.0
        made = point_of_ended(result, begin_s)
        self._mark = f"{_name(run)} performance"
        self._append(made)

    def _append(self, made: Mapping[str, Any]) -> None:
        """Adds a point, whose time must not be earlier than the previous point's time."""
        before_s = self.points[-1]["t"] if self.points else 0.0
        self.points.append({**made, "t": max(made["t"], before_s), "mark": self._mark})
        self._mark = None
        self.count += 1

    def since(self, count: int) -> list[Mapping[str, Any]]:
        """Returns the points after the first `count`."""
        with self.lock:
            new = min(self.count - count, len(self.points))
            return list(self.points)[len(self.points) - new :]

    def latest(self, chart: str, series: str) -> float | None:
        """Returns a value from the last of two points that has the chart; None if the chart lacks the value, if the
        curves omit the current phase, or if they do not show the current run or phase yet.
        """
        is_new = self._mark is not None and self.begun is self.last
        if is_new or (self.last is not None and self._is_omitted(self.last)):
            return None
        last_two = (self.points[-i]["charts"] for i in (1, 2) if i <= len(self.points))
        values: Mapping[str, float] = next((one[chart] for one in last_two if chart in one), {})
        return values.get(series)


def _key(run: str) -> str:
    """Returns the path of a run's folder as it will be once the run and its study have ended."""
    return "/".join(part.removesuffix(PARTIAL) for part in run.split("/"))


def _mark(run: str, state: Snapshot) -> str:
    return f"{_name(run)} {state.phase}".strip()


def _name(run: str) -> str:
    """Returns the name of a run within a study; '' for a run outside a study."""
    return run.rpartition("/")[2].removesuffix(PARTIAL) if "/" in run else ""
