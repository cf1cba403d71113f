"""Executes `submit run`, which makes the missing runs one after another, each in separate processes.

Finished runs are kept, so an interruption costs at most one run.
"""

import fcntl
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from harness.core.child import start, wait
from harness.core.config import code
from harness.core.config.run_config import to_plain
from harness.core.console import program, say
from harness.core.formats.strict_yaml import write_yaml
from harness.core.signals import Stopped, stoppable
from harness.core.units import counted
from harness.errors import ConfigError, HarnessError, RunInvalid, one_line, refuse
from harness.run.progress import Progress
from harness.submit.plan import data_size, matrix
from harness.submit.plan.attempts import ASKED, RUNS, newest_log, next_number
from harness.submit.plan.matrix import DONE, SEARCH, UNSCORED, PlannedRun
from harness.submit.plan.request import Request

if TYPE_CHECKING:
    import subprocess

_ERROR = re.compile(r"^(?:harness: |  reason  )(.+)$", re.MULTILINE)
"""Matches an error in a run's log: either a message, or a reason why the run is INVALID. After a crash (status 1), the
error is the last line of the log.
"""

_READ_BYTES = 1 << 16

_COMMAND = "harness.cli.main"
"""Module whose `main` executes a single run."""


def execute(request: Request, work: Path, only: str | None = None, *, quiet: bool = False) -> int:
    """Makes all missing runs, or only the runs of scenario `only`. Returns 0 if every run is done, otherwise 4.

    quiet: whether to print only the runs that are not done.
    """
    if only is not None and only not in request.chosen_scenarios:
        raise ConfigError(f"--only {only}: choose from {', '.join(request.chosen_scenarios)}")
    matrix.write_audits(request, work)
    rows = _rows(request, work, only)
    refuse(matrix.problems(request, rows))
    refuse(data_size.problems(request, rows))
    done = sum(row.state == DONE for row in rows)
    if not quiet:
        say(f"{done} of {len(rows)} runs are done, {len(rows) - done} remain")
        say("\n".join(matrix.notes(request)))
    scenarios = request.chosen_scenarios if only is None else (only,)
    with _alone(work, scenarios) as locks, stoppable() as stopping:
        try:
            with stopping.allowed():
                has_rate = only not in (None, "Server") or _has_rate(
                    request, work, rows, locks, quiet=quiet
                )
                for number in range(len(rows)):
                    # The rows are read again after each run, because a new performance run makes earlier audits stale.
                    rows = _rows(request, work, only)
                    possible = has_rate or rows[number].scenario != "Server"
                    if possible and _is_due(rows, rows[number]):
                        which = f"{number + 1} of {len(rows)}"
                        left_s = _left_s(rows, number)
                        _make(request, rows[number], work, locks, which, left_s, quiet=quiet)
        except Stopped as e:
            say("stopped: repeat `submit run` to complete the remaining runs")
            return e.exit_status
    rows = _rows(request, work, only)
    for row in rows:
        if row.why or row.state != DONE:
            say(f"{row.name} {row.state}: {row.why or _place_of_cause(work, row)}")
    if not quiet:
        say(_outcome(matrix.plan(request, work), work))
    return 0 if all(row.state == DONE for row in rows) else RunInvalid.exit_status


def _outcome(rows: Sequence[PlannedRun], work: Path) -> str:
    """Returns how many runs of the whole plan are done, and the next command."""
    done = sum(row.state == DONE for row in rows)
    verb = "pack" if done == len(rows) else "run"
    command = f"{program()} submit {verb} --work {quote(str(work))}"
    return f"{done} of {counted(len(rows), 'run')} done; next: {command}"


def _place_of_cause(work: Path, row: PlannedRun) -> str:
    log = newest_log(work, row.name)
    return "it was not started" if log is None else f"see {log}"


@contextmanager
def _alone(work: Path, scenarios: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Locks the scenarios, and yields the locks' file descriptors. Several `submit run --only` commands may run at the
    same time.
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
                    f"{path} is locked by another `submit run`, or by a run that a killed `submit run` started: "
                    "wait until it ends"
                ) from None
            except OSError as e:
                raise ConfigError(
                    f"{path} cannot be written ({e.strerror}): pass a different --work"
                ) from e
        yield tuple(file.fileno() for file in files)


def _rows(request: Request, work: Path, only: str | None) -> list[PlannedRun]:
    return [row for row in matrix.plan(request, work) if only in (None, row.scenario)]


def _has_rate(
    request: Request,
    work: Path,
    rows: Sequence[PlannedRun],
    locks: tuple[int, ...],
    *,
    quiet: bool,
) -> bool:
    """Searches for Server's rate, unless a search has finished or the request does not need a rate. Returns False if
    the search failed.
    """
    row = matrix.search(request, work)
    if row is not None and row.state != DONE:
        _make(request, row, work, locks, "first", _left_s(rows, -1), quiet=quiet)
        row = matrix.search(request, work)
    if row is None or row.state == DONE:
        return True
    say(f"{row.name} found no rate, so Server is skipped: see {work / RUNS / row.name}")
    return False


