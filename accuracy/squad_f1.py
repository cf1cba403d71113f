"""Scores answers to questions by SQuAD v1.1's exact match and F1, like MLPerf's accuracy-squad.py."""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.types import Answer, Array, Metric, Score

N_BEST = 20
"""Number of best starts, and number of best ends, that are combined in each window."""

LONGEST = 30
"""Maximum number of positions in an answer; longer spans are ignored."""

NO_ANSWER = "empty"
"""The official script's answer if no span is valid."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class SquadF1:
    """Mean F1 in percent. An answer is a (length, 2) array that contains the start and end logits for a window's
    positions.

    The label of a window is a mapping with these keys:
    id: id of the question, which all windows of the question share
    answers: the right texts
    context: the complete text
    offsets: [start, end) of each position in characters of the context; None or negative if the position is not part of
    the context
    is_max_context: for each position, whether it has the most context in this window
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype.kind != "f":
            raise ValueError(f"squad_f1 needs floating-point logits, but the answers are {dtype}")

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        best: dict[object, _Span] = {}
        of_question = {label["id"]: label for label in labels.values()}
        for index, payload in sorted(answers):
            label = labels[index]
            span = _best_span(self._logits(payload), label)
            if span is not None and span.score > best.get(label["id"], _WORST).score:
                best[label["id"]] = span
        exact = f1 = 0.0
        for question, label in of_question.items():
            text = best[question].text if question in best else NO_ANSWER
            exact += max(float(_normal(text) == _normal(right)) for right in label["answers"])
            f1 += max(f1_of(text, right) for right in label["answers"])
        total = len(of_question)
        percent = {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}
        return Score(
            metric="squad_f1",
            value=percent["f1"],
            unit="%",
            samples=len(labels),
            line=json.dumps(percent),
            details={"exact_match": percent["exact_match"], "questions": total},
        )

    def _logits(self, payload: bytes) -> Array:
        """Returns the logits as a (length, 2) array. For a failed sample, the length is 0."""
        if len(payload) % (2 * self._dtype.itemsize):
            raise ValueError(
                f"an answer has {len(payload)} bytes, which is not a whole number of logit pairs"
            )
        return np.frombuffer(payload, self._dtype).reshape(-1, 2).astype(np.float64)


class _Span(NamedTuple):
    score: float
    text: str


_WORST = _Span(-np.inf, "")


def _best_span(logits: Array, label: Any) -> _Span | None:
    """Returns the best valid span. A valid span lies within the context, does not end before its start, and is not too
    long.
    """
    offsets, is_max_context = label["offsets"], label["is_max_context"]
    starts, ends = (np.argsort(-logits[:, i], kind="stable")[:N_BEST] for i in (0, 1))
    in_context = np.array([_in_context(offsets, i) for i in range(len(logits))], bool)
    may_start = [in_context[i] and bool(is_max_context[i]) for i in starts]
    lengths = ends[np.newaxis, :] - starts[:, np.newaxis] + 1
    allowed = np.array(may_start, bool)[:, np.newaxis] & in_context[ends]
    allowed = allowed & (lengths >= 1) & (lengths <= LONGEST)
    if not allowed.any():
        return None
    scores = logits[starts, 0][:, np.newaxis] + logits[ends, 1]
    scores = np.where(allowed, scores, -np.inf)
    row, column = np.unravel_index(scores.argmax(), scores.shape)
    first, last = offsets[starts[row]][0], offsets[ends[column]][1]
    return _Span(float(scores[row, column]), label["context"][first:last])


def _in_context(offsets: Any, position: int) -> bool:
    if position >= len(offsets):
        return False
    span = offsets[position]
    return span is not None and span[0] >= 0


def _normal(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1_of(text: str, right: str) -> float:
    """Returns the harmonic mean of precision and recall over words, in [0, 1]."""
    words, expected = _normal(text).split(), _normal(right).split()
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected)) if shared else 0.0


_: type[Metric] = SquadF1
