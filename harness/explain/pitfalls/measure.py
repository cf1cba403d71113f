"""Measures the effect of each mistake in preparing the input, on real samples.

Each change is compared separately with the baseline, which is the model as its manifest declares it.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from harness.core.console import say
from harness.core.units import counted, show_wait
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
from harness.run.progress import Pace
from harness.types import Array, show_shape

FEW = 100
"""With fewer samples than this, a note warns that agreement and accuracy change in steps of more than one percent."""


class Row(NamedTuple):
    """Effect of one change, as stored in pitfalls.json."""

    kind: str
    change: str
    input_share_differing: float
    """Share of the input's values that differ, in [0, 1]."""
    input_max_difference: float | None
    """Largest difference in the input's unit. An infinite or undefined difference is None, because JSON cannot
    represent it.
    """
    input_mean_difference: float | None
    agreement: float | None
    """Share of the samples with the same answer as in the baseline, in [0, 1]. None if no answers are compared."""
    score: float | None
    """Score in the metric's unit."""
    verdict: str
    """`dangerous`: the score gets worse by more than its error. `changed`: answers change, but the score does not get
    worse by more than its error. `small`: only the input changes. `harmless`: neither the input nor an answer changes.
    `differs`: answers change, but no score shows whether this matters.
    """


@dataclass
class _Difference:
    """Difference between two inputs, summed over chunks."""

    values: int = 0
    differing: int = 0
    largest: float = 0.0
    total: float = 0.0

    def add(self, ours: Array, theirs: Array) -> None:
        if ours.shape != theirs.shape:
            shape, expected = (show_shape(a.shape[1:]) for a in (theirs, ours))
            raise ConfigError(f"the changed input is {shape}, expected {expected}")
        apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        self.values += apart.size
        self.differing += int(np.count_nonzero(apart))
        self.largest = max(self.largest, float(apart.max()))
        self.total += float(apart.sum())


def measure(subject: Subject, samples: int) -> dict[str, Any]:
    """Returns an entry of `reports` in pitfalls.json, with the most dangerous change first.

    samples: maximum number of samples. Raises HarnessError if the baseline itself fails.
    """
    with ExitStack() as stack:
        runner = open_runner(subject, stack) if subject.has_answers else None
        base = Baseline(subject, samples, runner, lambda count: _announce(subject, count))
        changes = list(_changes(base))
        rows: list[Row | Impossible] = []
        pace = Pace()
        for i, change in enumerate(changes, 1):
            to_come = [0.0 for one in changes[i - 1 :] if not isinstance(one, Impossible)]
            left_s, begun_s = pace.left_s(to_come), time.monotonic()
            left = f"; about {show_wait(left_s)} left" if left_s else ""
            say(f"pitfalls: {i} of {len(changes)}: {change.kind}, {change.name}{left}")
            if isinstance(change, Impossible):
                rows.append(change)
                continue
            rows.append(_measured(base, change))
            pace.ended(time.monotonic() - begun_s)
    notes, count = list(subject.notes), len(base.indices)
    if count < FEW and subject.has_answers:
        notes.append(f"{count} samples are too few for unchanged answers to prove much")
    return {
        "model": subject.model.name,
        "backend": subject.config.backend if subject.has_answers else None,
        "dataset": subject.label or subject.dataset,
        "notes": notes,
        "samples": count,
        "steps": {
            name: [{step.name: dict(step.options)} for step in steps]
            for name, steps in subject.steps.items()
        },
        "input_range": list(base.spans[base.target]),
        "metric": base.metric,
        "score": base.score,
        "no_score": base.no_score,
        "changes": [
            row._asdict() for row in sorted((r for r in rows if isinstance(r, Row)), key=_danger)
        ],
        "not_possible": [one._asdict() for one in rows if isinstance(one, Impossible)],
    }


def _announce(subject: Subject, count: int) -> None:
    say(f"pitfalls: {subject.model.name}: the baseline, {counted(count, 'sample')}")


def _danger(row: Row) -> tuple[float, float, str, str]:
    agreement = 1.0 if row.agreement is None else row.agreement
    mean = math.inf if row.input_mean_difference is None else row.input_mean_difference
    return agreement, -mean, row.kind, row.change


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
                config = replace(
                    base.subject.config,
                    backend=change.backend,
                    backend_option=change.options,
                    provider=None,
                    provider_option=(),
                )
                runner = open_runner(base.subject._replace(config=config), stack)
            for indices, ours, theirs in _pairs(base, change):
                difference.add(ours[base.target], theirs[base.target])
                rows += runner.answers(theirs, indices) if runner else []
    except HarnessError as e:
        if isinstance(e.__cause__, KeyboardInterrupt):  # Ctrl-C in a plug-in also ends the command
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
    score = base.scored(rows)
    return Row(
        kind=change.kind,
        change=change.name,
        input_share_differing=difference.differing / difference.values,
        input_max_difference=_finite(difference.largest),
        input_mean_difference=_finite(difference.total / difference.values),
        agreement=agreement,
        score=score,
        verdict=_verdict(base, difference.differing > 0, agreement, score),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _verdict(
    base: Baseline, is_other_input: bool, agreement: float | None, score: float | None
) -> str:
    is_other_answer = agreement is not None and agreement < 1
    if not is_other_input and not is_other_answer:
        return "harmless"
    if base.subject.model.has_random_weights or agreement is None:
        return "differs"
    if not is_other_answer:
        return "small"
    if base.score is None:
        return "differs"
    return "dangerous" if _falls(base, agreement, score) else "changed"


def _falls(base: Baseline, agreement: float, score: float | None) -> bool:
    """Whether the score gets worse by more than twice its standard error, or whether the metric refuses the changed
    answers. Only changed answers affect the score, so the standard error is the square root of the number of changed
    answers.
    """
    if score is None or base.score is None:
        return True
    fall = score - base.score if base.lower_is_better else base.score - score
    whole = 100.0 if base.unit == "%" else abs(base.score) or 1.0
    count = len(base.indices)
    return fall / whole * count > 2 * math.sqrt((1 - agreement) * count)


def _pairs(
    base: Baseline, change: Change
) -> Iterator[tuple[list[int], Mapping[str, Array], Mapping[str, Array]]]:
    """Yields the indices, declared inputs and changed inputs of a few samples at a time."""
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
