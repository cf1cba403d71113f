"""Scores embeddings by how many relevant samples are among the samples most similar to a query."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.accuracy.parts.vectors import unit, vector_of
from harness.types import Answer, Array, Metric, Score

DEPTHS = (1, 5, 10)
"""Numbers of most similar samples for which recall is reported."""

_BLOCK = 1024
"""Number of queries that are compared with all vectors at the same time."""


class Retrieval:
    """Recall at 10: the share of a query's relevant vectors that are among the 10 vectors most similar to the query.

    Answers are vectors. A label is a mapping with `id` and, for a query, `relevant` (the IDs of the relevant samples).
    Labels may also be numbers or strings. With such labels, samples with the same label are relevant to each other, and
    each sample whose label is not unique is a query. Similarity is measured by the cosine. A query is not compared with
    itself.
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
    """Defines which vectors are relevant to each query."""

    queries: list[int]
    """Positions of the vectors that are queries."""
    hits: Callable[[int, Array], int]
    """Returns how many of the given positions are relevant to the query. The arguments are the query and the positions.
    """
    total: Callable[[int], int]
    """Returns the number of vectors that are relevant to a query."""


def _relevance(labels: Sequence[Any]) -> _Relevance:
    """Returns the vectors that are relevant to each query. labels: labels of the same type, in the order of the
    vectors.
    """
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
    """Yields each query and the positions of the other vectors that are most similar to the query. Vectors with equal
    similarity stay in their original order.
    """
    for start in range(0, len(queries), _BLOCK):
        block = np.array(queries[start : start + _BLOCK])
        similarity = vectors[block] @ vectors.T
        similarity[np.arange(len(block)), block] = -np.inf
        best = np.argsort(-similarity, axis=1, kind="stable")[
            :, : min(DEPTHS[-1], len(vectors) - 1)
        ]
        yield from zip(block.tolist(), best, strict=True)


_: type[Metric] = Retrieval
