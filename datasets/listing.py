"""Which files a dataset is made of, and every problem of that list at once."""

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.datasets.cache import Stamps
from harness.errors import ConfigError
from harness.types import DatasetSetup

SHOWN = 10
"""Bad files that are named before it is given up; `data check` names all that cannot be decoded."""


class Sample(NamedTuple):
    """file: below the dataset's folder, with /. label: what the metric compares with."""

    file: str
    label: object


def data_folder(name: str, setup: DatasetSetup, expected: str) -> Path:
    """--data-dir, or a ConfigError that says what is expected there."""
    if setup.data_dir is None:
        raise ConfigError(f"dataset {name!r} needs --data-dir: a folder with {expected}")
    if not setup.data_dir.is_dir():
        raise ConfigError(f"--data-dir {setup.data_dir}: there is no such folder")
    return setup.data_dir


def raise_all(problems: Sequence[str]) -> None:
    """One ConfigError with the first problems, one a line."""
    if problems:
        more = [f"and {len(problems) - SHOWN:,} more like these"] if len(problems) > SHOWN else []
        raise ConfigError("\n".join([*problems[:SHOWN], *more]))


def twice(what: str, values: Iterable[object]) -> list[str]:
    """A problem for each value that comes more than once; what: e.g. 'val_map.txt names image'."""
    seen: set[object] = set()
    again: dict[object, None] = {}
    for value in values:
        if value in seen:
            again[value] = None
        seen.add(value)
    return [f"{what} {value} twice: keep one" for value in again]


def stamps_of(folder: Path, samples: Sequence[Sample]) -> Stamps:
    stamps = np.empty((len(samples), 2), np.int64)
    problems = []
    for i, (file, _) in enumerate(samples):
        try:
            if file.startswith("/") or ".." in Path(file).parts:
                raise ConfigError(f"{file} leaves {folder}: files must lie in it")
            found = (folder / file).stat()
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{folder / file} is not a file")
            stamps[i] = found.st_size, found.st_mtime_ns
        except OSError as e:
            problems.append(f"{folder / file} cannot be read: {e.strerror}")
        except ConfigError as e:
            problems.append(str(e))
    raise_all(problems)
    return stamps
