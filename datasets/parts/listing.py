"""Lists the files of a dataset, and reports every problem of the list at once."""

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from harness.datasets.parts.cache import Stamps
from harness.datasets.parts.sources import refuse
from harness.errors import ConfigError


class Sample(NamedTuple):
    """file: below the dataset's folder, with /. label: what the metric compares with."""

    file: str
    label: object


def plain(name: str) -> str:
    """A file's name as a listing has it, without ./ and //, so that one file has one name."""
    return PurePosixPath(name).as_posix() if name else name


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
            stamps[i] = found.st_size, found.st_ctime_ns
        except OSError as e:
            problems.append(f"{folder / file} cannot be read: {e.strerror}")
        except ConfigError as e:
            problems.append(str(e))
    refuse(problems)
    return stamps
