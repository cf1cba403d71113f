"""Opens a model and a dataset as the model's manifest declares them. Changes are compared with this baseline."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError, refuse, type_and_text
from harness.loadgen.answers import Ragged
from harness.loadgen.plan import InstanceGroup
from harness.machine.cores import available
from harness.models.manifest.defaults import default_metric
from harness.models.manifest.hook import load_hook, postprocessor_of
from harness.models.manifest.model import Model
from harness.models.manifest.requirements import problems, read_environment
from harness.models.manifest.schema import TOLERANCE
from harness.models.opened.loading import (
    FORMAT_OPTION,
    batch_in_file,
    inputs_of,
    model_file,
    open_backends,
    open_dataset,
)
from harness.models.opened.remote import remote_problems
from harness.models.steps.postprocess import check, in_frames, wrong_count
from harness.results.verdict.score import label_of
from harness.types import Answer, Array, Backend, Batch, Dataset, Score, Step, TensorSpec

CHUNK = 32
"""At most this many samples are in memory at a time, so that a dataset of any size can be used."""

IMAGE_STEPS = frozenset(("decode", "resize", "crop", "normalise", "layout"))
_CLASSIFIES = ("image-classification", "text-classification", "table", "none")

Rows = list[Array]
"""One answer for each sample."""


class Subject(NamedTuple):
    """One model on one dataset.
    steps: preprocessing steps by input, either declared by the model or taken from another model.
    notes: notes for the reader of the results.
    label: description of the dataset if its name is ambiguous.
    """

    config: RunConfig
    model: Model
    dataset: str
    steps: Mapping[str, tuple[Step, ...]]
    notes: tuple[str, ...] = ()
    label: str = ""

    @property
    def has_answers(self) -> bool:
        """False for the null backend. With the null backend, only inputs can be compared."""
        return self.config.backend != "null"


class Runner:
    """Turns inputs into answers with a backend and the model's postprocessing."""

    def __init__(self, subject: Subject, backend: Backend) -> None:
        model = subject.model
        self.inputs = inputs_of(model, backend)
        self._backend = backend
        self._name = subject.config.backend
        self.fixed = batch_in_file(backend, self.inputs)
        """The batch size that the file requires, or None if the file takes any number of samples."""
        hook = load_hook(model, subject.config.hook)
        name = model.output.name if model.output else None
        self._check = partial(check, model.postprocess, name, hook)
        self._is_checked = False
        self._has_states = model.has_states
        self._postprocess = postprocessor_of(model.output, hook, has_states=model.has_states)

    def answers(self, inputs: Mapping[str, Array], indices: Sequence[int]) -> Rows:
        rows: Rows = []
        with plugin(f"backend {self._name!r}: infer"):
            most = self.fixed or CHUNK
            for at in range(0, len(indices), most):
                part = slice(at, at + most)
                chosen = indices[part]
                batch = Batch(
                    len(chosen), {k: np.ascontiguousarray(v[part]) for k, v in inputs.items()}
                )
                outputs = self._backend.infer(batch)
                if not self._is_checked:
                    rows_of = in_frames(outputs, chosen) if self._has_states else (outputs, chosen)
                    self._check(rows_of[0], batch, rows_of[1])
                    self._is_checked = True
                answers = self._postprocess.answers(outputs, chosen)
                if answers.shape == ():
                    raise ConfigError(wrong_count(1, len(chosen)))
                rows += answers.rows if isinstance(answers, Ragged) else list(answers)
        if len(rows) != len(indices):
            raise ConfigError(wrong_count(len(rows), len(indices)))
        return rows


def open_runner(subject: Subject, stack: ExitStack) -> Runner:
    """Opens the model; `stack` closes it. Raises HarnessError if it cannot be opened."""
    config, model = subject.config, subject.model
    refuse(list(remote_problems(config, "pitfalls")))
    entry = registry.BACKENDS.get(config.backend)
    if model.manifest is not None:
        missing = list(
            problems(
                model.name,
                model.manifest.requires,
                read_environment(entry.needs if entry else None),
            )
        )
        if missing:
            raise ConfigError("\n".join(missing))
    format_name = dict(config.backend_option).get(FORMAT_OPTION)
    formats = getattr(registry.load("backend", config.backend), "formats", ())
    model.obtain((format_name,) if format_name else formats, say)
    spec = InstanceGroup(1, available().threads, CHUNK)
    (backend,) = open_backends(config, model, model_file(config, model), spec, stack)
    return Runner(subject, backend)


