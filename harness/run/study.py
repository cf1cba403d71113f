"""A study: many runs in one result folder, saved after each run, with a table at the end."""

import json
import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from harness.core import files
from harness.core.clock import utc_text
from harness.core.codes import CLIENT_BOUND, INTERRUPTED, MACHINE_DOUBTS, About, Kind, Reason, codes
from harness.core.config.run_config import RunConfig
from harness.core.console import say, show
from harness.core.shown.cells import write_rows
from harness.core.shown.private import own_command
from harness.core.signals import INTERRUPT_EXIT, Stopped, Stopping, stoppable
from harness.core.units import counted, show_wait
from harness.errors import ConfigError, HarnessError, RunInvalid, one_line, some_of
from harness.loadgen.scenario import Scenario, scenario_named
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.results import run_folder
from harness.results.outcome import Finished, Measure
from harness.results.seal import digests, signature
from harness.run.progress import Pace, Progress

Options = TypeVar("Options")


_LOAD_REASONS = codes(Kind.REASON, About.LOAD)
"""Reasons for INVALID runs whose load was too high or whose probe was too short."""


class Ended(Exception):
    """Raised if a run was stopped, or failed in a way that ends the study."""

    def __init__(self, exit_status: int, reason: str = "") -> None:
        """reason: why the study ended, for its file."""
        super().__init__(exit_status)
        self.exit_status = exit_status
        self.reason = reason


def unfit_options(config: RunConfig, verb: str, mlperf: str) -> Iterator[str]:
    """Yields a message for each option that does not apply to several runs. mlperf: the message for --mlperf."""
    if config.mlperf:
        yield mlperf
    if config.audit is not None:
        yield f"--audit makes one run, but {verb} makes several: drop it"
    if config.mode == "accuracy":
        yield f"{verb} needs performance runs: drop --mode accuracy"
    if config.metrics_linger_ns:
        yield f"--metrics-linger waits after one run, but {verb} makes several: drop it"
    if config.metrics_push is not None:
        yield f"--metrics-push keeps one run per workload, but {verb} makes several: drop it"


