"""Embeddings: how close they are to the right ones, and whether they find what belongs together."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.types import Answer, Array, Metric, Score

DEPTHS = (1, 5, 10)
_BLOCK = 1024


class Cosine:
    """Mean cosine similarity of each answer, a vector, with its label, the right one."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        found = [self._of_one(payload, labels[index]) for index, payload in answers]
        value, least = float(np.mean(found)), float(np.min(found))
        return Score(
            metric="cosine",
            value=value,
            unit="of 1",
            samples=len(found),
            line=f"cosine={value:.6f}, least={least:.6f}, total={len(found)}",
            details={"least": least},
        )

    def _of_one(self, payload: bytes, label: Any) -> float:
        """0 for a failed sample, which has no vector."""
        right = np.asarray(label, np.float64).ravel()
        vector = _vector(payload, self._dtype, right.size)
        return float(_unit(vector) @ _unit(right))


class Retrieval:
    """Recall at 10: the share of what belongs to a query that is among the 10 most similar others.

    Answers: vectors. Labels: mappings of `id` and, for a query, `relevant`: the ids that belong to
    it. Or numbers or texts: those with the same label belong together, and each is a query unless it
    is the only one. Similarity is the cosine; a query does not find itself.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        given = sorted(answers)
        size = max(len(payload) for _, payload in given) // np.dtype(self._dtype).itemsize
        vectors = np.stack([_unit(_vector(payload, self._dtype, size)) for _, payload in given])
        belongs = _belonging([labels[index] for index, _ in given])
        if not belongs.queries:
            raise ValueError("no label says what is relevant: there is nothing to find")
        recalls = dict.fromkeys(DEPTHS, 0.0)
        for query, nearest in _nearest(vectors, belongs.queries):
            for depth in DEPTHS:
                recalls[depth] += belongs.found(query, nearest[:depth]) / belongs.total(query)
        percent = {depth: 100.0 * total / len(belongs.queries) for depth, total in recalls.items()}
        told = ", ".join(f"recall@{depth}={value:.3f}%" for depth, value in percent.items())
        return Score(
            metric="retrieval",
            value=percent.pop(DEPTHS[-1]),
            unit="%",
            samples=len(given),
            line=f"{told}, queries={len(belongs.queries)}",
            details={f"recall@{depth}": value for depth, value in percent.items()},
        )


class _Belonging(NamedTuple):
    """queries: positions. found: (query, positions) -> how many of them belong to it.
    total: query -> how many there are.
    """

    queries: list[int]
    found: Callable[[int, Array], int]
    total: Callable[[int], int]


def _belonging(labels: Sequence[Any]) -> _Belonging:
    """labels: in the order of the vectors, all of one kind."""
    kinds = {isinstance(label, Mapping) for label in labels}
    if kinds == {True}:
        ids = [label["id"] for label in labels]
        relevant = [set(label.get("relevant") or ()) for label in labels]
        return _Belonging(
            [i for i, wanted in enumerate(relevant) if wanted],
            lambda query, nearest: len(relevant[query] & {ids[i] for i in nearest}),
            lambda query: len(relevant[query]),
        )
    if len(kinds) > 1 or not all(isinstance(label, int | str) for label in labels):
        raise ValueError("retrieval needs labels of id and relevant, or of numbers or texts")
    sizes = Counter(labels)
    return _Belonging(
        [i for i, label in enumerate(labels) if sizes[label] > 1],
        lambda query, nearest: sum(labels[i] == labels[query] for i in nearest),
        lambda query: sizes[labels[query]] - 1,
    )


def _nearest(vectors: Array, queries: list[int]) -> Iterable[tuple[int, Array]]:
    """Each query with the positions of the most similar others; of equals the first comes first."""
    for start in range(0, len(queries), _BLOCK):
        block = np.array(queries[start : start + _BLOCK])
        similarity = vectors[block] @ vectors.T
        similarity[np.arange(len(block)), block] = -np.inf
        best = np.argsort(-similarity, axis=1, kind="stable")[
            :, : min(DEPTHS[-1], len(vectors) - 1)
        ]
        yield from zip(block.tolist(), best, strict=True)


def _vector(payload: bytes, dtype: str, size: int) -> Array:
    """Zeros for a failed sample."""
    vector = np.frombuffer(payload, dtype).astype(np.float64) if payload else np.zeros(size)
    if vector.size != size:
        raise ValueError(f"an answer is a vector of {vector.size}, wanted {size}")
    return vector


def _unit(vector: Array) -> Array:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


_: type[Metric] = Cosine
__: type[Metric] = Retrieval
