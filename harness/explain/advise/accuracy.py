"""Measures how much accuracy another precision costs on the model's data."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from harness.core.config.run_config import to_plain
from harness.core.units import show_percent
from harness.errors import one_line
from harness.explain.advise.content import AccuracyCost
from harness.explain.advise.subject import Job
from harness.explain.baseline import CHUNK, Baseline, Rows, Runner, Subject
from harness.loadgen.plan import InstanceGroup
from harness.machine.cores import available
from harness.models.opened.loading import open_backends
from harness.models.precision import made as precision_files
from harness.models.precision import onnx
from harness.results.agreement import distance

LEAST_AGREEMENT = 0.5
"""A file in another precision is probably wrong if the share of equal answers is below this value and the distance
between the answers exceeds MOST_DISTANCE.
"""

MOST_DISTANCE = 0.1
"""Answers whose mean relative distance is at most this value may differ only because of their precision. This limit is
used together with LEAST_AGREEMENT.
"""


def int8(job: Job) -> tuple[AccuracyCost, Path | None]:
    """Makes the int8 file in the same way as `sweep`. Returns the accuracy cost (see `_cost`) and the file; on failure,
    returns the reason as `failed`, and None.
    """
    if kinds := onnx.already_quantised(job.path):
        return {"failed": f"is already quantised ({kinds})", "quantised": True}, None
    request = {
        "config": to_plain(job.subject.config),
        "format": "onnx",
        "precision": "int8",
        "synthetic": job.subject.dataset == "synthetic",
        "calibration_dir": None,
        "scored": job.baseline.indices,
    }
    try:
        precision_file = precision_files.make(request)
        path = Path(precision_file["file"])
        cost = _cost(job.subject, job.baseline, path)
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


def _cost(subject: Subject, baseline: Baseline, path: Path) -> AccuracyCost:
    """Compares a file in another precision with the model's own file."""
    rows: Rows = []
    with ExitStack() as stack:
        spec = InstanceGroup(1, available().threads, CHUNK)
        (backend,) = open_backends(subject.config, subject.model, path, spec, stack)
        runner = Runner(subject, backend)
        for indices, inputs in baseline.chunks():
            rows += runner.answers(inputs, indices)
    agreement = baseline.agreement(rows)
    score = baseline.scored(rows)
    own = baseline.score if score is not None else None
    apart = distance(zip(map(np.asarray, baseline.rows), map(np.asarray, rows), strict=True))
    relative = apart.relative if apart else None
    drop = own - score if own is not None and score is not None else None
    no_score = "" if score is not None else "the metric cannot score such answers"
    is_random = subject.model.has_random_weights
    return {
        "samples": len(rows),
        "metric": baseline.metric,
        "unit": baseline.unit,
        "own_score": own,
        "score": score,
        "drop": -drop if drop is not None and baseline.lower_is_better else drop,
        "no_score": baseline.no_score or no_score,
        "agreement": agreement,
        "relative_l2": relative,
        "broken": "" if is_random else broken(agreement, relative, len(rows)),
    }


def broken(agreement: float, apart: float | None, samples: int) -> str:
    """Returns the reason why the file must be wrong rather than just less precise; '' if it may be right. Needs no
    labels, because it uses only the agreement and the distance.
    """
    if agreement >= LEAST_AGREEMENT or (apart is not None and apart <= MOST_DISTANCE):
        return ""
    at = "" if apart is None else f", at a relative distance of {apart:.2g}"
    return f"{show_percent(agreement, 1)} of {samples:,} answers are the same{at}"