class Study(ABC, Generic[Options]):
    """One search, sweep, profile or set of repeats. A subclass decides which runs to make.

    `content` is written to `file` in `folder` after each run, so that a stopped study keeps
    its measurements.
    """

    file: ClassVar[str]
    """Name of the JSON file in the folder."""

    continuation: ClassVar[str] = ""
    """Advice on how to use the folder of a stopped study; {folder} is its path."""

    folder: Path
    """Current path of the results. The folder name ends in `.partial` until the study is complete."""

    def __init__(
        self, config: RunConfig, options: Options, measure: Measure, *, quiet: bool
    ) -> None:
        self._config = config
        self._options = options
        self._measure = measure
        self._quiet = quiet
        self._progress = Progress(quiet=quiet, noted=self._note_progress)
        self._pace = Pace()
        self._started = utc_text("milliseconds")
        self._begun_s = time.time()
        self._is_total_known = True
        self._ended_early: str | None = None
        self._is_final = False
        """Whether the folder has its final name although the study is in progress."""
        self._stopping = Stopping()
        self._begin()

    @cached_property
    def _scenario(self) -> Scenario:
        return scenario_named(self._config.scenario)

    @cached_property
    def _model(self) -> Model:
        return load_model(self._config.model)

    @abstractmethod
    def _begin(self) -> None:
        """Resolves the options and makes the folder."""

    @classmethod
    def execute(
        cls,
        config: RunConfig,
        options: Options,
        measure: Measure,
        *,
        as_json: bool = False,
        quiet: bool = False,
    ) -> int:
        """Makes the runs, prints the table (or JSON) and returns the exit status.

        A signal between two runs ends the next run, and the table is still printed.
        """
        study = cls(config, options, measure, quiet=quiet)
        with stoppable() as study._stopping:
            status = study.attempt()
            if study.folder.is_dir():
                study.show(as_json=as_json)
            else:
                say("stopped before anything was measured")
        return status

    def attempt(self) -> int:
        """Calls `run` and always seals the folder. Removes the folder if the call fails before anything was
        measured.
        """
        unlock = self._lock()
        try:
            self._open_seal()
            self._note_progress("starting", None)
            with keep_or_remove(lambda: self.folder, self.has_measured):
                return self.run()
        except (Ended, Stopped) as e:
            self._end_early(e.reason.text if isinstance(e, Stopped) else e.reason)
            if e.exit_status >= INTERRUPT_EXIT and self.continuation and self.folder.exists():
                say(f"stopped: {self.continuation.format(folder=self.folder)}")
            return e.exit_status
        except HarnessError as e:
            self._end_early(one_line(e))
            if self.folder.is_dir() and str(self.folder) not in str(e):
                say(f"{self.folder} contains what was measured before the error")
            raise
        finally:
            with suppress(OSError):
                (self.folder / run_folder.PROGRESS).unlink()
            self._seal()
            unlock()

    def _note_progress(self, text: str, left_s: float | None) -> None:
        begun_s = self._begun_s if self._is_total_known else None
        run_folder.note_progress(self.folder, text, begun_s, left_s)

    def _end_early(self, reason: str) -> None:
        """Adds the reason why the study ended before it was complete to its file, if it has one."""
        self._ended_early = reason or None
        if reason and (self.folder / self.file).is_file():
            with suppress(OSError):  # for example, the full disk that ended the study
                self._save()

    def _open_seal(self) -> None:
        """Removes the seal of a continued study. First prints the files that changed after sealing, because a new seal
        would hide the changes.
        """
        if (self.folder / digests.SEAL).is_file():
            say(some_of(list(digests.differences(self.folder))))
            digests.remove(self.folder)

    def _seal(self) -> None:
        """Seals the folder with the runs in it, and signs the seal if --sign is set."""
        if not self.folder.is_dir():
            return
        try:
            digests.write(self.folder)
        except OSError as e:
            say(f"{self.folder} has no {digests.SEAL}, which cannot be written ({e.strerror})")
            return
        if self._config.sign is not None:
            say(signature.sign(self.folder, self._config.sign))

    @abstractmethod
    def run(self) -> int:
        """Makes the runs and returns the exit status."""

    @abstractmethod
    def content(self) -> Mapping[str, Any]:
        """Returns the content of `file`."""

    def to_json(self) -> Mapping[str, Any]:
        """Returns the output of --json."""
        return self.content()

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """Returns the lines of the table."""

    def has_measured(self) -> bool:
        """Returns whether the folder is kept after an error."""
        return any(self.folder.glob("*/*"))

    def show(self, *, as_json: bool) -> None:
        show_result(self.to_json, self.lines, as_json=as_json)

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def make_run(
        self,
        config: RunConfig,
        text: str,
        planned_s: Sequence[float],
        bound: str | None = "about",
        *,
        is_total_known: bool = True,
        **how: Any,
    ) -> Finished:
        """Makes one of several runs, and shows its progress and the progress of the study.

        text: number of the run, and total number of runs. planned_s: known time of this run and of each later run, 0 if
        unknown. bound: `at most` if the study may end before all runs are made; None if the time left is unknown.
        is_total_known: False if more runs may follow. how: keyword arguments for `measure`.
        """
        self._is_total_known = is_total_known
        left_s = self._pace.left_s(planned_s) if bound is not None else None
        self._progress.series(text, left_s, bound or "about")
        begun_s = time.monotonic()
        finished = self._measure(config, progress=self._progress, **how)
        self._note_progress(f"{text}{run_folder.RUN_ENDED}", None)
        self._pace.ended(time.monotonic() - begun_s, planned_s[0])
        return finished

    def time_left(self, planned_s: Sequence[float], bound: str = "about") -> str:
        """Returns the last part of the line printed after a run: the time left for the remaining runs, or '' after the
        last run.
        """
        left_s = self._pace.left_s(planned_s) if planned_s else None
        return "" if left_s is None else f"; {bound} {show_wait(left_s)} left"

    def _save(self) -> None:
        content = self.content()
        if (command := own_command(Path(self.file).stem)) is not None:
            content = {"command": command, **content}
        if self._ended_early is not None:
            content = {**content, "ended_early": self._ended_early}
        files.write_json(self.folder / self.file, content)

    def _new_folder(self, *words: str) -> run_folder.ResultFolder:
        """Makes --out, or a folder named after `words`: scenario, backend and model."""
        new = run_folder.new_folder(self._config.out, *words)
        self.folder = new.path
        return new

    def _open_folder(self, *words: str) -> bool:
        """Returns whether --out contains an earlier study; if not, makes a folder.

        The new folder immediately has its final name, because runs can be added at any time. Its lock and the file of
        progress show that the study is in progress.
        """
        out = self._config.out
        self._is_final = True
        if out is not None and (out / self.file).is_file():
            self.folder = out
            return True
        self.folder = self._new_folder(*words).finish(newest=False)
        return False

    def _lock(self) -> Callable[[], object]:
        """Locks a folder that has its final name. Returns the function that unlocks it.

        Raises ConfigError if another process uses the folder.
        """
        if not self._is_final:  # a ResultFolder holds its own lock
            return lambda: None
        if run_folder.is_in_progress(self.folder.resolve()):  # --out may be a link
            raise ConfigError(
                f"{self.folder}: another process still adds runs to this folder: wait until it ends, or pass a different "
                "--out"
            )
        return run_folder.locked(self, self.folder)

    def _check_same(self, noun: str, ours: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """Raises ConfigError if the folder contains a study with different options."""
        differ = sorted(k for k in {**ours, **stored} if ours.get(k) != stored.get(k))
        if differ:
            names = ", ".join(differ)
            raise ConfigError(
                f"{self.folder} is a {noun} with a different {names}: pass a different --out"
            )

    def _check_answered(self, finished: Finished, consequence: str) -> None:
        """Raises Ended if the run was stopped, or failed for a reason other than its load."""
        other = other_reason(finished.result)
        if other is None:
            return
        reason = f"{other.code}: {other.text}"
        if other.code != INTERRUPTED:
            say(f"{finished.folder}: {consequence}: {reason}")
        raise Ended(finished.status or RunInvalid.exit_status, reason)


@contextmanager
def keep_or_remove(folder: Callable[[], Path], has_measured: Callable[[], bool]) -> Iterator[None]:
    """Removes `folder` after an error, unless something was measured or a run left a traceback."""
    try:
        yield
    except OSError as e:
        why = f"{folder()} cannot be written ({e.strerror}): pass a different --out"
        raise RunInvalid(why) from e
    except BaseException as e:
        of_use = not isinstance(e, ConfigError) and any(folder().glob("*/*"))
        if not (has_measured() or of_use):
            shutil.rmtree(folder(), ignore_errors=True)
        raise


def other_reason(result: Mapping[str, Any]) -> Reason | None:
    """Returns the first reason in result.json that does not concern the load."""
    others = (Reason.stored(r) for r in result["reasons"] if r["code"] not in _LOAD_REASONS)
    return next(others, None)


def is_client_bound(result: Mapping[str, Any]) -> bool:
    """Returns whether the client limited the run. Such a run says nothing about the system under this load, and runs at
    other loads may succeed.
    """
    other = other_reason(result)
    return other is not None and other.code == CLIENT_BOUND


def show_result(
    content: Callable[[], Mapping[str, Any]], lines: Callable[[], Iterable[str]], *, as_json: bool
) -> None:
    """Prints the output of --json, or the table."""
    text = json.dumps(content(), indent=2, allow_nan=False) if as_json else "\n".join(lines())
    show(text)


def doubt_lines(runs: Sequence[Mapping[str, Any]], indent: str) -> Iterator[str]:
    """Yields one line per doubt of `other_doubts`, with the number of runs that raised it."""
    for code, count in other_doubts(runs).items():
        yield f"{indent}{code} in {count} of {len(runs)} runs"


def other_doubts(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Maps each doubt that `machine_text` does not name to the number of runs that raised it."""
    named = _named(runs)
    counts = Counter(code for run in runs for code in set(run["doubts"]) - named)
    return dict(sorted(counts.items()))


def shared_doubts(runs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Returns the doubts that all runs share, which a table shows once, below its rows; empty for one run."""
    common = [set(run["doubts"]) for run in runs] if len(runs) > 1 else [set()]
    return sorted(set.intersection(*common))


def verdict_text(run: Mapping[str, Any], shared: Sequence[str], mark: str = "") -> str:
    """Returns the verdict with its reasons, a mark, and the doubts that are not shared."""
    doubts = " ".join(code for code in run["doubts"] if code not in shared)
    text = " ".join([run["verdict"], *run["reasons"]]) + mark
    return f"{text}  doubts: {doubts}" if doubts else text


def shared_lines(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line with the doubts that all runs share, without those that `machine_text` names."""
    named = _named(runs)
    if codes := [code for code in shared_doubts(runs) if code not in named]:
        yield f"{'doubt':<12}{' '.join(codes)} in all {len(runs)} runs"


NOT_AT_REST = "not at rest"


def machine_text(
    runs: Sequence[Mapping[str, Any]], subject: str = NOT_AT_REST, unit: str = "run"
) -> str:
    """Returns a text that states how many runs raised machine doubts, and which doubts; '' if no run raised any.

    runs: each contains `verdict` and `doubts`, a sequence of codes. Every run drifts if the load is too high, so
    `drift` and `warming` count only in VALID runs. subject: beginning of the sentence; the default follows the label
    `machine`. unit: name of one run.
    """
    doubted = sum(map(bool, map(_machine_doubts, runs)))
    if not doubted:
        return ""
    where = f" in {doubted} of {counted(len(runs), unit)}" if len(runs) > 1 else ""
    return f"{subject}{where} ({', '.join(sorted(_named(runs)))})"


def _named(runs: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Returns the doubts that `machine_text` names."""
    return frozenset().union(*map(_machine_doubts, runs))


def _machine_doubts(run: Mapping[str, Any]) -> frozenset[str]:
    doubts = MACHINE_DOUBTS & set(run["doubts"])
    return doubts if run["verdict"] == "VALID" else doubts - {"drift", "warming"}


def write_page(write: Callable[..., object], *arguments: object) -> None:
    """Calls `write`. After an error, prints one line with the reason why the page is missing."""
    try:
        write(*arguments)
    except HarnessError as e:
        say(f"no page was written: {e}")


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a CSV file. The words of a tuple are joined by spaces."""
    with path.open("w", encoding="utf-8", newline="") as file:
        joined = ([" ".join(c) if isinstance(c, tuple) else c for c in row] for row in rows)
        write_rows(file, heads, joined)
