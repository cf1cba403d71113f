"""Reads the rows of completions.npz for formats that have one row per sample."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from harness.errors import ConfigError
from harness.results import records
from harness.results.evidence.stages import edges_of
from harness.results.run_files import RunFiles, reading_run
from harness.results.run_folder import FOLDERS
from harness.types import Array

VERDICT = "verdict"
"""Name of the column that these formats add. Each row repeats the run's verdict."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = 10_000
"""Largest number of rows that are held in memory as Python objects at once."""


def sample_columns(run: RunFiles) -> Mapping[str, Array]:
    """Returns the columns by name, each as (n,) integers. Each row is a completed sample of the performance run or,
    without a performance run, of the accuracy run. Raises a ConfigError if no sample was completed.
    """
    measured = run.performance or records.read(run.folder / FOLDERS["accuracy"], "")
    if measured is None or not measured.done:
        raise ConfigError(f"{run.folder} has no completed samples")
    with reading_run(run.folder):
        columns = measured.done.columns
        stamps = ["scheduled_ns", *(end for _, end in edges_of(columns).values())]
        names = [*(name for name in columns if name not in stamps), *stamps]
        for name in names:
            column = columns[name]
            if column.shape != (len(measured.done),) or column.dtype.kind not in "iu":
                raise ValueError(
                    f"column {name} of {records.COMPLETIONS} is not one integer per sample"
                )
        return {name: columns[name] for name in names}


def sample_rows(columns: Mapping[str, Array]) -> Iterator[Sequence[int]]:
    """Yields the rows as Python integers. Converts the rows in blocks to save memory."""
    arrays = [np.asarray(column) for column in columns.values()]
    for start in range(0, len(arrays[0]), _AT_ONCE):
        yield from zip(*(a[start : start + _AT_ONCE].tolist() for a in arrays), strict=True)


def span_ns(run: RunFiles) -> tuple[int, int]:
    """Returns the times at which the command started and the performance run completed its last sample, in ns since
    1970.

    If no sample was completed, both values are the start time.
    """
    began = datetime.fromisoformat(run.result["started"])
    began_ns = (began - _EPOCH) // timedelta(microseconds=1) * 1_000
    done = run.performance.done if run.performance else None
    if not done:
        return began_ns, began_ns
    return began_ns, int(done.columns["completed_ns"].max())
