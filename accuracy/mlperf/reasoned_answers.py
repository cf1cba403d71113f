"""Scores a reasoning model's answers, which consist of token IDs, with MLCommons' script for DeepSeek-R1 or
gpt-oss-120b.

The scripts run unmodified. The scripts execute code from the answers, so the user must run the scripts in an isolated
environment. The environment variable ANSWER_SCORER contains a script's command with the data that the script needs,
such as `python ~/inference/language/deepseek-r1/eval_accuracy.py --dataset-file
mlperf_deepseek_r1_dataset_4388_fp8_eval.pkl`.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from harness.accuracy.parts import program
from harness.types import Answer, HasLabelCheck, Metric, Score

VARIABLE, SCRIPT = "ANSWER_SCORER", "eval_accuracy.py"
_LOG_OPTION = {"eval_mlperf_accuracy.py": "--mlperf-log"}
"""Maps a script to the script's option for LoadGen's log, for scripts whose option is not `--input-file`."""

_SCORE = re.compile(r"'exact_match':\s*([\d.]+)")
_SAMPLES = re.compile(r"(?:'num-samples':|Total samples evaluated:)\s*(\d+)")


class ReasonedAnswers(program.ByProgram):
    """Percentage of correct answers. The labels are not used, because the script's data set contains the correct
    answers.
    """

    variable, script = VARIABLE, SCRIPT

    def __init__(self, dtype: str) -> None:
        if dtype != "int32":
            raise ValueError(
                f"reasoned-answers needs token ids as int32, but the answers are {dtype}: pass --backend-option answer=ids"
            )

    def check_labels(self, _labels: Mapping[int, object]) -> None:
        """Refuses a run if no script would be available to score the run when it ends."""
        self.program()

    def score(self, answers: Iterable[Answer], _labels: Mapping[int, object]) -> Score:
        scorer = self.program()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            log = folder / "mlperf_log_accuracy.json"
            total = program.write_log(log, answers, token_bytes=np.dtype(np.int32).itemsize)
            option = _LOG_OPTION.get(scorer.script.name, "--input-file")
            output = str(folder / "evaluated.pkl")
            printed = program.run(scorer, [option, str(log), "--output-file", output], folder)
        scores, counts = _SCORE.findall(printed), _SAMPLES.findall(printed)
        if not scores or not counts:
            raise ValueError(
                f"{VARIABLE}: the program did not print exact_match and the number of samples"
            )
        if int(counts[-1]) != total:
            raise ValueError(f"{VARIABLE}: the program scored {counts[-1]} of {total} answers")
        value = float(scores[-1])
        return Score(
            metric="reasoned-answers",
            value=value,
            unit="%",
            samples=total,
            line=f"{{'exact_match': {value:.4f}}}, scored by {scorer.version}",
            scorer=scorer.scorer,
        )


_: type[Metric] = ReasonedAnswers
__: type[HasLabelCheck] = ReasonedAnswers
