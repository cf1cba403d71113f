"""Finds the runs and studies below a folder. Skips folders that have not changed since they were last read."""

import hashlib
import json
import math
import os
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness import __version__
from harness.browse import within
from harness.browse.snapshots import newest
from harness.core import files
from harness.core.config.parse import parse_slos
from harness.core.files import PARTIAL, reading
from harness.core.units import NS_PER_S
from harness.errors import ConfigError, HarnessError, one_line
from harness.explain.advise import job as advise
from harness.explain.bricks import job as bricks
from harness.explain.cold import job as cold
from harness.explain.machine import job as machine
from harness.explain.pitfalls import job as pitfalls
from harness.explain.profile.tables.folder import PROFILE
from harness.loadgen.scenario import scenario_named
from harness.results import database, run_files, run_folder
from harness.results.answer import headline_in_short
from harness.results.seal import digests
from harness.search.grid.cells.cells import GRID
from harness.search.sweep.job import SWEEP
from harness.search.tune.job import TUNE

STUDIES: Mapping[str, str] = {
    run_folder.PEAK: "peak",
    SWEEP: "sweep",
    GRID: "grid",
    TUNE: "tune",
    run_folder.REPEATS: "repeats",
    run_folder.TURNS: "rerun",
    run_folder.OVERHEAD: "overhead",
    run_folder.WORKERS: "workers",
    run_folder.RUNTIMES: "runtimes",
    PROFILE: "profile",
    machine.REPORT.file: "machine",
    cold.REPORT.file: "cold",
    advise.DERIVED: "advise",
    bricks.REPORT.file: "bricks",
    pitfalls.JSON: "pitfalls",
}
"""Maps the file that marks a folder to the verb that wrote the file, for verbs that make many runs or measurements.
`workers` and `runtimes` are also sweeps.
"""

DEEPEST = 5
"""Runs with more than this many folders between them and the root are not found."""

MOST_ENTRIES = 100_000
WORTH_STORING = 500
"""The cache is written only after at least this many folders were newly read."""

_VERSION = [12, __version__]
"""Version of the cache's content. A cache with a different version is ignored."""

LASTS_S = 1.0
"""Requests within this time share one reading of the folder."""

_OF_A_RUN = frozenset(
    (run_folder.CONFIG, run_folder.ENVIRONMENT, "findings.json", "performance", "accuracy")
)
"""File names that mark a run's folder, even if result.json is missing."""

_TEXTS = ("started", "scenario", "backend", "model", "dataset", "mode", "verdict", "reasons")
_MAYBE_TEXTS = (
    "headline_unit",
    "harness_commit",
    "host",
    "metric",
    "accuracy_unit",
    "energy_source",
    "framework",
    "arrivals_sha256",
    "slo",
    "dataset_digest",
)
_LONGEST_TEXT = 500
_LONGEST_SETTINGS = 4_000

Row = Mapping[str, Any]


class Entry(NamedTuple):
    """A folder that contains a run, a study or both. For example, the folder of a `peak` study also contains the files
    of the best run.
    """

    path: str
    """Path below the root, separated by slashes."""
    at: str
    """Start time of the run or, for other folders, the time of the last change, in ISO 8601, UTC."""
    row: Row | None = None
    """Columns of runs.sqlite, read from result.json;
    for a study, its verb. None if result.json is missing or not readable.
    """
    problem: str | None = None
    """Why the run has no row; None if the run has a row."""
    study: str | None = None
    """Verb that made many runs, such as peak."""
    inside: str | None = None
    """Folder of the study that contains this run."""
    notes_endpoint: bool = False
    """Whether a file contains the address of the run's metrics."""
    notes_progress: bool = False
    """Whether a file contains the progress of the study."""

    @property
    def is_run(self) -> bool:
        return self.row is not None or self.problem is not None

    @property
    def is_unfinished(self) -> bool:
        return self.path.endswith(PARTIAL) or self.notes_progress

    def is_in_progress(self, root: Path) -> bool:
        """Returns whether a process on this machine still writes the folder."""
        return self.is_unfinished and run_folder.is_in_progress(root / self.path)


class Missing(Exception):
    """Raised if the folder contains no such run or study."""


class _Known(NamedTuple):
    """Content that the last reading of a folder found. signature: changes if the list of files or result.json changes."""

    signature: Sequence[int]
    entry: Entry | None

    @property
    def may_hold_runs(self) -> bool:
        return self.entry is None or self.entry.study is not None


