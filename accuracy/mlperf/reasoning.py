"""Scores answers to questions of mathematics, science and code with MLCommons' script, which also runs the code in them.

The environment variable REASONING_SCORER names the script with its data; the harness adds the accuracy log as the last word:

    python ~/inference/language/deepseek-r1/eval_accuracy.py --dataset-file DATASET.pkl --input-file
    python ~/inference/language/gpt-oss-120b/eval_mlperf_accuracy.py --reference-data DATASET.parquet --mlperf-log

Source: mlcommons/inference b66003e.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from harness.accuracy.parts import program
from harness.accuracy.parts.text import TextLabels
from harness.types import Answer, HasLabelCheck, Metric, Score

VARIABLE, SCRIPT = "REASONING_SCORER", "eval_accuracy.py"
_MATCH = re.compile(r"'exact_match': ([\d.]+)")


class Reasoning(TextLabels):
    """The share of right answers, in percent. An answer is token ids; samples are in the order of the script's data.

    The labels, the right answers, are not used: the script reads its own.
    """

    variable, script = VARIABLE, SCRIPT

    def __init__(self, dtype: str) -> None:
        if dtype not in ("int32", "int64"):
            raise ValueError(
                f"reasoning needs token ids, but the answers are {dtype}: pass --backend-option answer=ids"
            )
        self._dtype = np.dtype(dtype)

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Refuses labels that are not texts, and a run that nothing could score at its end."""
        super().check_labels(labels)
        program.named(VARIABLE, SCRIPT)

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        scorer = program.named(VARIABLE, SCRIPT)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "mlperf_log_accuracy.json"
            total = self._write_log(log, answers)
            output = program.run(scorer, [str(log)], Path(folder))
        found = _MATCH.findall(output)
        if not found:
            raise ValueError(f"{VARIABLE}: {scorer.script.name} printed no 'exact_match'")
        return Score(
            metric="reasoning",
            value=float(found[-1]),
            unit="%",
            samples=total,
            line=f"{{'exact_match': {found[-1]}}}, scored by {scorer.version}",
        )

    def _write_log(self, path: Path, answers: Iterable[Answer]) -> int:
        """Writes LoadGen's accuracy log with the answers as int32; returns their number."""
        rows = [
            {
                "seq_id": number,
                "qsl_idx": sample,
                "data": np.frombuffer(payload, self._dtype).astype("<i4").tobytes().hex().upper(),
            }
            for number, (sample, payload) in enumerate(answers)
        ]
        lines = ",\n".join(json.dumps(row) for row in rows)
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        return len(rows)


_: type[Metric] = Reasoning
__: type[HasLabelCheck] = Reasoning
