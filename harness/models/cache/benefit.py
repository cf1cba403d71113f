"""Ranks the models of a set by the load time per byte that the cache saves by keeping a model: popularity x load time /
bytes.

The ranking can be computed before the first query. It shows which models a cache of the set's capacity should keep if
the models' popularity does not change.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A model and its load time, measured before the first query."""

    share: float
    """Fraction of the queries that use the model, in [0, 1]."""
    load_ns: int
    """The measured load time of the model."""
    bytes: int
    always: bool


class Benefit(NamedTuple):
    """The load time that a cache saves by keeping one model."""

    saved_ns: float
    """Reduction of the run's mean load time per query if the model is kept: share x load time."""
    keep: bool
    """Whether a cache of the set's capacity should keep the model because it is among the models that save the most
    time per byte.
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
    """Returns the mean load time per query if the cache keeps only the models whose `keep` is true."""
    return sum(each.saved_ns for each in found if not each.keep)
