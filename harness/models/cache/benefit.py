"""Ranks the models of a set by the time that keeping them saves: popularity x load time / bytes.

The ranking does not need a query. It shows which models a cache of the set's capacity should keep if their popularity
does not change.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A model and its load time, measured before the first query."""

    share: float
    """The model's share of the queries, in [0, 1]."""
    load_ns: int
    """The measured load time."""
    bytes: int
    always: bool


class Benefit(NamedTuple):
    """The time that a cache saves by keeping one model."""

    saved_ns: float
    """The mean load time per query of the run that is saved by keeping the model: share x load time."""
    keep: bool
    """Whether a cache of the set's capacity should keep the model: it is among the models that save the most per byte.
    """


def benefits(candidates: Sequence[Candidate], capacity_bytes: int) -> list[Benefit]:
    """Returns the benefits in the order of the candidates. Always-resident models are kept first."""
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
    """Returns the mean load time per query if only the models with `keep` are resident."""
    return sum(each.saved_ns for each in found if not each.keep)
