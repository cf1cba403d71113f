"""The score: from LoadGen's accuracy log and the dataset's labels, and from nothing else."""

import math
from pathlib import Path

from harness import registry
from harness.config import RunConfig
from harness.logs import ACCURACY, AccuracyLogError, read_answers
from harness.manifest import Model
from harness.types import Answer, DatasetSetup, Score


def score(outdir: Path, metric: str, answer_dtype: str, labels: dict[int, object]) -> Score:
    """Also writes accuracy.txt, in MLPerf's pattern."""
    found = compute(outdir, metric, answer_dtype, labels)
    (outdir / "accuracy.txt").write_text(found.line + "\n", encoding="utf-8")
    return found


def compute(outdir: Path, metric: str, answer_dtype: str, labels: dict[int, object]) -> Score:
    """An AccuracyLogError when the log is short: that is no score."""
    if any(label is None for label in labels.values()):
        raise ValueError("some samples have a label and some have none")
    answers = _one_each(outdir / ACCURACY, len(labels))
    found = registry.load("metric", metric)(answer_dtype).score(answers, labels)
    if not isinstance(found, Score) or not math.isfinite(found.value):
        raise ValueError(f"the metric gave {found!r}, wanted a Score with a finite value")
    return found


def labels(config: RunConfig, model: Model, dataset: str) -> dict[int, object]:
    """index -> label, asked of a dataset of our own: the measured process has ended."""
    setup = DatasetSetup(
        inputs=model.inputs,
        data_dir=config.data_dir,
        shapes=dict(config.input_shape),
        seed=config.seed or 0,
    )
    made = registry.load("dataset", dataset)(setup)
    return {i: made.label(i) for i in range(len(made))}


def _one_each(path: Path, total: int) -> list[Answer]:
    """One answer an index: multi-stream pads its last query with duplicates."""
    answers: dict[int, Answer] = {}
    for answer in read_answers(path):
        answers.setdefault(answer.sample, answer)
    if len(answers) != total or set(answers) != set(range(total)):
        raise AccuracyLogError(f"{path} answers {len(answers):,} of {total:,} samples")
    return list(answers.values())
