"""Exports samples as JSON Lines: one object per sample."""

import json
from typing import TextIO

from harness.results.export.samples import VERDICT, sample_columns, sample_rows
from harness.results.run_files import RunFiles


def write(run: RunFiles, out: TextIO) -> None:
    columns, verdict = sample_columns(run), run.result["verdict"]
    for row in sample_rows(columns):
        content = {**dict(zip(columns, row, strict=True)), VERDICT: verdict}
        out.write(f"{json.dumps(content)}\n")
