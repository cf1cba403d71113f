"""Scores embeddings by the share of relevant samples among the most similar samples."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.accuracy.parts.vectors import unit, vector_of
from harness.types import Answer, Array, Metric, Score

DEPTHS = (1, 5, 10)
"""Recall is reported for these numbers of most similar samples."""

_BLOCK = 1024
"""Number of queries that are compared with all vectors at once."""


class Retrieval:
    """Recall at 10: the share of a query's relevant vectors that are among the 10 vectors most similar to the query.

    Answers are vectors. A label is a mapping with `id` and, for a query, `relevant` (the ids of the relevant samples).
    Labels may also be numbers or strings. Samples with the same label are then relevant to each other, and each sample
    is a query unless its label is unique. Similarity is the cosine. A query is not compared with itself.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        by_index = sorted(answers)
        size = max(len(payload) for _, payload in by_index) // np.dtype(self._dtype).itemsize
        vectors = np.stack([unit(vector_of(payload, self._dtype, size)) for _, payload in by_index])
        relevance = _relevance([labels[index] for index, _ in by_index])
        if not relevance.queries:
            raise ValueError(
                "no label names relevant samples, so recall cannot be computed: use labels with `relevant`, or several "
                "samples per label"
            )
        recalls = dict.fromkeys(DEPTHS, 0.0)
        for query, nearest in _nearest(vectors, relevance.queries):
            for depth in DEPTHS:
                recalls[depth] += relevance.hits(query, nearest[:depth]) / relevance.total(query)
        percent = {
            depth: 100.0 * total / len(relevance.queries) for depth, total in recalls.items()
        }
        summary = ", ".join(f"recall@{depth}={value:.3f}%" for depth, value in percent.items())
        return Score(
            metric="retrieval",
            value=percent.pop(DEPTHS[-1]),
            unit="%",
            samples=len(by_index),
            line=f"{summary}, queries={len(relevance.queries)}",
            details={f"recall@{depth}": value for depth, value in percent.items()},
        )


class _Relevance(NamedTuple):
    """Describes which vectors are relevant to each query."""

    queries: list[int]
    """Positions of the vectors that are queries."""
    hits: Callable[[int, Array], int]
    """Returns the number of relevant vectors among some positions. Arguments: query and positions."""
    total: Callable[[int], int]
    """Returns the number of relevant vectors of a query."""


def _relevance(labels: Sequence[Any]) -> _Relevance:
    """Returns the relevant vectors of each query. labels: labels of one kind, in the order of the vectors."""
    kinds = {isinstance(label, Mapping) for label in labels}
    if kinds == {True}:
        ids = [label["id"] for label in labels]
        relevant = [set(label.get("relevant") or ()) for label in labels]
        return _Relevance(
            [i for i, ids_of_query in enumerate(relevant) if ids_of_query],
            lambda query, nearest: len(relevant[query] & {ids[i] for i in nearest}),
            lambda query: len(relevant[query]),
        )
    if len(kinds) > 1 or not all(isinstance(label, int | str) for label in labels):
        raise ValueError(
            "retrieval needs labels of one kind: mappings of `id` and `relevant`, numbers or strings"
        )
    sizes = Counter(labels)
    return _Relevance(
        [i for i, label in enumerate(labels) if sizes[label] > 1],
        lambda query, nearest: sum(labels[i] == labels[query] for i in nearest),
        lambda query: sizes[labels[query]] - 1,
    )


def _nearest(vectors: Array, queries: list[int]) -> Iterable[tuple[int, Array]]:
    """Yields each query with the positions of the most similar other vectors. Ties keep the order of the vectors."""
    for start in range(0, len(queries), _BLOCK):
        block = np.array(queries[start : start + _BLOCK])
        similarity = vectors[block] @ vectors.T
        similarity[np.arange(len(block)), block] = -np.inf
        best = np.argsort(-similarity, axis=1, kind="stable")[
            :, : min(DEPTHS[-1], len(vectors) - 1)
        ]
        yield from zip(block.tolist(), best, strict=True)


_: type[Metric] = Retrieval
