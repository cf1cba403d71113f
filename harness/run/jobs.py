"""What the verbs that make several runs do alike: a failed start leaves nothing, a table ends them."""

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
"""(content, folder) -> the table."""


class Job(Protocol):
    """folder: where it lies by now. run: returns the exit status. content: of its JSON file."""

    folder: Path

    def run(self) -> int: ...

    def content(self) -> Mapping[str, Any]: ...


def conclude(job: Job, lines: Lines, *, as_json: bool) -> int:
    """Runs it, prints its table (or JSON) and returns its exit status."""
    with stoppable():  # a signal between two runs ends the next one, and the table still comes
        status = job.run()
        content = job.content()
        text = json.dumps(content, indent=2) if as_json else "\n".join(lines(content, job.folder))
        show(text)
    return status


@contextmanager
def keep_or_remove(folder: Callable[[], Path], has_measured: Callable[[], bool]) -> Iterator[None]:
    """What is in `folder` stays, unless nothing was measured and no run left its traceback there."""
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
