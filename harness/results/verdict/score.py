"""Computes the score from LoadGen's accuracy log and the dataset's labels."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core import registry
from harness.core.codes import Reason
from harness.core.shown.escapes import visible
from harness.errors import PluginUnavailable, UnusableAnswer, one_line, type_and_text
from harness.loadgen.logs import (
    ACCURACY,
    ANSWERS,
    AccuracyLogError,
    LoggedAnswer,
    read_logged_answers,
)
from harness.loadgen.plan import Loaded
from harness.models.manifest import schema
from harness.models.manifest.model import Model
from harness.models.opened.loading import open_dataset
from harness.models.opened.resolved_run import ResolvedRun
from harness.results.evidence.evidence import Evidence
from harness.results.run_folder import FOLDERS
from harness.results.verdict import answers_check
from harness.results.verdict.answers_check import Compared
from harness.types import Answer, Dataset, HasAnswerShape, Score


class Scoring(NamedTuple):
    """A score, the reason why it is missing, or a failure. All fields are empty before scoring."""

    score: Score | None = None
    no_score: str = ""
    failure: Reason | None = None
    compared: Compared | None = None


def judge(
    folder: Path,
    run: ResolvedRun,
    loaded: Loaded,
    ended: Mapping[str, Any],
    compared: Evidence | None,
) -> Scoring:
    """Scores the accuracy run. An exception from a plug-in's dataset or metric becomes the failure.

    folder: the result folder. ended: the measured process's last message. compared: the run whose logged answers are
    compared.
    """
    outdir = folder / "accuracy"
    model, dataset, metric = run.model, run.dataset, run.metric
    if pointless := no_score(model, loaded, metric):
        return Scoring(no_score=pointless)
    assert metric is not None
    try:
        data = open_dataset(run.config, model, dataset, loaded.inputs)
        if data.describe().get("digest") != loaded.dataset.get("digest"):
            raise ValueError("the dataset has changed since the run loaded it")
        answer_dtype = str(ended["answer_dtype"])
        labels = {i: label_of(data, i, model, answer_dtype) for i in range(len(data))}
        if all(label is None for label in labels.values()):
            return Scoring(no_score=f"dataset {dataset!r} has no labels")
        score = compute(outdir, metric, answer_dtype, labels, ended["answer_shape"])
        check = compare_answers(folder, run.model, answer_dtype, compared, loaded)
        return Scoring(score, compared=check)
    except AccuracyLogError as e:
        return Scoring(failure=Reason("accuracy-incomplete", str(e)))
    except UnusableAnswer as e:
        return Scoring(failure=Reason("answers-unusable", f"scoring with {metric!r}: {e}"))
    except (Exception, SystemExit, KeyboardInterrupt) as e:  # noqa: BLE001 - a plug-in's
        text = f"scoring with {metric!r} raised {type_and_text(e)}"
        return Scoring(failure=Reason("accuracy-failed", text))


def compare_answers(
    folder: Path, model: Model, answer_dtype: str, run: Evidence | None, loaded: Loaded
) -> Compared | None:
    """Compares the logged answers in `run` with the accuracy run's answers; None without logged answers."""
    if run is None or not run.plan.logged_answers:
        return None
    name = ANSWERS if run.plan.harness_scheduled else ACCURACY
    columns = run.done.columns if run.done is not None else {}
    orders, indices = (columns.get(key, np.zeros(0)).tolist() for key in ("order", "index"))
    return answers_check.compare(
        folder / FOLDERS[run.plan.role] / name,
        folder / "accuracy" / ACCURACY,
        dict(zip(orders, indices, strict=True)),
        answer_dtype,
        model.accuracy.tolerance if model.accuracy else schema.TOLERANCE,
        int(loaded.dataset.get("identity_bytes", 0)),
    )


def label_of(dataset: Dataset, index: int, model: Model, answer_dtype: str = "") -> object:
    """Returns a sample's label. If the label is a text, adds the manifest's symbols for the integers in answers."""
    label = dataset.label(index)
    symbols = model.symbols(answer_dtype)
    return {"text": label, "symbols": symbols} if symbols and isinstance(label, str) else label


LEFT_OUT = ": no accuracy run, and no answers compared"
"""End of the reason for a missing score, for a run that should have used both modes."""


def no_score(model: Model, loaded: Loaded, metric: str | None) -> str:
    """Returns why an accuracy run would be pointless; empty if it is useful."""
    if model.has_random_weights:
        return "random weights"
    if loaded.synthetic:
        return "synthetic data"
    return "" if metric else "no metric: neither the manifest nor --metric names one"


