"""What another precision costs in accuracy, on the model's own data."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from harness.analysis.baseline import CHUNK, Baseline, Rows, Runner, Subject
from harness.analysis.settings import Setting
from harness.cores import available
from harness.layout import Instances
from harness.loading import open_backends


def compared(subject: Subject, baseline: Baseline, path: Path, setting: Setting) -> dict[str, Any]:
    """A file of the same model in another precision, against the model's own file.

    score, own_score: in `unit`, with `metric`; None, with why (`no_score`), where there are no right
    answers. drop: how much is lost, below 0 where it is better. agreement: share of the samples with
    the same answer, in [0, 1]. relative_l2: of float answers, mean distance over mean length.
    """
    rows = _answers(subject, baseline, path)
    score = baseline.scored(rows)
    own = baseline.score if score is not None else None
    drop = own - score if own is not None and score is not None else None
    return {
        "precision": setting.precision,
        "samples": len(rows),
        "metric": baseline.metric,
        "unit": baseline.unit,
        "own_score": own,
        "score": score,
        "drop": -drop if drop is not None and baseline.lower_is_better else drop,
        "no_score": baseline.no_score
        or ("" if score is not None else "the metric takes no such answers"),
        "agreement": baseline.agreement(rows),
        "relative_l2": _relative_l2(baseline.rows, rows),
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


def _relative_l2(ours: Sequence[Any], theirs: Sequence[Any]) -> float | None:
    """None where answers are labels, or of other shapes."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(ours, theirs, strict=True)]
    if not pairs or any(a.dtype.kind != "f" or a.shape != b.shape for a, b in pairs):
        return None
    length = float(np.mean([np.linalg.norm(a.astype(np.float64)) for a, _ in pairs]))
    apart = float(np.mean([np.linalg.norm(a.astype(np.float64) - b) for a, b in pairs]))
    return apart / length if length else None
