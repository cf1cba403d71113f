"""Measures the parts of `cold` one after the other, and adds the results to the content of cold.json."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from harness.core.console import say
from harness.core.units import counted
from harness.errors import HarnessError, one_line
from harness.explain.cold.benefit import measure as benefit
from harness.explain.cold.formats import starts as formats
from harness.explain.cold.options import ColdOptions
from harness.explain.cold.sharing import measure as sharing
from harness.explain.cold.sharing import ways
from harness.explain.cold.subject import Subject
from harness.explain.cold.trials import turns
from harness.explain.cold.trials.turns import Start, Trials
from harness.results import run_folder
from harness.run.progress import Progress

AS_IT_IS = "as it is"
"""Name of the start that loads the model's file on the requested backend."""

_SHARING_ROUNDS = 3
"""Sharing is measured in this many rounds. Few rounds suffice, because memory hardly differs between rounds. Each round
needs two starts.
"""


class Job(NamedTuple):
    """A measurement of cold starts.

    made: folder for files in other formats, on the file system of the results. save: stores the content.
    """

    options: ColdOptions
    subject: Subject
    content: dict[str, Any]
    made: Path
    log: Path
    save: Callable[[], None]


class Counter:
    """Shows how many steps of a part are done, and the remaining time. Every round has the same steps."""

    def __init__(self, name: str, rounds: int, steps: int, job: Job, *, hint: str = "") -> None:
        """steps: number of steps in a round. hint: advice on how to shorten the part."""
        quiet = job.options.quiet
        self.progress = Progress(quiet=quiet)
        self._folder, self._started_s = job.log.parent, time.time()
        self._name, self._steps, self._count = name, steps, rounds * steps
        self._took_s: list[float] = []
        self._begun_s = time.monotonic()
        if not quiet:
            each = f"{counted(rounds, 'round')} of {counted(steps, 'step')}"
            say(f"cold: {name}: {each}{hint}")

    def ended(self) -> None:
        now_s = time.monotonic()
        self._took_s.append(now_s - self._begun_s)
        self._begun_s, done = now_s, len(self._took_s)
        left_s = sum(remaining_s(self._took_s, self._count, self._steps))
        self.progress.show(self._name, share=done / self._count, left_s=left_s)
        text = f"{self._name}: step {min(done + 1, self._count)} of {self._count}, about"
        run_folder.note_progress(self._folder, text, self._started_s, left_s)


def remaining_s(took_s: Sequence[float], count: int, steps: int) -> list[float]:
    """Estimates the time of each remaining step. Expects a step to take as long as the same step in the previous round,
    because formats differ by a factor of ten. In the first round, expects the mean time of the finished steps.

    took_s: time of each finished step. count: number of all steps. steps: number of steps in a round.
    """
    mean_s, times_s = fmean(took_s), [*took_s]
    for step in range(len(took_s), count):
        times_s.append(times_s[step - steps] if step >= steps else mean_s)
    return times_s[len(took_s) :]


def measure(job: Job) -> None:
    """Fills in `starts`, `absent`, `sharing` and `benefit`."""
    subject, options = job.subject, job.options
    starts = [Start(AS_IT_IS, subject.config, subject.path, is_required=True)]
    if "formats" not in options.skip:
        starts += _converted(job)
    trials = Trials(subject.model, subject.dataset, subject.threads, options.runs, job.log)
    _measure_starts(job, starts, trials)
    if "sharing" not in options.skip:
        _measure_sharing(job, starts, trials)
    if "benefit" not in options.skip:
        _measure_benefit(job)


def _converted(job: Job) -> list[Start]:
    if not job.options.quiet:
        say("cold: converting the model to other formats")
    found = formats.find(job.subject.config, job.subject.model, job.made, job.log)
    absent = [one for one in found if not isinstance(one, Start)]
    job.content["absent"] = [turns.empty_row(*one) for one in absent]
    return [one for one in found if isinstance(one, Start)]


def _measure_starts(job: Job, starts: Sequence[Start], trials: Trials) -> None:
    rows = job.content["starts"] = [turns.new_row(start) for start in starts]
    others = len(starts) - 1
    hint = f"; --skip formats leaves out {counted(others, 'other format')}" if others else ""
    counter = Counter("starts", job.options.trials, 2 * len(starts), job, hint=hint)

    def ended() -> None:
        job.save()
        counter.ended()

    with counter.progress:
        for _ in range(job.options.trials):
            turns.one_round(starts, rows, trials, ended)


def _measure_benefit(job: Job) -> None:
    """Adds the benefit of sharing. Also adds the rate at which the cold trials read the file from the disk."""
    content = job.content
    try:
        found = benefit.benefit(job.subject.path, job.made)
    except (HarnessError, OSError) as e:
        content["benefit"] = {"failed": one_line(e)}
        return
    row = content["starts"][0]
    reads_ns = [trial["read_ns"] for trial in row[turns.COLD]]
    if reads_ns:
        found["disk_bytes_per_s"] = row["size_bytes"] / median(reads_ns) * 1e9
    content["benefit"] = found
    job.save()


def _measure_sharing(job: Job, starts: Sequence[Start], trials: Trials) -> None:
    """Measures every way to share on every backend for which a file of the model exists."""
    by_backend: dict[str, Start] = {}
    for start, row in zip(starts, job.content["starts"], strict=True):
        if row["failed"] is None:
            by_backend.setdefault(start.config.backend, start)
    ir = next((start.path for start in starts if start.name == formats.IR), None)
    wanted = list(ways.pairs(by_backend))
    pairs, rows, absent = sharing.planned(wanted, by_backend, ir, trials, job.made)
    rounds = min(job.options.trials, _SHARING_ROUNDS)
    counter = Counter("sharing", rounds, len(pairs), job)
    job.content["sharing"] = [*rows, *absent]
    with counter.progress:
        for _ in range(rounds):
            for pair, row in zip(pairs, rows, strict=True):
                sharing.one_round(pair, row, trials)
                job.save()
                counter.ended()
    sharing.compare_all(pairs, rows, ways.INSTANCES)
    job.save()