def write(path: Path, score: Score) -> None:
    """Writes accuracy.txt, which contains the line that MLPerf's checker reads."""
    path.write_text(f"{score.line}\n", encoding="utf-8")


def lacking_program(metric: str | None) -> Iterator[str]:
    """Yields why the user's program for this metric cannot run; nothing for metrics without a program."""
    if metric in registry.BY_PROGRAM and not [*registry.missing_extras([("metric", metric)])]:
        missing = getattr(registry.load("metric", metric), "missing", None)
        yield from missing() if missing is not None else ()


def refusal(metric: str, ended: Mapping[str, Any]) -> str:
    """Returns why the metric cannot score answers with this shape; empty if the metric can score them, or if the shape
    is unknown.

    ended: the measured process's last message. Metrics of third-party plug-ins are not checked, because their code must
    not run in this process.
    """
    if registry.is_foreign("metric", metric):
        return ""
    try:
        scorer = registry.load("metric", metric)(str(ended["answer_dtype"]))
        if isinstance(scorer, HasAnswerShape):
            scorer.check_shape(ended["answer_shape"])
    except ValueError as e:
        return one_line(e)
    except PluginUnavailable:  # the package that the metric needs is not installed
        return ""
    return ""


def compute(
    outdir: Path,
    metric: str,
    answer_dtype: str,
    labels: dict[int, object],
    answer_shape: Sequence[int | None] | None = None,
) -> Score:
    """Returns the score over all samples. Raises an AccuracyLogError if the log lacks answers."""
    if any(label is None for label in labels.values()):
        raise ValueError("some samples have a label and some have none")
    path, total = outdir / ACCURACY, len(labels)
    rows = _first_rows(read_logged_answers(path))
    if rows.keys() != set(range(total)):
        raise AccuracyLogError(f"{path} contains answers to {len(rows):,} of {total:,} samples")
    scorer = registry.load("metric", metric)(answer_dtype)
    if answer_shape is not None and isinstance(scorer, HasAnswerShape):
        scorer.check_shape(answer_shape)
    score = scorer.score([row.answer for row in rows.values()], labels)
    if not isinstance(score, Score) or not all(
        math.isfinite(value) for value in (score.value, *score.details.values())
    ):
        raise ValueError(f"the metric returned {score!r} instead of a Score with finite values")
    if score.samples != len(labels):
        raise ValueError(f"the metric scored {score.samples:,} of {len(labels):,} samples")
    return _with_tokens(_plain(score), [row.tokens for row in rows.values()])


def _with_tokens(score: Score, counts: Sequence[int | None]) -> Score:
    """Adds the number of answer tokens, in the format that MLPerf's scripts use. MLPerf sets bounds on this number as
    well as on the score.
    """
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return score
    mean = sum(known) / len(known)
    line = f"{score.line} {{'gen_tok_len': {sum(known)}, 'tokens_per_sample': {mean:.4f}}}"
    return replace(score, line=line, details={**score.details, "tokens_per_sample": mean})


def of_some(
    answers: Iterable[Answer], metric: str, answer_dtype: str, labels: Mapping[int, object]
) -> Score:
    """Returns the score over the answered samples, using the first answer to each. Only some samples are answered in an
    audit.
    """
    first: dict[int, Answer] = {}
    for answer in answers:
        first.setdefault(answer.sample, answer)
    scorer = registry.load("metric", metric)(answer_dtype)
    score: Score = scorer.score(list(first.values()), {i: labels[i] for i in first})
    return _plain(score)


def _plain(score: Score) -> Score:
    """Returns the score with Python floats instead of NumPy's, and with each text on one line."""
    details = {visible(name): float(value) for name, value in score.details.items()}
    return replace(
        score,
        metric=_one_line(score.metric),
        unit=_one_line(score.unit),
        line=_one_line(score.line),
        scorer=_one_line(score.scorer),
        value=float(score.value),
        details=details,
    )


def _one_line(text: str) -> str:
    return visible(text.replace("\n", " "))


def _first_rows(rows: Iterable[LoggedAnswer]) -> dict[int, LoggedAnswer]:
    """Returns the first answer to each sample. Later answers exist because multi-stream pads its last query with
    duplicates.
    """
    first: dict[int, LoggedAnswer] = {}
    for row in rows:
        first.setdefault(row.answer.sample, row)
    return first
