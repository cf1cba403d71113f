"""Measures how much accuracy another precision costs, on the model's own data."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.config.run_config import to_plain
from harness.core.units import show_percent
from harness.errors import one_line
from harness.explain.advise.subject import Job
from harness.explain.baseline import CHUNK, Baseline, Rows, Runner, Subject
from harness.loadgen.plan import InstanceGroup
from harness.machine.cores import available
from harness.models.opened.loading import open_backends
from harness.models.precision import made as precision_files
from harness.models.precision import onnx
from harness.results.agreement import distance

LEAST_AGREEMENT = 0.5
"""Share of equal answers below which a file of another precision is doubted."""

MOST_APART = 0.1
"""Relative distance of its answers up to which it is not: numbers differ, and little."""


def int8(job: Job) -> tuple[dict[str, Any], Path | None]:
    """Makes the int8 file as `sweep` makes it.
    Returns (its accuracy cost as `compared` gives it, the file), or the reason (`failed`) and no
    file.
    """
    if kinds := onnx.already_quantised(job.path):
        return {"failed": f"is quantised already ({kinds})", "quantised": True}, None
    try:
        precision_file = precision_files.make(_request(job))
        path = Path(precision_file["file"])
        cost = compared(job.subject, job.baseline, path)
    except Exception as e:  # noqa: BLE001 - whatever refuses it, the rest is measured
        return {"failed": one_line(e) or type(e).__name__}, None
    recipe = precision_file["recipe"]
    return {
        **cost,
        "sha256": precision_file["sha256"],
        "quantisation_samples": recipe["samples_count"],
        "quantisation_samples_are_scored": recipe["samples_are_scored"],
        "about": precision_file["about"],
    }, path


def _request(job: Job) -> dict[str, Any]:
    subject = job.subject
    return {
        "config": to_plain(subject.config),
        "format": "onnx",
        "precision": "int8",
        "synthetic": subject.dataset == "synthetic",
        "calibration_dir": None,
        "scored": job.baseline.indices,
    }


def compared(subject: Subject, baseline: Baseline, path: Path) -> dict[str, Any]:
    """Compares a file in another precision with the model's own file.
    score, own_score: in `unit`, by `metric`; None with the reason in `no_score`.
    drop: own_score - score.
    agreement: share of the samples with the same answer, in [0, 1].
    relative_l2: mean distance of float answers over their mean length.
    broken: why the file no longer answers like the model; "" where it may.
    """
    rows = _answers(subject, baseline, path)
    agreement = baseline.agreement(rows)
    score = baseline.scored(rows)
    own = baseline.score if score is not None else None
    apart = distance(zip(map(np.asarray, baseline.rows), map(np.asarray, rows), strict=True))
    relative = apart.relative if apart else None
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
        "agreement": agreement,
        "relative_l2": relative,
        "broken": ""
        if subject.model.has_random_weights
        else broken(agreement, relative, len(rows)),
    }


def broken(agreement: float, apart: float | None, samples: int) -> str:
    """Without labels, agreement and distance together tell a lossy file from another function."""
    if agreement >= LEAST_AGREEMENT or (apart is not None and apart <= MOST_APART):
        return ""
    at = "" if apart is None else f", at a relative distance of {apart:.2g}"
    return f"{show_percent(agreement, 1)} of {samples:,} answers are the same{at}"


def _answers(subject: Subject, baseline: Baseline, path: Path) -> Rows:
    rows: Rows = []
    with ExitStack() as stack:
        spec = InstanceGroup(1, available().threads, CHUNK)
        (backend,) = open_backends(subject.config, subject.model, path, spec, stack)
        runner = Runner(subject, backend)
        for indices, inputs in baseline.chunks():
            rows += runner.answers(inputs, indices)
    return rows
