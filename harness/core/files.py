"""Reads and writes files: YAML without code, JSON, files that appear whole or not at all."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError
from harness.results.run_folder import not_a_run


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


def read_json(path: Path) -> Mapping[str, Any]:
    """One of a run's files; a ConfigError says what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        if path.parent.is_dir():
            raise ConfigError(not_a_run(path.parent, path.name)) from e
        raise ConfigError(f"{path.parent}: there is no such folder") from e
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}: is this a run's folder?") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not JSON: {e}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not what a run writes")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces the file in one step, so that a reader never sees half of it."""
    text = json.dumps(content, indent=2, allow_nan=False, default=str) + "\n"
    _replace(path, text)


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    _replace(path, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)
