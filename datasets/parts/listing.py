"""Lists the files of a dataset, and reports all problems with these files at once."""

import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from harness.datasets.parts.cache import Stamps
from harness.datasets.parts.sources import refuse
from harness.errors import ConfigError


class Sample(NamedTuple):
    file: str
    """Path relative to the dataset's folder, with / as separator."""
    label: object


def plain(name: str) -> str:
    """Returns the name of a file without ./ and //, so that each file has only one name."""
    return PurePosixPath(name).as_posix() if name else name


def twice(what: str, values: Iterable[object]) -> list[str]:
    """Returns a problem for each repeated value. what: beginning of the text, e.g. 'val_map.txt names image'."""
    counts = Counter(values)
    return [f"{what} {value} twice: keep one" for value, count in counts.items() if count > 1]


def stamps_of(folder: Path, samples: Sequence[Sample]) -> Stamps:
    stamps = np.empty((len(samples), 2), np.int64)
    problems = []
    for i, (file, _) in enumerate(samples):
        try:
            if file.startswith("/") or ".." in Path(file).parts:
                raise ConfigError(f"{file} is outside {folder}: files must be in it")
            status = (folder / file).stat()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{folder / file} is not a file")
            stamps[i] = status.st_size, status.st_ctime_ns
        except OSError as e:
            problems.append(f"{folder / file} cannot be read: {e.strerror}")
        except ConfigError as e:
            problems.append(str(e))
    refuse(problems)
    return stamps
