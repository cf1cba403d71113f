"""Keeps or removes the folder of a verb that makes several runs, when it fails."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import ConfigError, RunInvalid


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
