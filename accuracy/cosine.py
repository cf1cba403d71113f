"""Scores embeddings by their cosine similarity to the correct vectors."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from harness.accuracy.parts.vectors import unit, vector_of
from harness.types import Answer, Metric, Score


class Cosine:
    """Mean cosine similarity between answers and labels. An answer is a vector; its label is the correct vector."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        similarities = [self._similarity(payload, labels[index]) for index, payload in answers]
        value, least = float(np.mean(similarities)), float(np.min(similarities))
        return Score(
            metric="cosine",
            value=value,
            unit="of 1",
            samples=len(similarities),
            line=f"cosine={value:.6f}, least={least:.6f}, total={len(similarities)}",
            details={"least": least},
        )

    def _similarity(self, payload: bytes, label: Any) -> float:
        """Returns the cosine similarity. For a failed sample, returns 0, because a failed sample has no vector."""
        right = np.asarray(label, np.float64).ravel()
        vector = vector_of(payload, self._dtype, right.size)
        return float(unit(vector) @ unit(right))


_: type[Metric] = Cosine
