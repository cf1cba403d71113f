"""The folder for what can be made or fetched again, and files that appear in it whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import ConfigError


def cache_dir() -> Path:
    """Where downloaded files and preprocessed samples are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mlperf-harness"


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, renamed to it at the end; after an error there is neither.

    Two processes may make the same file at once: the last one wins, and both see a whole file. A
    ConfigError where the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise ConfigError(
            f"{path} cannot be written: {e.strerror or e}: set XDG_CACHE_HOME to a folder with room"
        ) from e
