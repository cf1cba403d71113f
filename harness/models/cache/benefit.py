"""Ranks the models of a set by what keeping them saves, before any query: popularity x load time / bytes.

It says for each model whether a cache of the set's capacity is worth its place, if the popularity stays as it is.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """What is known of a model beforehand."""

    share: float
    """The model's share of the queries, in [0, 1]."""
    load_ns: int
    """Time of a load, measured."""
    bytes: int
    always: bool


class Benefit(NamedTuple):
    """Savings from keeping one model."""

    saved_ns: float
    """Load time that a query of the run is spared on average: share x load time."""
    keep: bool
    """It is among those that save most for their bytes, as far as the capacity goes."""


def benefits(candidates: Sequence[Candidate], capacity_bytes: int) -> list[Benefit]:
    """In the order of the candidates. What is always resident is kept first."""
    left = capacity_bytes - sum(c.bytes for c in candidates if c.always)
    kept = {i for i, c in enumerate(candidates) if c.always}
    saved = [c.share * c.load_ns for c in candidates]
    ranked = sorted(
        range(len(candidates)), key=lambda i: saved[i] / max(1, candidates[i].bytes), reverse=True
    )
    for i in ranked:
        if i not in kept and saved[i] > 0 and candidates[i].bytes <= left:
            kept.add(i)
            left -= candidates[i].bytes
    return [Benefit(saved[i], i in kept) for i in range(len(candidates))]


def expected_load_ns(found: Sequence[Benefit]) -> float:
    """The mean load time of a query if exactly the models with `keep` are resident."""
    return sum(each.saved_ns for each in found if not each.keep)
