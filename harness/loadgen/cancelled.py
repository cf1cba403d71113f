"""Randomly selects the queries whose requests the client cancels."""

import numpy as np

from harness.loadgen.plan import LoadPlan
from harness.types import Array

_DRAW = 0x63616E63
"""Seeds this selection together with the run's seed, so that the selection is independent of other draws with that
seed.
"""


def chosen(plan: LoadPlan) -> Array:
    """Returns a (queries,) mask of the queries that are cancelled, drawn from the seed sample_index.

    Uses RandomState, because NumPy guarantees that its numbers are the same in every version.
    """
    random = np.random.RandomState([plan.seeds.sample_index & 0xFFFFFFFF, _DRAW])
    drawn: Array = random.random_sample(plan.query_count) < plan.cancel_share
    return drawn
