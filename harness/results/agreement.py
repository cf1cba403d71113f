"""Compares logged answers by element, label and distance, and compares the answers of two accuracy runs.

The answer check (harness/results/verdict/answers_check.py), `compare`, both sweeps of settings, `advise` and the audits
use this module.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.files import parse_json
from harness.core.number_types import BITS
from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, AccuracyLogError, read_answers
from harness.results.run_folder import RUN
from harness.types import Array


def decode(payload: bytes, dtype: np.dtype[Any] | str) -> Array:
    """Returns the logged answer as (n,) elements, or as raw bytes if the answer's length is not a multiple of the
    element size.
    """
    kind = np.dtype(dtype)
    return np.frombuffer(payload, kind if len(payload) % kind.itemsize == 0 else np.uint8)


def is_first_equal(payload: bytes, expected: bytes, dtype: str) -> bool:
    """Returns whether both answers start with the same element; MLPerf's TEST01 compares nothing else."""
    size = np.dtype(dtype).itemsize
    if min(len(payload), len(expected)) < size:
        return len(payload) == len(expected)
    return bool(decode(payload[:size], dtype)[0] == decode(expected[:size], dtype)[0])


def has_same_label(ours: Array, theirs: Array) -> bool:
    """Returns whether both answers have the same label. If an answer consists of several scores, the label is the
    position of the largest score; otherwise the label is the answer itself.
    """
    if ours.dtype.kind == theirs.dtype.kind == "f" and ours.size == theirs.size > 1:
        return bool(ours.argmax() == theirs.argmax())
    return bool(np.array_equal(ours, theirs))


class Distance(NamedTuple):
    mean: float
    """Mean Euclidean distance between two answers."""
    relative: float | None
    """`mean` divided by the mean Euclidean norm of the first side's answers; None if all of the first side's answers
    are zero.
    """


def distance(pairs: Iterable[tuple[Array, Array]]) -> Distance | None:
    """Returns None if `pairs` is empty, or if the two answers in a pair are not floats of the same shape."""
    distances, lengths = [], []
    for ours, theirs in pairs:
        if not ours.dtype.kind == theirs.dtype.kind == "f" or ours.shape != theirs.shape:
            return None
        wide = ours.astype(np.float64).ravel()
        distances.append(float(np.linalg.norm(wide - theirs.astype(np.float64).ravel())))
        lengths.append(float(np.linalg.norm(wide)))
    if not distances:
        return None
    mean, length = float(np.mean(distances)), float(np.mean(lengths))
    return Distance(mean, mean / length if length else None)


class Limits(NamedTuple):
    """Limits on the differences between two backends that run the same model."""

    share: float
    """The backends disagree if the share of samples with matching answers is smaller than this value."""
    far: float
    """Two float answers match if their relative distance is at most this value."""


_EXACT = Limits(share=0.99, far=0.01)
"""Limits for two backends that compute in float32. A different order of additions changes the sixth digit, and may
change the label if two scores are nearly equal. On the logits of the digits model, ONNX Runtime and OpenVINO differ by
1.5e-7.
"""

_ROUNDED = Limits(share=0.95, far=0.1)
"""Limits for a backend with a lower precision. bfloat16 keeps three significant digits and int8 keeps two, and
frameworks round at different points. On the logits of the digits model, PyTorch in bfloat16 and ONNX Runtime in float32
differ by 0.002.
"""


def limits(precision: str) -> Limits:
    """Returns the limits for a precision. A precision that harness/core/number_types.py does not list gets the limits
    for float32.
    """
    return _ROUNDED if BITS.get(precision, 64) < BITS["float32"] else _EXACT


class Agreement(NamedTuple):
    """Compares two runs' answers to the same samples."""

    samples: int
    """Number of samples that both runs answered."""
    identical: int
    """Number of samples for which both answers are the same bytes."""
    top1: float
    """Share of samples with the same label, in [0, 1]."""
    l2: float | None
    """`Distance.mean`; None if the answers are labels."""
    relative_l2: float | None
    """`Distance.relative`; None if the answers are labels."""
    alike: float
    """Share of samples whose two answers are equal or differ by at most `Limits.far`, in [0, 1]."""


def agreement(before: Path, after: Path, far: float = _EXACT.far) -> Agreement | None:
    """Compares two run folders. Returns None if a folder has no answers, or if the runs share no sample."""
    ours, theirs = _answers(before / "accuracy"), _answers(after / "accuracy")
    if ours is None or theirs is None:
        return None
    (payloads, kind), (others, other_kind) = ours, theirs
    common = [sample for sample in payloads if sample in others]
    if not common:
        return None
    return of_pairs(
        [(decode(payloads[s], kind), decode(others[s], other_kind)) for s in common], far
    )


def of_pairs(pairs: Sequence[tuple[Array, Array]], far: float = _EXACT.far) -> Agreement:
    """Compares the two sides' answers. pairs: the two answers to each sample; must not be empty."""
    overall = distance(pairs)
    return Agreement(
        samples=len(pairs),
        identical=sum(ours.tobytes() == theirs.tobytes() for ours, theirs in pairs),
        top1=sum(has_same_label(*pair) for pair in pairs) / len(pairs),
        l2=overall.mean if overall else None,
        relative_l2=overall.relative if overall else None,
        alike=sum(_is_alike(*pair, far) for pair in pairs) / len(pairs),
    )


def _is_alike(ours: Array, theirs: Array, far: float) -> bool:
    pair = distance([(ours, theirs)])
    if pair is None:
        return bool(np.array_equal(ours, theirs))
    return (pair.mean if pair.relative is None else pair.relative) <= far


def _answers(outdir: Path) -> tuple[dict[int, bytes], np.dtype[Any]] | None:
    """Returns each sample's answer in bytes, and the element type; None if the folder has no accuracy run."""
    if not (outdir / ACCURACY).is_file():
        return None
    try:
        ended = parse_json((outdir / RUN).read_text(encoding="utf-8"))["ended"]
        if ended is None:
            return None
        kind = np.dtype(str(ended["answer_dtype"]))
        if kind.hasobject or not kind.itemsize:
            raise ValueError(f"answers cannot be {kind}")
        payloads: dict[int, bytes] = {}
        for answer in read_answers(outdir / ACCURACY):
            payloads.setdefault(answer.sample, answer.payload)
    except (OSError, ValueError, KeyError, TypeError, AccuracyLogError) as e:
        raise ConfigError(f"{outdir}: its answers cannot be read: {e}") from None
    return payloads, kind
