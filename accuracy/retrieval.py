"""Scores embeddings by whether relevant samples are among the most similar ones."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.accuracy.parts.vectors import unit, vector_of
from harness.types import Answer, Array, Metric, Score

DEPTHS = (1, 5, 10)
"""The numbers of most similar samples at which recall is reported."""

_BLOCK = 1024
"""Queries that are compared with all vectors at once."""


class Retrieval:
    """Recall at 10: the share of a query's relevant vectors among the 10 vectors most similar to it.

    Answers are vectors. Labels are mappings of `id` and, for a query, `relevant`, the ids of its relevant
    samples. Labels may also be numbers or strings: samples with the same label are then relevant to each
    other, and each is a query unless its label is unique. Similarity is the cosine. A query does not find
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
    """The vectors that are relevant to each query."""

    queries: list[int]
    """Positions of the vectors that are queries."""
    hits: Callable[[int, Array], int]
    """(query, positions) -> the number of relevant vectors among them."""
    total: Callable[[int], int]
    """query -> the number of relevant vectors."""


def _relevance(labels: Sequence[Any]) -> _Relevance:
    """labels: in the order of the vectors, all of the same kind."""
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
    """Yields each query with the positions of the most similar other vectors; ties keep their order."""
    for start in range(0, len(queries), _BLOCK):
        block = np.array(queries[start : start + _BLOCK])
        similarity = vectors[block] @ vectors.T
        similarity[np.arange(len(block)), block] = -np.inf
        best = np.argsort(-similarity, axis=1, kind="stable")[
            :, : min(DEPTHS[-1], len(vectors) - 1)
        ]
        yield from zip(block.tolist(), best, strict=True)


_: type[Metric] = Retrieval
