"""Scores the answers in the RAG benchmark e2e-rag-qna with MLCommons' accuracy_eval.py, in which a language model
judges each answer.

The program runs unmodified. The environment variable RAG_JUDGE contains the program's command, such as `python
~/inference/e2e-rag/accuracy_eval.py --judge_service_url URL --judge_model NAME`.
Source: mlcommons/inference b66003e, e2e-rag/accuracy_eval.py.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.accuracy.parts import program
from harness.accuracy.parts.text import texts
from harness.types import Answer, HasLabelCheck, Metric, Score

VARIABLE, SCRIPT = "RAG_JUDGE", "accuracy_eval.py"
_ACCURACY = re.compile(r"Accuracy:\s*([\d.]+)")
_SHARES = ("retrieval_precision", "retrieval_recall", "retrieval_f1")


class RagAnswers(program.ByProgram):
    """Percentage of answers that the judge accepts. An answer is a text, or JSON with `answer` and `retrieved_urls`.

    If the answers contain `retrieved_urls`, the retrieval is scored, too. A label is a mapping with `text`, `question`
    and `file` (the TSV file that contains the questions).
    """

    variable, script = VARIABLE, SCRIPT

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Refuses labels that come from other datasets. Also refuses a run if no judge would be available to score the
        run when it ends.
        """
        for index, label in labels.items():
            if not isinstance(label, Mapping) or not {"text", "question", "file"} <= {*label}:
                raise ValueError(
                    f"rag_answers needs the questions of dataset `frames`, but the label of sample {index} is {label!r:.40}"
                )
        self.program()

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        judge = self.program()
        ordered = list(answers)
        results = {
            str(answer.sample): {"query": labels[answer.sample]["question"], **_answer_in(text)}
            for answer, (text, _) in zip(ordered, texts(ordered, labels, self._dtype), strict=True)
        }
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            (here / "results.json").write_text(json.dumps(results), encoding="utf-8")
            arguments = [
                *("--log_dir", folder, "--results_file", str(here / "results.json")),
                *("--dataset_path", labels[ordered[0].sample]["file"]),
                *("--output", str(here / "details.json")),
            ]
            program.run(judge, arguments, here)
            value, details = _read(here)
        judged = details.pop("total_queries", 0)
        if judged != len(ordered):
            raise ValueError(f"{VARIABLE}: the program judged {judged:g} of {len(ordered)} answers")
        return Score(
            metric="rag_answers",
            value=value,
            unit="%",
            samples=len(ordered),
            line=f"Accuracy: {value:.4f}, judged by {judge.version}",
            details=details,
            scorer=judge.scorer,
        )


def _answer_in(text: str) -> dict[str, object]:
    """Returns `answer` and `retrieved_urls` from the model's reply."""
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if isinstance(content, dict) and isinstance(content.get("answer"), str):
            urls = content.get("retrieved_urls")
            return {
                "answer": content["answer"],
                "retrieved_urls": urls if isinstance(urls, list) else [],
            }
    return {"answer": text, "retrieved_urls": []}


def _read(folder: Path) -> tuple[float, dict[str, float]]:
    """Returns the accuracy in percent, and the numbers that the program's details contain."""
    try:
        match = _ACCURACY.match((folder / "accuracy.txt").read_text(encoding="utf-8"))
        details = json.loads((folder / "details.json").read_text(encoding="utf-8"))
        return float(match[1] if match else "missing"), {
            name: float(details[name]) for name in ("total_queries", *_SHARES)
        }
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{VARIABLE}: the program wrote no accuracy: {e}") from e


_: type[Metric] = RagAnswers
__: type[HasLabelCheck] = RagAnswers
