"""Exports samples as CSV: a header, and one row per sample."""

from typing import TextIO

from harness.core.shown.cells import write_rows
from harness.results.export.samples import VERDICT, sample_columns, sample_rows
from harness.results.run_files import RunFiles


def write(run: RunFiles, out: TextIO) -> None:
    columns, verdict = sample_columns(run), run.result["verdict"]
    write_rows(out, [*columns, VERDICT], ((*row, verdict) for row in sample_rows(columns)))
