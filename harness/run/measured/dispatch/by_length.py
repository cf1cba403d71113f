"""Sorts Offline's samples into batches of similar length, so that little padding is computed."""

from collections.abc import Callable, Sequence

import numpy as np

from harness.types import Array

Lengths = Callable[[Sequence[int]], Array]
"""Maps (n,) dataset indices to the (n,) lengths of these samples."""


def by_length(
    ids: list[int], indices: list[int], lengths: Array, max_batch: int
) -> tuple[list[int], list[int]]:
    """Returns the IDs and indices in an order that can be cut into batches of `max_batch` samples.

    The samples are sorted into batches by length. The batches are then shuffled, always in the same way, so that the
    load in the first third of a run does not differ from the load in the last third. The shortest samples come last if
    these samples do not fill a batch.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    whole = len(ids) // max_batch * max_batch
    batches = longest_first[:whole].reshape(-1, max_batch)
    shuffled = np.random.default_rng(0).permutation(batches)
    order = np.concatenate([shuffled.ravel(), longest_first[whole:]])
    return np.asarray(ids, np.uint64)[order].tolist(), np.asarray(indices)[order].tolist()
