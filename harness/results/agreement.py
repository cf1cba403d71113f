"""How alike answers are: element by element, by label and by distance; and of two accuracy runs.

Every part of the harness that compares answers does it with the functions here: the check of the
performance run's answers (harness/results/verdict/answers_check.py), `compare`, the grid, `advise` and the audits.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.number_types import BITS
from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, AccuracyLogError, read_answers
from harness.results.run_folder import RUN
from harness.types import Array


def decode(payload: bytes, dtype: np.dtype[Any] | str) -> Array:
    """(n,) elements of an answer as LoadGen logged it; single bytes where it holds no whole number
    of elements.
    """
    kind = np.dtype(dtype)
    return np.frombuffer(payload, kind if len(payload) % kind.itemsize == 0 else np.uint8)


def is_close(ours: Array, theirs: Array, tolerance: float) -> bool:
    """Whether floats differ by rounding only. tolerance: relative; of small numbers, relative to the
    median size of theirs. False for other types: those are equal or not.
    """
    if ours.dtype.kind not in "fc" or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    sizes = np.abs(theirs[theirs != 0])
    usual = float(np.median(sizes)) if len(sizes) else 0.0
    return bool(np.allclose(ours, theirs, rtol=tolerance, atol=tolerance * usual))


def is_first_equal(payload: bytes, expected: bytes, dtype: str) -> bool:
    """Whether the first elements are equal, which is all that MLPerf's TEST01 looks at."""
    size = np.dtype(dtype).itemsize
    if min(len(payload), len(expected)) < size:
        return len(payload) == len(expected)
    return bool(decode(payload[:size], dtype)[0] == decode(expected[:size], dtype)[0])


def has_same_label(ours: Array, theirs: Array) -> bool:
    """The label: the position of the largest of several scores, else the answer itself."""
    if _are_floats(ours, theirs) and ours.size == theirs.size > 1:
        return bool(ours.argmax() == theirs.argmax())
    return bool(np.array_equal(ours, theirs))


class Distance(NamedTuple):
    """mean: mean Euclidean distance between two answers. relative: `mean` divided by the mean length
    of the first side's answers; None where all of those are zero.
    """

    mean: float
    relative: float | None


def distance(pairs: Iterable[tuple[Array, Array]]) -> Distance | None:
    """None where there are no pairs, or one is not of floats in one shape."""
    apart, lengths = [], []
    for ours, theirs in pairs:
        if not _are_floats(ours, theirs) or ours.shape != theirs.shape:
            return None
        wide = ours.astype(np.float64).ravel()
        apart.append(float(np.linalg.norm(wide - theirs.astype(np.float64).ravel())))
        lengths.append(float(np.linalg.norm(wide)))
    if not apart:
        return None
    mean, length = float(np.mean(apart)), float(np.mean(lengths))
    return Distance(mean, mean / length if length else None)


def _are_floats(ours: Array, theirs: Array) -> bool:
    return ours.dtype.kind == theirs.dtype.kind == "f"


class Limits(NamedTuple):
    """What two backends may differ by and still count as one model.

    share: of the samples that must be alike. far: largest relative distance between two alike
    answers of floats.
    """

    share: float
    far: float


_EXACT = Limits(share=0.99, far=0.01)
"""Another order of summation changes the sixth digit of a float32, and now and then a label where
two scores are nearly equal. Measured on the digits' logits, ONNX Runtime and OpenVINO: 1.5e-7 apart.
"""

_ROUNDED = Limits(share=0.95, far=0.1)
"""bfloat16 has three digits, int8 two, and each framework rounds in places of its own. Measured on the
digits' logits, PyTorch in bfloat16 and ONNX Runtime in float32: 0.002 apart.
"""


def limits(precision: str) -> Limits:
    """precision: a name of harness/core/number_types.py; any other counts as exact."""
    return _ROUNDED if BITS.get(precision, 64) < BITS["float32"] else _EXACT


class Agreement(NamedTuple):
    """Answers of two runs to the same samples.

    samples: answered by both. identical: byte for byte. top1: share whose label is the same, in
    [0, 1]. l2, relative_l2: `Distance`, None where answers are labels. alike: share that is equal or
    no further apart than `Limits.far`, in [0, 1].
    """

    samples: int
    identical: int
    top1: float
    l2: float | None
    relative_l2: float | None
    alike: float


def agreement(before: Path, after: Path, far: float = _EXACT.far) -> Agreement | None:
    """Folders of two runs. None where one of them logged no answers, or none to the same samples."""
    ours, theirs = _answers(before / "accuracy"), _answers(after / "accuracy")
    if ours is None or theirs is None:
        return None
    (payloads, kind), (others, other_kind) = ours, theirs
    common = [sample for sample in payloads if sample in others]
    if not common:
        return None
    pairs = [(decode(payloads[s], kind), decode(others[s], other_kind)) for s in common]
    overall = distance(pairs)
    return Agreement(
        samples=len(common),
        identical=sum(payloads[s] == others[s] for s in common),
        top1=_share([has_same_label(*pair) for pair in pairs]),
        l2=overall.mean if overall else None,
        relative_l2=overall.relative if overall else None,
        alike=_share([_is_alike(*pair, far) for pair in pairs]),
    )


def _is_alike(ours: Array, theirs: Array, far: float) -> bool:
    apart = distance([(ours, theirs)])
    if apart is None:
        return bool(np.array_equal(ours, theirs))
    return (apart.mean if apart.relative is None else apart.relative) <= far


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


def _answers(outdir: Path) -> tuple[dict[int, bytes], np.dtype[Any]] | None:
    """By sample; multi-stream pads its last query with duplicates. None: no accuracy run."""
    if not (outdir / ACCURACY).is_file():
        return None
    try:
        ended = json.loads((outdir / RUN).read_text(encoding="utf-8"))["ended"]
        if ended is None:
            return None
        kind = np.dtype(str(ended["answer_dtype"]))
        if kind.hasobject or not kind.itemsize:
            raise ValueError(f"answers cannot be {kind}")
        found: dict[int, bytes] = {}
        for answer in read_answers(outdir / ACCURACY):
            found.setdefault(answer.sample, answer.payload)
    except (OSError, ValueError, KeyError, TypeError, AccuracyLogError) as e:
        raise ConfigError(f"{outdir}: its answers cannot be read: {e}") from None
    return found, kind
