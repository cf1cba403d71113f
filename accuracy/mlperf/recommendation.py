"""Scores recommended items by normalised entropy, accuracy and AUC per request, like MLPerf's DLRM-v3.

Each score covers the whole run. The definitions are from torchrec 1.3.0 (metrics/ne.py, accuracy.py, gauc.py), which
mlcommons/inference b66003e uses in recommendation/dlrm_v3/accuracy.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from harness.types import Answer, Array, Metric, Score

LEAST = 1e-12
"""Lower probabilities are raised to this value, as in torchrec."""

_IDENTITY = 2
"""Number of values at the beginning of an answer that identify the request: the timestamp and the request's number."""


class Recommendation:
    """Scores for recommendations. An answer is a float32 array: the request's identity, one score per candidate and,
    optionally, the candidates' labels and weights. A label is a mapping with `identity` and with `liked`, which is 0 or
    1 for each candidate. Each request must have exactly one answer. A missing score or NaN counts as a wrong prediction
    made with complete certainty.
    """

    def __init__(self, dtype: str) -> None:
        if np.dtype(dtype) != np.float32:
            raise ValueError(f"recommendation needs float32 scores, but the answers are {dtype}")

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        liked = {label["identity"]: label["liked"] for label in labels.values()}
        entropy = right = total = positive = negative = auc = 0.0
        requests = judged = 0
        for scores, of_request in _pairs(answers, liked):
            requests += 1
            total += len(of_request)
            positive += float(of_request.sum())
            negative += float((1 - of_request).sum())
            entropy += _entropy(scores, of_request)
            right += int(((scores >= 0.5) == of_request).sum())
            area = _area(scores, of_request)
            if area is not None:
                judged += 1
                auc += area
        if not judged or not positive or not negative:
            raise ValueError(
                "recommendation needs requests with candidates of both labels and different scores: choose other data"
            )
        share = min(max(positive / total, LEAST), 1 - LEAST)
        base = -positive * np.log2(share) - negative * np.log2(1 - share)
        values = {
            "ne": float(entropy / base),
            "accuracy": right / total,
            "gauc": (auc + 1e-9) / (judged + 2e-9),
        }
        return Score(
            metric="recommendation",
            value=values["gauc"],
            unit="of 1",
            samples=requests,
            line=" ".join(f"metric/lifetime_{k}/rating: {v}" for k, v in values.items()),
            details={**values, "candidates": total, "judged_requests": judged},
        )


def _pairs(
    answers: Iterable[Answer], liked: Mapping[tuple[int, int], Array]
) -> Iterator[tuple[Array, Array]]:
    """Yields each request's scores and labels. Raises a ValueError if a request has no answer or two answers."""
    left = dict(liked)
    for answer in answers:
        whole = len(answer.payload) // 4 * 4
        numbers = np.frombuffer(answer.payload[:whole], np.float32)
        known = len(numbers) >= _IDENTITY and bool(np.isfinite(numbers[:_IDENTITY]).all())
        identity = (int(numbers[0]), int(numbers[1])) if known else (-1, -1)
        labels = left.pop(identity, None)
        if labels is None:
            again = "was answered before" if identity in liked else "is not in the data"
            raise ValueError(f"request {identity} of sample {answer.sample} {again}")
        scores = numbers[_IDENTITY : _IDENTITY + len(labels)]
        missing = 1 - labels[len(scores) :]
        filled = np.concatenate([scores, missing]).astype(np.float32)
        yield np.where(np.isnan(filled), 1 - labels, filled).astype(np.float32), labels
    if left:
        raise ValueError(f"{len(left):,} of {len(liked):,} requests have no answer")


def _entropy(scores: Array, labels: Array) -> float:
    """Returns the cross-entropy in bits."""
    likely = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    terms = -labels * np.log2(likely) - (1 - labels) * np.log2(1 - likely)
    return float(terms.sum())


def _area(scores: Array, labels: Array) -> float | None:
    """Returns the area under the ROC curve for a single request, or None if all labels or all scores of the request are
    equal.

    Candidates with equal scores stay in their original order.
    """
    positive, negative = float(labels.sum()), float((1 - labels).sum())
    if not positive or not negative or bool(((scores == scores[0]) | (scores == 0)).all()):
        return None
    by_score = labels[np.argsort(scores, kind="stable")]
    below = np.cumsum(1 - by_score, dtype=np.float64)
    area = np.float32((by_score * below).sum()) / np.float32(positive * negative + 1e-10)
    return float(area)


_: type[Metric] = Recommendation
