"""Shows progress on stderr: as a bar on a terminal, otherwise as a plain line every 10 s."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from harness.core.clock import monotonic_ns
from harness.core.console import clear_status, draw_status, say, stderr
from harness.core.shown.escapes import visible
from harness.core.shown.status_line import columns_of
from harness.core.units import NS_PER_S, show_wait

if TYPE_CHECKING:
    from harness.run.bar import Bar

FIRST_S = 5.0
EVERY_S = 10.0
"""Plain lines appear after FIRST_S and then every EVERY_S."""

LEAST_LEFT_S = 0.5
"""A shorter remaining time is not shown, because it would appear as 0 s while work continues."""

DRAW_EVERY_S = 1.0
"""The bar is drawn at this interval, because one drawing takes about a millisecond. The supervisor checks the run more
often, four times a second.
"""


class Progress:
    """The display of one run, or of several consecutive runs of a verb. This class is not thread-safe.

    Use it as a context manager, which removes the bar at the end.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        noted: Callable[[str, float | None], None] = lambda _text, _left_s: None,
    ) -> None:
        """noted: is called at the beginning of each of several runs, with the texts of `series` and the time left."""
        self._noted = noted
        self._series: tuple[str, str, float | None] | None = None
        self._series_since_s = now_s = _now_s()
        self._bar = None if quiet or not _is_terminal() else _bar()
        self._due_s = math.inf if quiet else now_s + FIRST_S * (self._bar is None)
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    @property
    def is_due(self) -> bool:
        """Returns whether `show` with the same name would draw or print anything now."""
        return _now_s() >= self._due_s

    def series(self, text: str, left_s: float | None, bound: str = "about") -> None:
        """text: number of the next run, and total number of runs. left_s: estimated time for this run and all later
        runs.

        bound: `at most` if the series may end earlier.
        """
        self._series = text, bound, left_s
        self._series_since_s = _now_s()
        self._noted(text if left_s is None else f"{text}, {bound}", left_s)

    def show(
        self,
        name: str,
        *,
        share: float | None = None,
        details: Sequence[str] = (),
        left_s: float | None = None,
    ) -> None:
        """Draws the bar, or prints a line if a line is due. name: the current work.

        share: in [0, 1]. share and left_s: None if no end is known.
        """
        is_new = self._bar is not None and name != self._name
        if not (self.is_due or is_new):
            return
        self._name = name
        self._due_s = _now_s() + (EVERY_S if self._bar is None else DRAW_EVERY_S)
        details = [*details, *([f"{show_wait(left_s)} left"] if left_s is not None else [])]
        if self._bar is not None:
            with suppress(OSError):  # the terminal may have been closed
                columns = columns_of(stderr()) - 1
                above = [visible(self._series_text(left_s))[:columns]] if self._series else []
                draw_status([*above, *self._bar.rows(columns, visible(name), share, details)])
            return
        done = name if share is None else f"{name} {share * 100:.0f} %"
        words = ", ".join([done, *details])
        say(f"{self._series_text(left_s)}: {words}" if self._series else words)

    def clear(self) -> None:
        """Removes the bar. Lines that were already printed remain."""
        if self._bar is not None:
            clear_status()

    def _series_text(self, run_left_s: float | None) -> str:
        """run_left_s: remaining time of the current run, which is more precise than the estimate made before the run."""
        assert self._series is not None
        text, bound, left_s = self._series
        if left_s is None:
            return text
        left_s = max(left_s - (_now_s() - self._series_since_s), run_left_s or 0.0)
        if left_s < LEAST_LEFT_S:
            return text  # the estimated time has passed, but the series continues
        return f"{text}, {bound} {show_wait(left_s)} left in all"


def _now_s() -> float:
    return monotonic_ns() / NS_PER_S


def _is_terminal() -> bool:
    return stderr().isatty() and os.environ.get("TERM") != "dumb"


def _bar() -> "Bar":
    from rich.console import Console

    from harness.run.bar import Bar

    return Bar(Console(file=stderr(), force_terminal=True, highlight=False))


class Pace:
    """Estimates the time of the remaining runs from the finished runs."""

    def __init__(self) -> None:
        self._beyond_s: list[float] = []

    def ended(self, took_s: float, planned_s: float = 0.0) -> None:
        """Stores the time of a run. planned_s: the part that was known before the run, for example from --duration."""
        # Only time beyond the plan counts, because the early end of one run does not shorten the remaining runs.
        self._beyond_s.append(max(0.0, took_s - planned_s))

    def left_s(self, planned_s: Iterable[float]) -> float | None:
        """Returns the remaining time; None before a run has ended. planned_s: planned time of each remaining run."""
        if not self._beyond_s:
            return None
        beyond_s = sum(self._beyond_s) / len(self._beyond_s)
        return sum(max(0.0, one_s + beyond_s) for one_s in planned_s)
