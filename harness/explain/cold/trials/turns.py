"""Alternates the trials of several starts, so that a slow period of the machine affects all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.child import call
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.units import show_percent
from harness.errors import HarnessError, one_line
from harness.explain.cold.trials import page_cache, phases
from harness.models.manifest.files import files_of, size_bytes
from harness.models.manifest.model import Model

COLD, WARM = "cold", "warm"

_TRIAL = "harness.explain.cold.trials.process:trial"
_LIMIT_S = 900.0
"""Time limit of a trial. A trial that takes longer is aborted."""


class Start(NamedTuple):
    """One way to start: a file or folder of the model on a backend. about: special features of this start. is_required:
    whether the command ends if this start fails.
    """

    name: str
    config: RunConfig
    path: Path
    about: str = ""
    is_required: bool = False


class Trials(NamedTuple):
    """Parameters common to all trials.

    threads: number of the framework's threads. runs: number of steady runs in each trial.
    """

    model: Model
    dataset: str
    threads: int
    runs: int
    log: Path


def new_row(start: Start) -> dict[str, Any]:
    """Returns the row of a start in cold.json before its first trial."""
    return {
        **empty_row(start.name, start.config.backend, None),
        "about": start.about,
        "files": len(files_of(start.path)),
        "size_bytes": size_bytes(start.path),
        "note": phases.note(start.config.backend),
    }


def empty_row(name: str, backend: str, failed: str | None) -> dict[str, Any]:
    """Returns the row of a start without files and trials. failed: reason why the start is not possible on this
    machine.
    """
    return {
        "name": name,
        "backend": backend,
        "about": "",
        "files": 0,
        "size_bytes": None,
        "note": "",
        COLD: [],
        WARM: [],
        "no_cold": None,
        "failed": failed,
    }


def one_round(
    starts: Sequence[Start],
    rows: Sequence[dict[str, Any]],
    trials: Trials,
    ended: Callable[[], None],
) -> None:
    """Makes one cold and one warm trial of each start, and adds the trials to the start's row. ended: called after each
    trial.

    A failed start is not tried again, and its row contains the reason. Raises a HarnessError if a required start fails.
    """
    for start, row in zip(starts, rows, strict=True):
        for temperature in (COLD, WARM):
            if row["failed"] is None and not (temperature == COLD and row["no_cold"]):
                _one(start, row, trials, temperature)
            ended()


def _one(start: Start, row: dict[str, Any], trials: Trials, temperature: str) -> None:
    files = [*files_of(start.path).values()]
    try:
        if temperature == COLD:
            row["no_cold"] = _cooled(files)
            if row["no_cold"]:
                return
        else:
            page_cache.read(files)
        row[temperature].append(
            call(_TRIAL, _request(start, trials, temperature), trials.log, limit_s=_LIMIT_S)
        )
    except HarnessError as e:
        if start.is_required and not row[COLD] and not row[WARM]:
            raise
        row["failed"] = one_line(e)


def _cooled(files: Sequence[Path]) -> str | None:
    """Drops the files from the page cache. If the files stay in the cache, returns the reason."""
    try:
        page_cache.drop(files)
        share = page_cache.resident_share(files)
    except OSError as e:
        return f"the file cannot be dropped from the page cache: {e.strerror}"
    if share > page_cache.MOST_RESIDENT:
        return (
            f"{show_percent(share)} of the file stays in the page cache: another process maps it, or the "
            "file system is in memory"
        )
    return None


def _request(start: Start, trials: Trials, temperature: str) -> Mapping[str, Any]:
    return {
        "config": to_plain(start.config),
        "model": trials.model.to_json(),
        "path": str(start.path),
        "dataset": trials.dataset,
        "threads": trials.threads,
        "runs": trials.runs,
        "read": temperature == COLD,
        "asked_ns": time.monotonic_ns(),
    }
