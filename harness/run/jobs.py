"""Runs a job of many runs: a failed start leaves no folder, and a table ends the job."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from harness.core.console import show
from harness.core.signals import stoppable
from harness.errors import ConfigError, RunInvalid

Lines = Callable[[Mapping[str, Any], Path], Iterable[str]]
"""(content of the job's JSON file, folder) -> the lines of its table."""


class Job(Protocol):
    """A verb that makes several runs."""

    folder: Path
    """The result folder, under its current name."""

    def run(self) -> int:
        """Returns the exit status."""
        ...

    def content(self) -> Mapping[str, Any]:
        """The content of its JSON file."""
        ...


def conclude(job: Job, lines: Lines, *, as_json: bool) -> int:
    """Runs the job, prints its table (or JSON) and returns its exit status."""
    with stoppable():  # a signal between two runs ends the next one; the table is still printed
        status = job.run()
        content = job.content()
        text = json.dumps(content, indent=2) if as_json else "\n".join(lines(content, job.folder))
        show(text)
    return status


@contextmanager
def keep_or_remove(folder: Callable[[], Path], has_measured: Callable[[], bool]) -> Iterator[None]:
    """Removes `folder` after an error, unless something was measured or a run left a traceback."""
    try:
        yield
    except OSError as e:
        why = f"{folder()} cannot be written: {e.strerror}: pass --out elsewhere"
        raise RunInvalid(why) from e
    except BaseException as e:
        of_use = not isinstance(e, ConfigError) and any(folder().glob("*/*"))
        if not (has_measured() or of_use):
            shutil.rmtree(folder(), ignore_errors=True)
        raise
