"""How alike the answers of two accuracy runs are: by label, and by distance where they are floats."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, AccuracyLogError, read_answers
from harness.results.records import RUN
from harness.types import Array


class Agreement(NamedTuple):
    """samples: answered by both. identical: byte for byte. top1: share whose label (the largest
    of a row of floats; else the answer itself) is the same, in [0, 1]. l2: mean Euclidean distance
    of the answers, relative: over the mean length of the first's; None where they are labels.
    """

    samples: int
    identical: int
    top1: float
    l2: float | None
    relative_l2: float | None


def agreement(before: Path, after: Path) -> Agreement | None:
    """Folders of two runs. None where one of them logged no answers, or none to the same samples."""
    ours, theirs = _answers(before / "accuracy"), _answers(after / "accuracy")
    if ours is None or theirs is None:
        return None
    (payloads, kind), (others, other_kind) = ours, theirs
    common = [sample for sample in payloads if sample in others]
    if not common:
        return None
    identical = sum(payloads[s] == others[s] for s in common)
    pairs = [(_row(payloads[s], kind), _row(others[s], other_kind)) for s in common]
    same = sum(_same_label(a, b) for a, b in pairs)
    distances = list(_distances(pairs))
    l2 = relative = None
    if len(distances) == len(pairs):
        l2 = float(np.mean([d for d, _ in distances]))
        length = float(np.mean([n for _, n in distances]))
        relative = l2 / length if length else None
    return Agreement(len(common), identical, same / len(common), l2, relative)


def _answers(outdir: Path) -> tuple[dict[int, bytes], np.dtype[np.generic]] | None:
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


def _row(payload: bytes, kind: np.dtype[np.generic]) -> Array:
    """(n,); bytes where the payload is no whole number of elements."""
    return np.frombuffer(payload, kind if len(payload) % kind.itemsize == 0 else np.uint8)


def _same_label(ours: Array, theirs: Array) -> bool:
    floats = ours.dtype.kind == theirs.dtype.kind == "f"
    if floats and len(ours) == len(theirs) > 1:
        return bool(ours.argmax() == theirs.argmax())
    return bool(np.array_equal(ours, theirs))


def _distances(pairs: list[tuple[Array, Array]]) -> Iterator[tuple[float, float]]:
    """(distance, length of the first) of every pair of float answers of one length."""
    for ours, theirs in pairs:
        if ours.dtype.kind == theirs.dtype.kind == "f" and len(ours) == len(theirs):
            a, b = ours.astype(np.float64), theirs.astype(np.float64)
            yield float(np.linalg.norm(a - b)), float(np.linalg.norm(a))