class Index:
    """The entries below `root`. Every method is safe to call from any thread.

    The entries are stored in the user's cache folder, so that the next start does not have to read them again.
    """

    def __init__(self, root: Path, *, is_awaited: bool = False) -> None:
        """is_awaited: whether the root may be missing, because the first run creates it."""
        self.root = root
        self._is_awaited = is_awaited
        self._lock = threading.Lock()
        self._cache = files.cache_dir() / "browse" / f"{_digest(root)}.json"
        self._known = _stored(self._cache)
        self._entries: dict[str, Entry] = {}
        self._at_s = -math.inf
        self._read_anew = 0

    def entries(self) -> Mapping[str, Entry]:
        """Returns the entries by path, newest first. Raises OSError if the root cannot be read."""
        with self._lock:
            if time.monotonic() - self._at_s > LASTS_S:
                before, self._known = self._known, {}
                self._is_awaited = self._is_awaited and not self.root.exists()
                below = iter(()) if self._is_awaited else self._below("", None, 0, before)
                found = [self._settled(entry) for entry in islice(below, MOST_ENTRIES)]
                found.sort(key=lambda entry: (entry.at, entry.path), reverse=True)
                self._entries = {entry.path: entry for entry in found}
                self._at_s = time.monotonic()
                if self._read_anew >= WORTH_STORING:
                    _store(self._cache, self._known)
                    self._read_anew = 0
            return self._entries

    def expire(self) -> None:
        """Lets the next request read the folder again, because an entry is known to be gone."""
        with self._lock:
            self._at_s = -math.inf

    def is_unfinished(self, path: str) -> bool:
        """Returns whether the folder belongs to a run or study that has not ended. The folder of a study may have no entry
        yet.
        """
        entry = self.entries().get(path)
        return path.endswith(PARTIAL) if entry is None else entry.is_unfinished

    def entry(self, path: str) -> Entry:
        """Returns the entry at a path. Raises Missing, or OSError if the root cannot be read."""
        try:
            return self.entries()[path]
        except KeyError:
            raise Missing(path) from None

    def _below(
        self, folder: str, inside: str | None, depth: int, before: Mapping[str, _Known]
    ) -> Iterator[Entry]:
        """Yields the entries below a folder. folder: path below the root, which is empty or ends with a slash."""
        # `base` is a string, because pathlib would take most of the time.
        base = f"{self.root}/{folder}"
        with os.scandir(base) as found:
            states = {}
            for one in found:
                with suppress(FileNotFoundError):  # the end of a run renames its folder
                    states[one.name] = one.stat(follow_symlinks=False)
        for name, state in states.items():
            if not stat.S_ISDIR(state.st_mode) or name.startswith("."):
                continue
            path = folder + name
            known = before.get(path)
            signature = _signature(base + name, state)
            if known is None or known.signature != signature:
                known = _Known(signature, self._read(path, state, inside))
                self._read_anew += 1
            self._known[path] = known
            if known.entry is not None:
                yield known.entry
            if known.may_hold_runs and depth < DEEPEST:
                try:
                    # A study in progress makes its first run before it writes its own file.
                    is_study = known.entry is not None or path.endswith(PARTIAL)
                    study = path if is_study else inside
                    yield from self._below(f"{path}/", study, depth + 1, before)
                except OSError:  # the entry was removed after its folder was listed
                    continue

    def _settled(self, entry: Entry) -> Entry:
        """Returns the entry, without the note of its endpoint if its run was killed and could not remove the note."""
        may_be_killed = entry.notes_endpoint and entry.row is not None
        if may_be_killed and not run_folder.is_in_progress(self.root / entry.path):
            # File systems without locks need the second question.
            is_killed = isinstance(newest(self.root, entry.path), str)
            return entry._replace(notes_endpoint=not is_killed)
        return entry

    def _read(self, path: str, state: os.stat_result, inside: str | None) -> Entry | None:
        changed = datetime.fromtimestamp(state.st_mtime_ns / NS_PER_S, UTC)
        # The time in the folder's name is preferred, because reading a study may change the folder's modification time
        # later.
        named = run_folder.TIMED.fullmatch(path)
        at = "{}T{}:{}:{}".format(*named.groups()) if named else None
        entry = Entry(path, at or changed.isoformat(timespec="milliseconds"), inside=inside)
        if not path.isprintable():
            return entry._replace(problem="its name cannot be part of a URL: rename it")
        try:
            names = set(os.listdir(f"{self.root}/{path}"))  # noqa: PTH208 - as in `_below`
        except OSError as e:
            return entry._replace(problem=f"it cannot be read: {e.strerror}")
        entry = entry._replace(
            study=next((verb for file, verb in STUDIES.items() if file in names), None),
            notes_endpoint=run_folder.ENDPOINT in names,
            notes_progress=run_folder.PROGRESS in names,
        )
        if named is None and entry.study is not None:
            entry = entry._replace(at=self._started(path, names) or entry.at)
        if run_folder.RESULT in names:
            try:
                row = read_row(self.root, path)
            except (OSError, HarnessError) as e:
                return entry._replace(problem=one_line(e))
            return entry._replace(row={**row, "study": entry.study}, at=row["started"])
        if names & _OF_A_RUN and entry.study is None:
            return entry._replace(problem="it has no result.json: its run is in progress or died")
        return entry if entry.study is not None else None

    def _started(self, path: str, names: Collection[str]) -> str:
        """Returns the start time in the study's file; '' if the file lacks it or cannot be read."""
        for name in STUDIES.keys() & names:
            with suppress(OSError, HarnessError), reading(path):
                content = json.loads(within.read_file(self.root, f"{path}/{name}"))
                return datetime.fromisoformat(content["started"]).isoformat(timespec="milliseconds")
        return ""


