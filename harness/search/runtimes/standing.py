"""Ranks a model's cells by their alternating runs. Finds the leading cell, the cells that cannot win, and whether the
order is final.

Runs are judged as in `compare`: one number decides, and the noise between runs is considered.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.core.config.run_config import RunConfig
from harness.core.registry import short_name
from harness.results.compare.change_text import factors
from harness.results.compare.compare import UNDECIDED, WORSE, Deciding, deciding, headline_name
from harness.results.compare.finished import FinishedRun
from harness.results.evidence.between_runs import over_runs
from harness.results.numbers import Number
from harness.search.grid.cells.cells import Cell
from harness.search.runtimes.answers import Compared

LEAST_ROUNDS = 3
"""The two best cells get at least this many rounds, if time permits, because fewer rounds do not give an interval over
rounds.
"""


@dataclass(slots=True)
class Entry:
    """A cell and everything known about it."""

    cell: Cell
    config: RunConfig | None = None
    """Configuration for the cell's runs; None until the cell is prepared."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The backend's description of itself."""
    sample_ns: float | None = None
    """Time per sample when the answers were collected for comparison; None if unknown."""
    answers: Compared | None = None
    """Comparison with the first cell's answers; None for the first cell, or if the cell has no answers."""
    runs: dict[int, FinishedRun] = field(default_factory=dict)
    """VALID runs by round."""
    doubts: list[list[str]] = field(default_factory=list)
    """Codes of each run's doubts."""
    took_s: float = 0.0
    """Duration of the last run, including its start-up."""
    absent: str = ""
    """Reason why the cell could not run at all; empty if it could."""
    failed: str = ""
    """Reason why one of the cell's runs failed; empty if every run succeeded. After a failure, the cell is not run
    again.
    """
    dropped: str = ""
    """Reason why the cell is not run again although every run succeeded."""

    @property
    def differs(self) -> str:
        """Reason why the cell's answers do not count as equal; '' if they do."""
        return self.answers.differs if self.answers is not None else ""

    @property
    def is_running(self) -> bool:
        return not (self.absent or self.failed or self.dropped)

    @property
    def is_ranked(self) -> bool:
        return bool(self.runs) and not (self.absent or self.failed or self.differs)

    @property
    def why_not(self) -> str:
        """Reason why the cell is not ranked; '' if it is."""
        if self.is_ranked:
            return ""
        return self.absent or self.failed or self.differs or self.dropped or "no run was made"

    def mean(self, name: str) -> float | None:
        """Returns a number's geometric mean over the rounds; None if a run lacks the number."""
        values = [run.numbers[name].value for run in self.runs.values() if name in run.numbers]
        over = over_runs(values) if len(values) == len(self.runs) else None
        return over[0] if over else None


class Interval(NamedTuple):
    mean: float
    low: float | None
    high: float | None
    of_rounds: bool
    """Whether the interval is computed over rounds; otherwise, it is computed from the intervals within the runs."""


def interval_of(numbers: Sequence[Number]) -> Interval | None:
    """Returns the mean over the runs with its interval; None if `numbers` is empty or if any number is 0 or negative."""
    over = over_runs([number.value for number in numbers])
    if over is None:
        return None
    mean, ends = over
    if ends is not None:
        return Interval(mean, *ends, of_rounds=True)
    low, high = (_within(numbers, sign) for sign in (-1, 1))
    return Interval(
        mean,
        None if low is None else mean * math.exp(low),
        None if high is None else mean * math.exp(high),
        of_rounds=False,
    )


def _within(numbers: Sequence[Number], sign: int) -> float | None:
    """Returns the distance, in logarithms, from the mean over runs to one end of its interval. sign: 1 for the upper
    end.

    Distances of independent runs combine like standard errors.
    """
    distances = []
    for number in numbers:
        end = number.high if sign > 0 else number.low
        if end is None or end <= 0 or math.isinf(end):
            return None
        distances.append(math.log(end / number.value))
    return sign * math.hypot(*distances) / len(distances)


def decides(entries: Sequence[Entry]) -> str | None:
    """Returns the name of the deciding number; None before the first run."""
    runs = (run for entry in entries for run in entry.runs.values())
    first = next(runs, None)
    return headline_name(first) if first is not None else None


