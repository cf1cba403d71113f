"""Offline: samples of different lengths in batches of their like, so that little is filled up."""

from collections.abc import Callable, Sequence

import numpy as np

from harness.types import Array

Lengths = Callable[[Sequence[int]], Array]
"""(n,) dataset indices -> (n,) sizes of these samples."""


def by_length(
    ids: list[int], indices: list[int], lengths: Array, max_batch: int
) -> tuple[list[int], list[int]]:
    """ids and indices in the order in which batches of `max_batch` are cut off them.

    Batches come in a random order (always the same): were they sorted, too, the first third of a
    run would be another load than the last. Those that are left over come last, the shortest.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    whole = len(ids) // max_batch * max_batch
    batches = longest_first[:whole].reshape(-1, max_batch)
    shuffled = np.random.default_rng(0).permutation(batches)
    order = np.concatenate([shuffled.ravel(), longest_first[whole:]])
    return np.asarray(ids, np.uint64)[order].tolist(), np.asarray(indices)[order].tolist()