class Baseline:
    """The declared inputs and their answers.

    indices: the chosen samples, evenly spread over the dataset. announce: called with the number of samples before the
    first answer.
    """

    def __init__(
        self,
        subject: Subject,
        samples: int,
        runner: Runner | None,
        announce: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.subject = subject
        self.runner = runner
        self.inputs: tuple[TensorSpec, ...] = runner.inputs if runner else subject.model.inputs
        self._dataset = self.open_dataset(None)
        total = len(self._dataset)
        self.indices = (
            [i * total // samples for i in range(samples)]
            if samples < total
            else list(range(total))
        )
        announce(len(self.indices))
        self.spans: dict[str, tuple[float, float]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.rows: Rows = []
        self.unit, self.lower_is_better = "", False  # the score's unit is set with the first score
        for indices, inputs in self.chunks():
            self._look_at(inputs)
            if runner:
                self.rows += runner.answers(inputs, indices)
        with plugin(f"dataset {subject.dataset!r}: label()"):
            self._labels = {i: label_of(self._dataset, i, subject.model) for i in self.indices}
        self.score, self.no_score = self._first_score()

    def open_dataset(self, steps: Mapping[str, tuple[Step, ...]] | None) -> Dataset:
        """Opens the dataset. steps: steps that replace the baseline's steps; None uses the baseline's steps."""
        subject = self.subject
        if steps is None and subject.steps != subject.model.steps:
            steps = subject.steps
        return open_dataset(
            subject.config, subject.model, subject.dataset, self.inputs, steps=steps
        )

    def chunks(
        self, dataset: Dataset | None = None
    ) -> Iterator[tuple[Sequence[int], Mapping[str, Array]]]:
        """Yields the indices and inputs of a few samples at a time, in the baseline's order."""
        dataset = dataset or self._dataset
        most = self.subject.model.manifest.max_batch if self.subject.model.manifest else None
        size = min(CHUNK, most or CHUNK)
        for at in range(0, len(self.indices), size):
            indices = self.indices[at : at + size]
            with plugin(f"dataset {self.subject.dataset!r}"):
                dataset.load(indices)
                inputs = dataset.batch(indices).inputs
                dataset.unload(indices)
            yield indices, inputs

    @property
    def target(self) -> str:
        """The input to change: the first image input, or the first input if the model has no image input."""
        images = [s.name for s in self.inputs if self.subject.steps.get(s.name)]
        images += [name for name, shape in self.shapes.items() if len(shape) == 4]
        if not self.shapes:
            raise ConfigError("no input of the model is numeric: there is nothing to change")
        return next(iter([*images, *self.shapes]))

    @property
    def decoded_by(self) -> tuple[Step, ...]:
        """The steps that decode image files into the target. The result is empty if the dataset does not decode image
        files.
        """
        with plugin(f"dataset {self.subject.dataset!r}: describe()"):
            applied = self._dataset.describe().get("steps")
        steps = self.subject.steps.get(self.target, ())
        if not isinstance(applied, Mapping) or not {step.name for step in steps} <= IMAGE_STEPS:
            return ()
        return steps

    def agreement(self, rows: Rows) -> float:
        """Returns the share of answers that equal the baseline's answers, in [0, 1].

        Large answers are compared part by part.
        """
        return float(np.mean([self._same(a, b) for a, b in zip(self.rows, rows, strict=True)]))

    def scored(self, rows: Rows) -> float | None:
        """Returns the score in the metric's unit, or None if the baseline has no score or the metric refuses these
        answers.
        """
        if self.score is None:
            return None
        try:
            return self._score(rows)
        except Exception:  # noqa: BLE001 - a metric's; wrong inputs give answers it cannot take
            return None

    @property
    def metric(self) -> str | None:
        return self.subject.config.metric or default_metric(self.subject.model)

    def _look_at(self, inputs: Mapping[str, Array]) -> None:
        for name, rows in inputs.items():
            # An input of strings has no range, so its values are not changed.
            if rows.dtype.kind not in "biuf":
                continue
            low, high = self.spans.get(name, (np.inf, -np.inf))
            self.spans[name] = min(low, float(rows.min())), max(high, float(rows.max()))
            self.shapes[name] = rows.shape

    def _first_score(self) -> tuple[float | None, str]:
        if self.runner is None:
            return None, "no model answers"
        if self.subject.model.has_random_weights:
            return None, "random weights"
        if any(label is None for label in self._labels.values()):
            return None, "no labels"
        if self.metric is None:
            return None, "the model declares no metric"
        try:
            return self._score(self.rows), ""
        except HarnessError:
            raise
        except Exception as e:  # noqa: BLE001 - a metric's
            return None, f"{self.metric} raised {type_and_text(e)}"

    def _score(self, rows: Rows) -> float:
        metric = registry.load("metric", str(self.metric))(str(rows[0].dtype))
        answers = [
            Answer(i, np.ascontiguousarray(row).tobytes())
            for i, row in zip(self.indices, rows, strict=True)
        ]
        score: Score = metric.score(answers, self._labels)
        self.unit, self.lower_is_better = score.unit, score.lower_is_better
        return float(score.value)

    def _same(self, ours: Array, theirs: Array) -> float:
        ours, theirs = self._top1(ours), self._top1(theirs)
        if ours.shape != theirs.shape or not ours.size:
            return float(ours.shape == theirs.shape)
        if ours.dtype.kind == "f":
            accuracy = self.subject.model.accuracy
            limit = accuracy.tolerance if accuracy else TOLERANCE
            return float(np.isclose(ours, theirs, rtol=limit, atol=limit).mean())
        return float((ours == theirs).mean())

    def _top1(self, row: Array) -> Array:
        """Returns the top label if a row ranks or scores several labels, otherwise the row."""
        row = np.asarray(row)
        model = self.subject.model
        if model.postprocess and model.postprocess[-1].name == "topk":
            return row[:1]
        scores = row.dtype.kind == "f" and row.ndim == 1 and len(row) > 1
        if scores and (model.manifest is None or model.manifest.task in _CLASSIFIES):
            return np.asarray(row.argmax())
        return row