def _is_due(rows: Sequence[PlannedRun], row: PlannedRun) -> bool:
    """Returns whether a run is due: it is not done, and it does not wait for an unfinished performance run."""
    main, *others = (r for r in rows if r.scenario == row.scenario)
    left = [r for r in others if r.state != DONE]
    if row not in left or main.state == DONE:
        return row.state != DONE
    if row == left[0]:  # because one line is printed for all remaining runs
        names = " and ".join(filter(None, [", ".join(r.name for r in left[:-1]), left[-1].name]))
        say(f"{names} {'is' if len(left) == 1 else 'are'} skipped: {main.name} is {main.state}")
    return False


def _left_s(rows: Sequence[PlannedRun], number: int) -> float:
    return sum(r.expected_s or 0.0 for r in rows[number + 1 :] if r.state != DONE)


def _make(
    request: Request,
    row: PlannedRun,
    work: Path,
    locks: tuple[int, ...],
    which: str,
    after_s: float,
    *,
    quiet: bool,
) -> None:
    """Makes a run, or rescores a run that has no score yet, and prints the outcome.

    Raises a ConfigError if a run refuses its settings, because all other runs share these settings.
    """
    is_scored = row.state == UNSCORED
    if is_scored and not quiet:
        say(f"{row.name} already has its answers, which are now scored again")
    process, log = (_scoring if is_scored else _attempt)(row, work, locks)
    began_s = time.monotonic()
    with Progress(quiet=quiet) as progress:
        left_s = None if row.expected_s is None else row.expected_s + after_s
        progress.series(f"run {which}: {row.name}", left_s)
        status = wait(process, lambda took_s: _show(progress, row, took_s))
    if status == RunInvalid.exit_status and matrix.counts(row, request, work):
        # The run is INVALID only because it is too short, which is allowed for an audit of the answers.
        status = 0
    outcome = "done"
    if status:
        cause = _last_error(log, status).partition(f" ({log.parent}/")[0]
        if status == ConfigError.exit_status and cause and not is_scored:
            raise ConfigError(f"{row.name}: {cause}: see {log}")
        place = "" if ": see " in cause else f"see {log}"
        outcome = ": ".join(filter(None, [f"exit status {status}", cause, place]))
    if status or not quiet:
        say(f"{which}: {row.name} {outcome}, {matrix.show_s(time.monotonic() - began_s)}")


def _attempt(
    row: PlannedRun, work: Path, locks: tuple[int, ...]
) -> "tuple[subprocess.Popen[bytes], Path]":
    """Starts an attempt in a new folder, so that the files of earlier attempts are kept. Returns the process and the
    path to its log.
    """
    folder = work / RUNS / row.name
    number = next_number(work, row.name)
    log = folder / f"attempt-{number}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / f"{number}-{ASKED}"
        write_yaml(settings, to_plain(row.config))
        words = ["--config", str(settings), "--out", str(folder / f"attempt-{number}")]
        # The code is trusted, because the request names it.
        words += code.trust_options(code.values_of(row.config))
        words = [SEARCH, *words] if row.kind == SEARCH else words
        words += ["--quiet", "--no-metrics", *(["--no-report"] if row.config.no_report else [])]
        return _started(words, log, locks), log
    except OSError as e:
        raise ConfigError(
            f"{folder} cannot be written ({e.strerror}): pass a different --work"
        ) from e


def _scoring(
    row: PlannedRun, work: Path, locks: tuple[int, ...]
) -> "tuple[subprocess.Popen[bytes], Path]":
    """Starts a process that scores the newest attempt's answers. Returns the process and the path to the attempt's log."""
    assert row.folder is not None
    log = work / RUNS / row.name / f"{row.folder.name}.log"
    words = ["score", str(row.folder), *code.trust_options(code.values_of(row.config))]
    try:
        return _started(words, log, locks), log
    except OSError as e:
        raise ConfigError(f"{log} cannot be written ({e.strerror}): pass a different --work") from e


def _started(words: Sequence[str], log: Path, locks: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    """Starts a command that appends to the log. The command holds the locks even if this process is killed."""
    with log.open("ab") as file:
        return start(_COMMAND, words, fds=locks, log=file)


def _last_error(log: Path, status: int) -> str:
    """Returns the last error in a run's log as one line; '' if the log contains no error."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:  # another process moved the work folder
        return ""
    found = text.splitlines() if status == HarnessError.exit_status else _ERROR.findall(text)
    return one_line(next(filter(str.strip, reversed(found)), ""))


def _show(progress: Progress, row: PlannedRun, took_s: float) -> None:
    """Shows how long a run in a separate process has been running."""
    share = None if not row.expected_s else min(1.0, took_s / row.expected_s)
    of = "" if row.expected_s is None else f" of about {matrix.show_s(row.expected_s)}"
    progress.show("running", share=share, details=[f"{matrix.show_s(took_s)}{of}"])
