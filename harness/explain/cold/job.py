"""Runs the verb `cold`: starts a model many times, each time in a new process."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core.clock import utc_text
from harness.core.config.run_config import to_plain
from harness.explain.cold import page, tables
from harness.explain.cold.measure import Job, measure
from harness.explain.cold.options import ColdOptions
from harness.explain.cold.subject import Subject, open_subject
from harness.explain.report import Report
from harness.machine import host

LOG = "frameworks.log"

REPORT = Report("cold", "cold.json", {"schema": 1}, tables.text, page.write)

BUSY = 1.5
"""If the load average per core exceeds this limit before the first trial, a note reports that other processes use the
machine.
"""


def cold(options: ColdOptions, values: Mapping[str, Any]) -> int:
    """Returns the exit status. values: the options that `cold` shares with a run, as fields of RunConfig."""
    if options.source is not None:
        REPORT.show_again(options.source, as_json=options.json)
        return 0
    subject = open_subject(options, values)
    content = _new_content(options, subject)
    with REPORT.measuring(options.out, subject.config.backend, subject.model.name) as new:
        _measure(options, subject, content, new.path)
    REPORT.show(content, new.final, as_json=options.json)
    return 0


def _new_content(options: ColdOptions, subject: Subject) -> dict[str, Any]:
    return {
        **REPORT.schema,
        "started": utc_text("milliseconds"),
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


def _doubts(subject: Subject) -> Iterator[str]:
    load, cores = os.getloadavg()[0], subject.threads
    if load > BUSY * cores:
        yield (
            f"busy: {load:.1f} processes wanted a core before the first trial, and other work makes these times longer; "
            "the ways were measured in turns, so their ratios are more reliable"
        )


def _measure(options: ColdOptions, subject: Subject, content: dict[str, Any], folder: Path) -> None:
    with TemporaryDirectory(prefix="made-", dir=folder) as made:
        save = partial(REPORT.save, content, folder)
        measure(Job(options, subject, content, Path(made), folder / LOG, save))
