"""Measures the effect of each mistake in preparing the input, on real samples.

Each change is made alone against the baseline, which is the model as its manifest declares it.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError, HarnessError, one_line
from harness.explain.baseline import Baseline, Rows, Runner, Subject, open_runner
from harness.explain.pitfalls.changes import (
    RAW_WHITE,
    ArrayChange,
    BackendChange,
    Change,
    Impossible,
    StepChange,
    array_changes,
    backend_changes,
    step_changes,
)
from harness.run.supervisor.progress import end_loading, show_measured
from harness.types import Array


class Row(NamedTuple):
    """Effect of one change; None: not measured.
    differing: share of the input's values that differ, in [0, 1].
    largest, mean: absolute difference, in the input's own unit.
    agreement: share of the samples with the baseline's answer, in [0, 1].
    score: in the metric's unit.
    verdict: `dangerous`: answers change. `small`: the input changes, the answers do not.
    `harmless`: the input is the same. `differs`: no trained model can tell whether the change
    matters.
    """

    kind: str
    name: str
    differing: float
    largest: float
    mean: float
    agreement: float | None
    score: float | None
    verdict: str


@dataclass(frozen=True)
class Report:
    """rows: the most dangerous first. impossible: changes that could not be measured, with
    reasons.
    """

    subject: Subject
    samples: int
    span: tuple[float, float]
    metric: str | None
    score: float | None
    no_score: str
    rows: tuple[Row, ...]
    impossible: tuple[Impossible, ...]


@dataclass
class _Difference:
    """Difference of two inputs, summed over chunks."""

    values: int = 0
    differing: int = 0
    largest: float = 0.0
    total: float = 0.0

    def add(self, ours: Array, theirs: Array) -> None:
        if ours.shape != theirs.shape:
            shape, expected = ("x".join(map(str, a.shape[1:])) for a in (theirs, ours))
            raise ConfigError(f"the changed input is {shape}, expected {expected}")
        apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        self.values += apart.size
        self.differing += int(np.count_nonzero(apart))
        self.largest = max(self.largest, float(apart.max()))
        self.total += float(apart.sum())


def measure(subject: Subject, samples: int) -> Report:
    """samples: most samples used. Raises HarnessError where the baseline itself fails."""
    with ExitStack() as stack:
        runner = open_runner(subject, stack) if subject.has_answers else None
        base = Baseline(subject, samples, runner)
        changes = list(_changes(base))
        rows = []
        for done, change in enumerate(changes):
            show_measured(done, len(changes))
            rows.append(change if isinstance(change, Impossible) else _measured(base, change))
        end_loading()
    return Report(
        subject=subject,
        samples=len(base.indices),
        span=base.spans[base.target],
        metric=base.metric,
        score=base.score,
        no_score=base.no_score,
        rows=tuple(sorted((one for one in rows if isinstance(one, Row)), key=_danger)),
        impossible=tuple(one for one in rows if isinstance(one, Impossible)),
    )


def _danger(row: Row) -> tuple[float, float, str, str]:
    agreement = 1.0 if row.agreement is None else row.agreement
    return agreement, -row.mean, row.kind, row.name


def _changes(base: Baseline) -> Iterator[Change | Impossible]:
    subject, name = base.subject, base.target
    declared = base.decoded_by
    if declared:
        yield from step_changes(declared)
    else:
        reason = f"dataset {subject.dataset!r} makes no input from image files"
        for kind in ("decoder", "resize", "crop"):
            yield Impossible(kind, "any other", reason)
    dtype = next(spec.dtype for spec in base.inputs if spec.name == name)
    white = RAW_WHITE.get(subject.dataset, 255.0)
    yield from array_changes(base.shapes[name], dtype, base.spans[name], declared, white)
    if base.runner is not None:
        yield from backend_changes(subject.model, subject.config.backend)


def _measured(base: Baseline, change: Change) -> Row | Impossible:
    try:
        with ExitStack() as stack:
            runner, difference = base.runner, _Difference()
            rows: Rows = []
            if isinstance(change, BackendChange):
                runner = open_runner(_on(base.subject, change), stack)
            for indices, ours, theirs in _pairs(base, change):
                difference.add(ours[base.target], theirs[base.target])
                rows += runner.answers(theirs, indices) if runner else []
    except HarnessError as e:
        if isinstance(e.__cause__, KeyboardInterrupt):  # inside a plug-in: the user stops it all
            raise KeyboardInterrupt from e
        message = one_line(str(e).splitlines()[0])
        folder = base.subject.config.data_dir
        reason = message.replace(f"{folder}/", "") if folder else message
        return Impossible(change.kind, change.name, reason)
    return _row(base, change, difference, rows, runner)


def _row(
    base: Baseline, change: Change, difference: _Difference, rows: Rows, runner: Runner | None
) -> Row:
    agreement = base.agreement(rows) if runner else None
    trained = not base.subject.model.has_random_weights
    return Row(
        kind=change.kind,
        name=change.name,
        differing=difference.differing / difference.values,
        largest=difference.largest,
        mean=difference.total / difference.values,
        agreement=agreement,
        score=base.scored(rows),
        verdict=_verdict(difference, agreement if trained or agreement != 1 else None),
    )


def _verdict(difference: _Difference, agreement: float | None) -> str:
    if agreement is not None and agreement < 1:
        return "dangerous"
    if not difference.differing:
        return "harmless"
    return "differs" if agreement is None else "small"


def _on(subject: Subject, change: BackendChange) -> Subject:
    config = replace(
        subject.config, backend=change.backend, backend_option=change.options, provider=None
    )
    return subject._replace(config=config)


def _pairs(
    base: Baseline, change: Change
) -> Iterator[tuple[list[int], Mapping[str, Array], Mapping[str, Array]]]:
    """Yields (indices, declared inputs, changed inputs) of a few samples at a time."""
    name = base.target
    if isinstance(change, StepChange):
        dataset = base.open_dataset({**base.subject.steps, name: change.steps})
        both = zip(base.chunks(), base.chunks(dataset), strict=True)
        yield from ((list(i), ours, theirs) for (i, ours), (_, theirs) in both)
        return
    for indices, ours in base.chunks():
        theirs = ours
        if isinstance(change, ArrayChange):
            theirs = {**ours, name: change.apply(ours[name])}
        yield list(indices), ours, theirs
