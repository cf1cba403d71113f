"""Shows a run's progress as one line on stderr; nothing when stderr is not a terminal."""

import os
from typing import Self

from harness.core.clock import monotonic_ns
from harness.core.console import stderr
from harness.core.shown.escapes import visible
from harness.core.units import show_ns, show_rate
from harness.loadgen.plan import Calibration, InstanceGroup, LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.run.supervisor.watchdog import Now


def show_loading(done: int, total: int) -> None:
    """Shows how many samples a dataset has loaded."""
    if stderr().isatty():
        _LINE.draw(loading_line(done, total))


def end_loading() -> None:
    if stderr().isatty():
        _LINE.draw("")


_USUAL_COLUMNS = 80
"""Width of a terminal that does not report its own, e.g. one that a recorder opened."""


class Line:
    """One line of a terminal, drawn again and again and cropped to the terminal's width.

    A terminal that was made narrower has wrapped the text before, so all of its rows are cleared first.
    """

    def __init__(self) -> None:
        self._drawn = 0  # characters

    def draw(self, text: str) -> None:
        columns = os.get_terminal_size(stderr().fileno()).columns or _USUAL_COLUMNS
        shown = visible(text)[: columns - 1]  # a full row would leave the cursor on the next one
        above = max(0, self._drawn - 1) // columns
        up = f"\x1b[{above}A" if above else ""
        stderr().write(f"\r{up}\x1b[J{shown}")
        stderr().flush()
        self._drawn = len(shown)


_LINE = Line()


def loading_line(done: int, total: int) -> str:
    return f"loading {done:,} of {total:,} samples"


class Progress:
    """Elapsed time, queries, rate, running p99 and queue depth. A context manager."""

    def __init__(self, plan: LoadPlan, *, quiet: bool) -> None:
        self._on = stderr().isatty() and not quiet
        self._plan = plan
        self._label = plan.role
        self._start_ns = monotonic_ns()
        self._before = (self._start_ns, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._on:
            _LINE.draw("")

    def show(self, now: Now) -> None:
        if self._on:
            _LINE.draw(self.line(now))

    def show_loading(self, done: int, total: int) -> None:
        if self._on:
            _LINE.draw(loading_line(done, total))

    def line(self, now: Now) -> str:
        at_ns = monotonic_ns()
        then_ns, count = self._before
        rate = (now.completed - count) * 1e9 / max(at_ns - then_ns, 1)
        self._before = (at_ns, now.completed)
        total = self._plan.planned_samples
        parts = [
            f"{self._label} {(at_ns - self._start_ns) / 1e9:5.1f} s",
            f"{now.completed:,} of {total:,} samples",
            f"{show_rate(rate)}/s",
            f"p99 {show_ns(now.p99_ns)}" if now.p99_ns is not None else "p99 …",
            f"waiting {now.waiting:,}",
        ]
        if now.failed:
            parts.append(f"FAILED {now.failed:,}")
        return "  ".join(parts)


def announcement(plan: LoadPlan, calibration: Calibration, group: InstanceGroup) -> str:
    """One line about the run to come and its duration."""
    scenario = scenario_named(plan.scenario)
    all_at_once, calibrated = scenario.all_at_once, calibration.rate_per_s is not None
    unit = "samples" if all_at_once or plan.accuracy else "queries"
    parts = [f"{plan.scenario}: {plan.query_count:,} {unit}"]
    if plan.target_qps is not None:
        chosen = ", a demonstration rate" if scenario.scheduled and calibrated else ""
        parts.append(f"at {show_rate(plan.target_qps)}/s{chosen}")
    if plan.schedule is not None:
        parts.append("replayed from a file, not MLPerf")
    if plan.concurrency is not None:
        parts.append(f"{plan.concurrency:,} in flight, not MLPerf")
    if calibration.rate_per_s is not None:
        parts.append(f"capacity {show_rate(calibration.rate_per_s)}/s")
    if calibration.latency_ns is not None:
        parts.append(f"calibrated latency {show_ns(calibration.latency_ns)}")
    if plan.percentile is not None and plan.latency_bound_ns is not None:
        parts.append(f"SLO p{plan.percentile * 100:.10g} ≤ {show_ns(plan.latency_bound_ns)}")
    parts.append(str(group))
    if plan.expected_s:
        parts.append(f"about {plan.expected_s:.0f} s")
    return ", ".join(parts)
