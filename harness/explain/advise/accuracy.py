"""What another precision costs in accuracy, on the model's own data."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.registry import plugin
from harness.errors import one_line
from harness.explain.advise.subject import Job
from harness.explain.baseline import CHUNK, Baseline, Rows, Runner, Subject
from harness.loadgen.plan import Instances
from harness.machine.cores import available
from harness.models.opened.loading import open_backends
from harness.models.precision.int8 import quantise_file
from harness.results.compare.agreement import distance
from harness.types import Array

_CALIBRATION = 64
"""Samples that int8 is calibrated with, at most."""


def int8(job: Job, made: Path) -> dict[str, Any]:
    """Makes the int8 file and says what it costs, as `compared`, or why it could not be (`failed`)."""
    feeds, are_others = _calibration(job)
    try:
        quantise_file(job.path, made, feeds)
        found = compared(job.subject, job.baseline, made)
    except Exception as e:  # noqa: BLE001 - whatever refuses it, the rest is measured
        return {"failed": one_line(e) or type(e).__name__}
    return {**found, "calibrated_on": len(feeds), "calibrated_on_others": are_others}


def _calibration(job: Job) -> tuple[list[Mapping[str, Array]], bool]:
    """Samples that the accuracy is not measured on, as long as there are any; and whether so."""
    dataset = job.baseline.open_dataset(None)
    others = sorted(set(range(len(dataset))) - set(job.baseline.indices))
    chosen = others or list(job.baseline.indices)
    chosen = chosen[:: -(-len(chosen) // _CALIBRATION)]
    feeds: list[Mapping[str, Array]] = []
    for index in chosen:  # one at a time: large ones need not fit all at once
        with plugin(f"dataset {job.subject.dataset!r}"):
            dataset.load([index])
            feeds.append({k: np.array(v) for k, v in dataset.batch([index]).inputs.items()})
            dataset.unload([index])
    return feeds, bool(others)


def compared(subject: Subject, baseline: Baseline, path: Path) -> dict[str, Any]:
    """A file of the same model in another precision, against the model's own file.

    score, own_score: in `unit`, with `metric`; None, with why (`no_score`), where there are no right
    answers. drop: how much is lost, below 0 where it is better. agreement: share of the samples with
    the same answer, in [0, 1]. relative_l2: of float answers, mean distance over mean length.
    """
    rows = _answers(subject, baseline, path)
    score = baseline.scored(rows)
    own = baseline.score if score is not None else None
    apart = distance(zip(map(np.asarray, baseline.rows), map(np.asarray, rows), strict=True))
    drop = own - score if own is not None and score is not None else None
    return {
        "samples": len(rows),
        "metric": baseline.metric,
        "unit": baseline.unit,
        "own_score": own,
        "score": score,
        "drop": -drop if drop is not None and baseline.lower_is_better else drop,
        "no_score": baseline.no_score
        or ("" if score is not None else "the metric takes no such answers"),
        "agreement": baseline.agreement(rows),
        "relative_l2": apart.relative if apart else None,
    }


def _answers(subject: Subject, baseline: Baseline, path: Path) -> Rows:
    rows: Rows = []
    with ExitStack() as stack:
        spec = Instances(1, available().threads, CHUNK)
        (backend,) = open_backends(subject.config, subject.model, path, spec, stack)
        runner = Runner(subject, backend)
        for indices, inputs in baseline.chunks():
            rows += runner.answers(inputs, indices)
    return rows
