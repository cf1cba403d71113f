"""Creates result folders. While a folder is incomplete, its name ends in `.partial`."""

import fcntl
import os
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import sleep, time

from harness.core.files import PARTIAL, free_name, point_link, write_json
from harness.errors import ConfigError
from harness.results.seal import digests

RESULTS = "results"
"""Folder for results if --out is not set."""
RESULT = "result.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
ACCURACY_TEXT = "accuracy.txt"
PEAK = "peak.json"
LATEST = "latest"
"""Name of the link to the newest run in a results folder."""
TIMED = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d)Z-[^/]+")
"""Matches a folder name that the harness chose: the start, the scenario, the backend and the model."""
REPEATS = "repeats.json"
OVERHEAD = "overhead.json"
WORKERS = "workers.json"
RUNTIMES = "runtimes.json"
STUDIES = (
    *(PEAK, REPEATS, OVERHEAD, WORKERS, RUNTIMES),
    *("sweep.json", "grid.json", "tune.json", "profile.json"),
)
"""File names of study summaries, which lie in the folder that contains the study's runs."""
TURNS = "turns.json"
"""File with the comparison that `rerun` made, in the folder that contains its runs."""
METRICS = "metrics.prom"
PROGRESS = "progress.json"
"""Number of the current run and the time left, in the folder of a study in progress."""
ENDPOINT = "metrics.address"
"""File with the IP address and port of the Prometheus endpoint during a run, such as 127.0.0.1:9464."""
RUN = "run.json"
"""File that describes one LoadGen run; a result folder contains one per LoadGen run."""
FOLDERS = {"performance": "performance/run_1", "accuracy": "accuracy", "answers": "answers"}
"""Maps a LoadGen run's role to its folder inside the result folder."""
PERFORMANCE = FOLDERS["performance"]


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ResultFolder:
    """A folder that is named `path` while it is written, and `final` once it is complete."""

    def __init__(self, final: Path, option: str = "--out") -> None:
        """Creates the folder. option: the option that sets `final`, for error messages."""
        try:
            taken = final.exists() or final.is_symlink()
        except OSError as e:  # for example, the name may be too long
            raise ConfigError(
                f"{final} cannot be created ({e.strerror}): pass a different {option}"
            ) from e
        if final.name.endswith(PARTIAL):
            raise ConfigError(
                f"{final}: {option} must not end in {PARTIAL}: unfinished runs have that name"
            )
        if taken:
            raise ConfigError(
                f"{final} already exists and will not be overwritten: pass a different {option}"
            )
        self.final = final
        self.path = final.with_name(final.name + PARTIAL)
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(
                f"{self.path} already exists, from a run that is in progress or did not finish: pass a different "
                f"{option}, or remove it once nothing writes there"
            ) from None
        except OSError as e:
            raise ConfigError(
                f"{self.path} cannot be created ({e.strerror}): pass {option} elsewhere"
            ) from e
        self._unlock = locked(self, self.path)

    def subfolder(self, role: str) -> Path:
        """Creates the folder for a LoadGen run. Raises OSError if the result folder was removed."""
        path = self.path
        for name in FOLDERS[role].split("/"):
            path = path / name
            path.mkdir()
        return path

    def adopt(self, folder: Path) -> None:
        """Moves the files from another run's folder into this folder. The other folder must be inside this folder or
        next to it.
        """
        for path in sorted(folder.iterdir()):
            path.rename(self.path / path.name)
        folder.rmdir()

    def finish(self, *, newest: bool = True) -> Path:
        """Seals the run's files and renames the folder to its final name. newest: whether the link `latest` should
        point to it.
        """
        if (self.path / RESULT).is_file():
            digests.write(self.path)
        self.path.rename(self.final)
        self._unlock()
        link = self.final.parent / LATEST
        with suppress(OSError):  # the link is only a convenience
            # The harness made the link, and may replace it, only if the link points to a sibling folder.
            ours = link.is_symlink() and link.readlink().parent == Path()
            if newest and (ours or not (link.exists() or link.is_symlink())):
                point_link(link, self.final.name)
        return self.final


RUN_ENDED = ": ended"
"""End of the text of `note_progress` after a run, until the next run begins."""


def note_progress(folder: Path, text: str, begun_s: float | None, left_s: float | None) -> None:
    """Writes what a study in progress does, and when it began and will end, for `browse`.

    text: number of the current run or point, followed by `about` or `at most` if the end is known. begun_s: in s since
    1970; None if more runs may be needed, so that the share of the time that has passed is unknown.
    """
    ends_s = None if left_s is None else time() + left_s
    with suppress(OSError):  # the study does not need this file
        write_json(folder / PROGRESS, {"text": text, "begun_s": begun_s, "ends_s": ends_s})


def locked(writer: object, folder: Path) -> Callable[[], object]:
    """Locks the folder, so that `is_in_progress` returns True. Returns the function that unlocks the folder; the end of
    `writer` or of this process unlocks it, too. Some network file systems have no locks: on these, `is_in_progress` is
    always False.
    """
    lock = os.open(folder, _FOLDER)
    with suppress(OSError):
        for _ in range(_TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # `is_in_progress` holds the lock for microseconds
                sleep(0.001)
    return weakref.finalize(writer, os.close, lock)


_TRIES = 100


def is_in_progress(folder: Path) -> bool:
    """Returns whether a process still writes the folder. Returns False for a link or a missing folder."""
    try:
        lock = os.open(folder, _FOLDER | os.O_NOFOLLOW)
    except (OSError, ValueError):  # for example, a NUL byte in an address
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def is_study(folder: Path) -> bool:
    return any((folder / name).is_file() for name in STUDIES)


def new_folder(out: Path | None, scenario: str, backend: str, model: str) -> ResultFolder:
    """Creates `out`, or results/<time>-<scenario>-<backend>-<model>. Adds a number if two runs start at the same time."""
    if out is not None:
        return ResultFolder(out)
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    name = "-".join([time, scenario, _plain(backend), _plain(model)])
    while True:
        final = free_name(Path(RESULTS) / name)
        try:
            return ResultFolder(final)
        except ConfigError:
            # If the names differ, another run took the name `final` after it was chosen.
            if free_name(final) == final:
                raise


def _plain(name: str) -> str:
    """Returns a plug-in's path in a form that is valid in a folder name. Cuts off a long name, because file systems
    limit a name to 255 bytes.
    """
    name = Path(name).name if "/" in name else name
    return re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("_")[:80]
