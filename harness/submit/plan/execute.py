"""`submit run`: the missing runs, one after another, each in processes of its own.

What was made is kept, so that an interruption costs one run at most.
"""

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness.core.child import start
from harness.core.config.run_config import to_plain
from harness.core.console import say
from harness.core.files import write_yaml
from harness.core.signals import Stopped, stoppable
from harness.errors import ConfigError, RunInvalid
from harness.submit.plan.attempts import ASKED, RUNS
from harness.submit.plan.matrix import (
    DONE,
    PERFORMANCE,
    SEARCH,
    PlannedRun,
    plan,
    problems,
    search,
    show_s,
    write_audits,
)
from harness.submit.plan.request import Request

_COMMAND = "harness.cli.main"
"""Module whose `main` makes a run."""

LOOK_EVERY_S = 0.5
STOP_LIMIT_S = 60.0
"""For a run that was told to stop, to save what it has."""


def execute(request: Request, work: Path, only: str | None = None) -> int:
    """All that is not done; returns the exit status: 0 once every run is done, 4 where one failed.

    only: the runs of this scenario.
    """
    if only is not None and only not in request.wanted_scenarios:
        raise ConfigError(f"--only {only}: choose from {', '.join(request.wanted_scenarios)}")
    write_audits(request, work)
    rows = _rows(request, work, only)
    found = list(problems(request, rows))
    if found:
        raise ConfigError("\n".join(found))
    done = sum(row.state == DONE for row in rows)
    say(f"{done} of {len(rows)} runs are done, {len(rows) - done} to make")
    scenarios = request.wanted_scenarios if only is None else (only,)
    with _alone(work, scenarios) as locks, stoppable() as stopping:
        try:
            with stopping.allowed():
                has_rate = only not in (None, "Server") or _rate_found(request, work, rows, locks)
            for number in range(len(rows)):
                rows = _rows(request, work, only)  # a new performance run makes its audits stale
                possible = has_rate or rows[number].scenario != "Server"
                if possible and _is_due(request, rows, rows[number]):
                    with stopping.allowed():
                        _run(
                            rows[number],
                            work,
                            locks,
                            f"{number + 1} of {len(rows)}",
                            _left_s(rows, number),
                        )
        except Stopped as e:
            say("stopped: `submit run` again goes on with what is missing")
            return e.exit_status
    left = [row for row in _rows(request, work, only) if row.state != DONE]
    for row in left:
        say(f"{row.name} {row.state}: {row.why}")
    return RunInvalid.exit_status if left else 0


@contextmanager
def _alone(work: Path, scenarios: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Descriptors of locks, one a scenario: two that make the same runs are in each other's way.

    With --only, scenarios may be run side by side by who knows that they do not disturb each other.
    """
    with ExitStack() as stack:
        files = []
        for scenario in scenarios:
            path = work / f"{scenario}.lock"
            try:
                files.append(stack.enter_context(path.open("wb")))
                fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{path} is taken: another `submit run` makes these runs, or one of a `submit run` "
                    "that was killed goes on: wait for its end"
                ) from None
            except OSError as e:
                what = f"{path} cannot be written: {e.strerror}"
                raise ConfigError(f"{what}: pass another --work") from e
        yield tuple(file.fileno() for file in files)


def _rows(request: Request, work: Path, only: str | None) -> list[PlannedRun]:
    return [row for row in plan(request, work) if only in (None, row.scenario)]


def _rate_found(
    request: Request, work: Path, rows: Sequence[PlannedRun], locks: tuple[int, ...]
) -> bool:
    """True, too, where no search is asked for; else it is made, unless an earlier one has found it."""
    row = search(request, work)
    if row is not None and row.state != DONE:
        _run(row, work, locks, "first", _left_s(rows, -1))
        row = search(request, work)
    if row is None or row.state == DONE:
        return True
    say(f"{row.name} found no rate, so Server is left out: see {work / RUNS / row.name}")
    return False


def _is_due(request: Request, rows: Sequence[PlannedRun], row: PlannedRun) -> bool:
    """Not done; an audit without a valid performance run has nothing to be compared with."""
    if row.state == DONE:
        return False
    main = next(r for r in rows if (r.scenario, r.kind) == (row.scenario, PERFORMANCE))
    if row.kind in request.audits and main.state != DONE:
        say(f"{row.name} is left out: {main.name} is {main.state}")
        return False
    return True


def _left_s(rows: Sequence[PlannedRun], number: int) -> float:
    """After the run of this number."""
    return sum(r.expected_s or 0.0 for r in rows[number + 1 :] if r.state != DONE)


def _run(row: PlannedRun, work: Path, locks: tuple[int, ...], which: str, after_s: float) -> None:
    """One attempt, in a folder of its own: earlier ones stay as they are."""
    folder = work / RUNS / row.name
    number = len(list(folder.glob(f"*-{ASKED}"))) + 1  # also of attempts that left no folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        asked = folder / f"{number}-{ASKED}"
        write_yaml(asked, to_plain(row.config))
        with (folder / f"attempt-{number}.log").open("wb") as log:
            words = ["--config", str(asked), "--out", str(folder / f"attempt-{number}")]
            words = [SEARCH, *words] if row.kind == SEARCH else words
            words += ["--quiet", "--no-metrics", *(["--no-report"] if row.config.no_report else [])]
            process = start(_COMMAND, words, fds=locks, log=log)  # lives on where we are killed
    except OSError as e:
        raise ConfigError(f"{folder} cannot be written: {e.strerror}: pass another --work") from e
    began_s = time.monotonic()
    with _Line(lambda: _told(row, which, time.monotonic() - began_s, after_s)) as line:
        status = _wait(process, line)
    told = "done" if status == 0 else f"exit status {status}: see {folder}/attempt-{number}.log"
    say(f"{which}: {row.name} {told}, {show_s(time.monotonic() - began_s)}")


def _wait(process: "subprocess.Popen[bytes]", line: "_Line") -> int:
    """Until it ends; when we are stopped, it is told to stop, too, and saves what it has."""
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_EVERY_S)
            line.show()
    except Stopped:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _told(row: PlannedRun, which: str, took_s: float, after_s: float) -> str:
    left_s = max(0.0, (row.expected_s or 0.0) - took_s) + after_s
    of = f" of {show_s(row.expected_s)}" if row.expected_s is not None else ""
    return f"{which}: {row.name} {show_s(took_s)}{of}, about {show_s(left_s)} left for all"


class _Line:
    """One line on a terminal that is written over and over; nothing elsewhere."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._on = sys.stderr.isatty()

    def __enter__(self) -> "_Line":
        self.show()
        return self

    def show(self) -> None:
        if self._on:
            sys.stderr.write(f"\r\x1b[K{self._text()}")
            sys.stderr.flush()

    def __exit__(self, *exc: object) -> None:
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
