"""Brings the journals of the nodes and the driver's together: where the time of each sample went on its node."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.results.evidence.stages import NODE_STAMPS, Completions
from harness.types import Array

_OWN = ("received_ns", "taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns")
"""Stamps of a node, in the order of NODE_STAMPS."""


def with_journals(done: Completions, path: Path) -> Completions:
    """The run with the columns NODE_STAMPS; unchanged without the file, or where an answered sample has no row.

    path: written by the measured process, a row a batch.
    """
    if not path.is_file():
        return done
    with np.load(path, allow_pickle=False) as file:
        rows = {name: file[name] for name in file.files}
    columns = placed(done.columns, rows)
    return (
        done
        if columns is None
        else Completions({**done.columns, **columns}, done.issued, done.answered_once)
    )


def placed(columns: Mapping[str, Array], rows: Mapping[str, Array]) -> Mapping[str, Array] | None:
    """The nodes' stamps of each sample on the driver's clock; None where an answered sample has none.

    columns: (samples,) of a run, in issue order. rows: (batches,) `first` and the stamps of a node's clock.
    A node's time ends where its reply arrives. What it says beyond the time between sending and arrival, as
    where the sending thread lost its core before its stamp, is cut off.
    """
    sent_ns = columns["sent_ns"]
    arrived_ns = columns.get("arrived_ns", columns["read_ns"])
    order = np.argsort(rows["first"], kind="stable")
    first = rows["first"][order]
    begins = columns["order"] - _place_in_batch(columns["batch"])
    row = np.searchsorted(first, begins)
    row = np.minimum(row, max(0, len(first) - 1))
    known = first[row] == begins if len(first) else np.zeros(len(begins), bool)
    if not (known | (columns["failed"] > 0)).all():
        return None
    found: dict[str, Array] = {}
    earliest_ns = sent_ns
    for name, own in zip(NODE_STAMPS, _OWN, strict=True):
        if len(first):
            before_end_ns = (rows["sent_ns"] - rows[own])[order][row]
        else:
            before_end_ns = np.zeros(len(begins), np.int64)
        at_ns = np.where(known, arrived_ns - before_end_ns, arrived_ns)
        earliest_ns = np.clip(at_ns, earliest_ns, arrived_ns)
        found[name] = earliest_ns
    return found


def _place_in_batch(batch: Array) -> Array:
    """(samples,) how many samples of the same batch come before each. batch: runs of equal numbers."""
    if not len(batch):
        return batch
    begins = np.flatnonzero(np.r_[True, batch[1:] != batch[:-1]])
    sizes = np.diff(np.r_[begins, len(batch)])
    place: Array = np.arange(len(batch)) - np.repeat(begins, sizes)
    return place
