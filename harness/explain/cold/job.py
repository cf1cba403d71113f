"""Runs the verb `cold`: starts a model again and again, each time in a fresh process."""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core import files
from harness.core.config.run_config import to_plain
from harness.core.console import say, show
from harness.errors import ConfigError, HarnessError, RunInvalid
from harness.explain.cold import page, tables
from harness.explain.cold.measure import Job, measure
from harness.explain.cold.options import ColdOptions
from harness.explain.cold.subject import Subject, open_subject
from harness.machine import host
from harness.results import run_folder

FILE, LOG, SCHEMA = "cold.json", "frameworks.log", 1

BUSY = 1.5
"""Load average per core before the first trial above which others used the machine."""


def cold(options: ColdOptions, values: Mapping[str, Any]) -> int:
    """Returns the exit status. values: the options that a run has, too, as fields of RunConfig."""
    if options.source is not None:
        return _show_again(options.source, as_json=options.json)
    subject = open_subject(options, values)
    new = run_folder.new_folder(options.out, "cold", subject.config.backend, subject.model.name)
    content = _new_content(options, subject)
    try:
        _measure(options, subject, content, new.path)
    except ConfigError:  # says what is wrong: nothing more is in the log
        shutil.rmtree(new.path, ignore_errors=True)
        raise
    except OSError as e:
        raise RunInvalid(f"{new.path} cannot be written: {e.strerror}: make room there") from e
    except KeyboardInterrupt:
        if (new.path / FILE).exists():
            say(f"stopped: cold --from {new.path} shows the results so far")
        raise
    finally:
        _remove_unless_of_use(new.path)
    folder = new.finish(newest=False)
    _report(content, folder, as_json=options.json)
    (say if options.json else show)(f"{'results':<12}{folder}")
    return 0


def _new_content(options: ColdOptions, subject: Subject) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "model": subject.model.name,
        "config": to_plain(subject.config),
        "threads": subject.threads,
        "trials": options.trials,
        "fetch": dict(subject.fetched),
        "starts": [],
        "absent": [],
        "sharing": [],
        "benefit": {},
        "doubts": list(_doubts(subject)),
        "environment": host.fingerprint(),
    }


def _doubts(subject: Subject) -> Any:
    load, cores = os.getloadavg()[0], subject.threads
    if load > BUSY * cores:
        yield (
            f"busy: {load:.1f} processes wanted a core before the first trial: other work slows these numbers down; "
            "the ways were measured in turns, so their ratios hold better"
        )


def _measure(options: ColdOptions, subject: Subject, content: dict[str, Any], folder: Path) -> None:
    with TemporaryDirectory(prefix="made-", dir=folder) as made:
        save = partial(files.write_json, folder / FILE, content)
        measure(Job(options, subject, content, Path(made), folder / LOG, save))


def _remove_unless_of_use(folder: Path) -> None:
    """Removes a folder without measurements, unless a framework said something before it failed."""
    log = folder / LOG
    with suppress(OSError):
        if not (folder / FILE).exists() and not (log.exists() and log.stat().st_size):
            shutil.rmtree(folder)


def _show_again(folder: Path, *, as_json: bool) -> int:
    content = files.read_json(folder / FILE, "cold")
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{folder / FILE} was written by another version of `cold`: its schema differs"
        )
    with files.reading(f"{folder / FILE} is not what `cold` writes"):
        _report(content, folder, as_json=as_json)
    return 0


def _report(content: Mapping[str, Any], folder: Path, *, as_json: bool) -> None:
    if as_json:
        show(json.dumps(content, indent=2, allow_nan=False))
    else:
        show("\n".join(tables.text(content)))
        show("")
    try:
        shown = str(page.write(content, folder))
    except HarnessError as e:
        shown = f"none: {e}"
    if not as_json:
        show(f"{'page':<12}{shown}")
