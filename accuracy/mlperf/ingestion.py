"""Scores the database that the RAG benchmark e2e-rag-db builds, by the share of stored pages and the database's MD5.

The share is the success rate that mlcommons/inference b66003e computes in e2e-rag/datasetup_accuracy_eval.py. The
submission checker does not read that program's report. If the environment variable RAG_DB_CHECK contains the program's
command, such as `python ~/inference/e2e-rag/datasetup_accuracy_eval.py --database FILE --manifest FILE`, the program
also compares the database with the MD5 and sends queries to the database.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.accuracy.parts import program
from harness.errors import UnusableAnswer
from harness.types import Answer, HasLabelCheck, Metric, Score

VARIABLE, SCRIPT = "RAG_DB_CHECK", "datasetup_accuracy_eval.py"
STORED = b"\x01"
_MD5 = re.compile(rb"[0-9a-f]{32}")


class Ingestion:
    """Percentage of pages that were stored. An answer is the byte 1 for a stored page, or the byte 0 for a failed page.
    The last answer is the MD5 of the database as 32 hexadecimal digits.
    """

    def __init__(self, dtype: str) -> None:
        if np.dtype(dtype).itemsize != 1:
            raise ValueError(f"ingestion needs bytes, but the answers are {dtype}")

    def check_labels(self, _labels: Mapping[int, object]) -> None:
        """Refuses a run if RAG_DB_CHECK refers to a program that does not exist."""
        if os.environ.get(VARIABLE):
            program.named(VARIABLE, SCRIPT)

    def score(self, answers: Iterable[Answer], _labels: Mapping[int, Any]) -> Score:
        ordered = list(answers)
        sums = [answer for answer in ordered if _MD5.fullmatch(answer.payload)]
        if len(sums) != 1:
            raise UnusableAnswer(
                f"{len(sums)} answers are an MD5: exactly one, the answer to the last page, must be the MD5 of the "
                "database"
            )
        stored = len(sums) + sum(answer.payload == STORED for answer in ordered)
        value = 100.0 * stored / len(ordered)
        checker = _checked(ordered) if os.environ.get(VARIABLE) else None
        by = f", checked by {checker.version}" if checker else ""
        md5 = sums[0].payload.decode()
        return Score(
            metric="ingestion",
            value=value,
            unit="%",
            samples=len(ordered),
            line=f"Accuracy: {value:.4f}, stored={stored}, total={len(ordered)}, md5={md5}{by}",
            details={"stored": stored, "checked": float(checker is not None)},
            scorer=checker.scorer if checker else "",
        )


def _checked(answers: Sequence[Answer]) -> program.Program:
    """Runs the program on the database, and returns the program. Raises a ValueError if the program refuses the
    database.
    """
    judge = program.named(VARIABLE, SCRIPT)
    with tempfile.TemporaryDirectory() as folder:
        program.write_log(Path(folder) / "mlperf_log_accuracy.json", answers)
        program.run(judge, ["--log_dir", folder, "--output_dir", folder], Path(folder))
    return judge


_: type[Metric] = Ingestion
__: type[HasLabelCheck] = Ingestion