def against(one: Entry, other: Entry) -> Deciding | None:
    """Returns the change in the deciding number from one cell to the other, over the rounds that both cells ran; None
    if no such round exists.
    """
    common = sorted(one.runs.keys() & other.runs.keys())
    if not common:
        return None
    return deciding([one.runs[n] for n in common], [other.runs[n] for n in common])


def best_of(entries: Sequence[Entry]) -> Entry | None:
    """Returns the cell with the best mean among the ranked cells with the most rounds."""
    ranked = [entry for entry in entries if entry.is_ranked]
    most = max((len(entry.runs) for entry in ranked), default=0)
    name = decides(ranked)
    full = [e for e in ranked if len(e.runs) == most and name and e.mean(name) is not None]
    if not full or name is None:
        return None
    number = next(iter(full[0].runs.values())).numbers[name]
    chosen = max if number.higher_is_better else min
    return chosen(full, key=lambda entry: entry.mean(name) or 0.0)


def others_of(entries: Sequence[Entry], best: Entry) -> list[tuple[Entry, Deciding]]:
    """Returns the remaining ranked cells, each compared with the best cell.

    Cells that are not significantly slower come first. Within each group, the cells closest to the best cell come
    first.
    """
    found = [
        (entry, over)
        for entry in entries
        if entry is not best and entry.is_ranked and (over := against(best, entry)) is not None
    ]
    found.sort(key=lambda pair: (pair[1].change.verdict == WORSE, -factors(pair[1].change)[0]))
    return found


def drop(entries: Sequence[Entry], label: Mapping[Cell, str]) -> None:
    """Drops cells that cannot be the fastest, because their answers differ or because they are significantly slower
    than the best cell.

    The two best cells continue for at least LEAST_ROUNDS rounds. label: names of the cells.
    """
    for entry in entries:
        if entry.is_running and entry.runs and entry.differs:
            entry.dropped = entry.differs
    best = best_of(entries)
    if best is None:
        return
    others = [(entry, over) for entry, over in others_of(entries, best) if entry.is_running]
    kept = 1 if len(best.runs) < LEAST_ROUNDS else 0
    for entry, over in others[kept:]:
        if over.change.verdict == WORSE:
            entry.dropped = f"significantly slower than {label[best.cell]}"


def is_decided(entries: Sequence[Entry]) -> bool:
    """Returns whether the order of the cells is final.

    The order is final if every other cell is either significantly slower than the best cell or shown to be as fast.
    """
    best = best_of(entries)
    if best is None or len(best.runs) < LEAST_ROUNDS:
        return False
    others = (over for entry, over in others_of(entries, best) if entry.is_running)
    return all(over.change.verdict != UNDECIDED for over in others)


def ahead(entries: Sequence[Entry], label: Mapping[Cell, str]) -> dict[str, Any] | None:
    """Returns the best cell, its lead over the next cell, and how certain the lead is; None if no cell is ranked.

    next: the closest cell that is not significantly slower or, if no such cell exists, the closest cell; None if only
    one cell is ranked. alike: all cells that are not significantly slower than the best cell.
    """
    best = best_of(entries)
    if best is None:
        return None
    others = others_of(entries, best)
    alike = [label[entry.cell] for entry, over in others if over.change.verdict != WORSE]
    found = {"best": label[best.cell], "next": None, "alike": alike, "number": decides([best])}
    if not others:
        return found
    second = others[0][0]
    over = against(second, best)
    assert over is not None
    ratio, low, high = factors(over.change)
    return {
        **found,
        "next": label[second.cell],
        "ratio": ratio,
        "low": low,
        "high": high,
        "verdict": over.change.verdict,
        "rounds": len(best.runs.keys() & second.runs.keys()),
        "runs_needed": over.runs_needed,
    }


def running(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.is_running]


def labels(cells: Sequence[Cell]) -> Mapping[Cell, str]:
    """Returns a name for each of a model's cells, composed of the backend and the properties in which that backend's
    cells differ.
    """
    precisions = len({(cell.backend, cell.precision) for cell in cells})
    threads = len({(cell.backend, cell.threads) for cell in cells})
    backends = len({cell.backend for cell in cells})
    return {
        cell: " ".join(_words(cell, precisions > backends, threads > backends)) for cell in cells
    }


def _words(cell: Cell, precisions: bool, threads: bool) -> Iterator[str]:
    yield short_name(cell.backend)
    if precisions:
        yield cell.precision
    if threads:
        yield f"threads {cell.threads}"