def _signature(folder: str, state: os.stat_result) -> list[int]:
    try:
        result = os.lstat(f"{folder}/{run_folder.RESULT}")
    except OSError:
        return [state.st_mtime_ns, state.st_ino]
    return [state.st_mtime_ns, state.st_ino, result.st_mtime_ns, result.st_size, result.st_ino]


def _digest(root: Path) -> str:
    return hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def _stored(cache: Path) -> dict[str, _Known]:
    """Returns the folders that an earlier `browse` read; empty if nothing usable is stored."""
    try:
        with reading(str(cache)):
            content = json.loads(cache.read_bytes())
            if content["version"] != _VERSION:
                return {}
            return {
                path: _Known(signature, Entry(*entry) if entry is not None else None)
                for path, (signature, entry) in content["known"].items()
            }
    except (OSError, HarnessError):
        return {}


def _store(cache: Path, known: Mapping[str, _Known]) -> None:
    with suppress(HarnessError), files.cached_file(cache) as temporary:
        temporary.write_text(json.dumps({"version": _VERSION, "known": known}), encoding="utf-8")


def read_row(root: Path, path: str) -> dict[str, Any]:
    """Returns the columns of runs.sqlite for the run at `path`, from its result.json.

    Adds the codes of the run's doubts, and the headline of its page without the interval. Raises OSError or ConfigError
    if a run cannot have written result.json.
    """
    file = f"{path}/{run_folder.RESULT}"
    with reading(file, "run `check` for details"):
        content = within.read_file(root, file)
        with suppress(FileNotFoundError):  # a run that died is not sealed
            digests.check(within.read_file(root, f"{path}/{digests.SEAL}"), file, content)
        result = json.loads(content)
        if not isinstance(result, dict):
            raise ConfigError(f"{file} is not a file of a run")
        run_files.check_shape(result, Path(file))
        row: dict[str, Any] = {**database.columns_of(path, result)}
        for name in _TEXTS:
            if not isinstance(row[name], str):
                raise ConfigError(f"{file} has no usable {name}: run `check` for details")
        parse_slos(result.get("slo") or "")  # History and Pareto need it of every run
        doubts = " ".join(str(one["code"]) for one in result["doubts"])[:_LONGEST_TEXT]
    answer = None
    with suppress(HarnessError), reading(file):  # files of old versions do not contain an answer
        answer = headline_in_short(result)[:_LONGEST_TEXT]
    for name, value in row.items():
        if name in _TEXTS or name in _MAYBE_TEXTS:
            row[name] = value[:_LONGEST_TEXT] if isinstance(value, str) else None
        elif name == "settings":  # cut JSON would be unreadable
            row[name] = value if len(value or "") <= _LONGEST_SETTINGS else None
        elif name != "folder":
            row[name] = _finite(value)
    more = {"folder": path, "removed": False, "doubts": doubts, "answer": answer}
    return {**row, **more, "has_latency": not scenario_named(row["scenario"]).all_at_once}


def _finite(value: object) -> int | float | None:
    """Returns the value if it is a number that a plot can show; otherwise None."""
    return value if isinstance(value, int | float) and -1e300 < value < 1e300 else None
