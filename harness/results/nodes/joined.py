"""Joins the nodes' journals with the driver's journal, to show the stages that each sample passed on its node."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.results.evidence.stages import NODE_STAMPS, Completions
from harness.types import Array

_OWN = ("received_ns", "taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns")
"""A node's names for its timestamps, in the order of NODE_STAMPS."""


def with_journals(done: Completions, path: Path) -> Completions:
    """Adds the columns NODE_STAMPS to a run. Returns the run unchanged if the file is missing, or if an answer lacks
    its row.

    path: the measured process's file, with one row per batch.
    """
    if not path.is_file():
        return done
    with np.load(path, allow_pickle=False) as file:
        rows = {name: file[name] for name in file.files}
    columns = placed(done.columns, rows)
    return done if columns is None else replace(done, columns={**done.columns, **columns})


def placed(columns: Mapping[str, Array], rows: Mapping[str, Array]) -> Mapping[str, Array] | None:
    """Returns each sample's timestamps from its node, converted to the driver's clock, and `sent_ns`; None if an
    answered sample has no timestamps.

    columns: (samples,) of a run, in the order of issue. rows: (batches,) `first` and the timestamps by the node's
    clock. The time on the node is placed so that it ends when the reply arrives. If the time on the node exceeds the
    time from sending to arrival, the sending thread took its timestamp too late, for example because the thread lost
    its core. `sent_ns` is then moved back to the start of the time on the node, but not before `taken_ns`.
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

    def before_end_ns(own: str) -> Array:
        if not len(first):
            return np.zeros(len(begins), np.int64)
        return np.where(known, (rows["sent_ns"] - rows[own])[order][row], 0)

    begin_ns = arrived_ns - before_end_ns(_OWN[0])
    earliest_ns = np.clip(np.minimum(sent_ns, begin_ns), columns["taken_ns"], sent_ns)
    found = {"sent_ns": earliest_ns}
    for name, own in zip(NODE_STAMPS, _OWN, strict=True):
        at_ns = arrived_ns - before_end_ns(own)
        earliest_ns = np.clip(at_ns, earliest_ns, arrived_ns)
        found[name] = earliest_ns
    return found


def _place_in_batch(batch: Array) -> Array:
    """Returns, for each sample, how many samples precede it in its batch. batch: (samples,) batch numbers; equal
    numbers are adjacent.
    """
    if not len(batch):
        return batch
    begins = np.flatnonzero(np.r_[True, batch[1:] != batch[:-1]])
    sizes = np.diff(np.r_[begins, len(batch)])
    place: Array = np.arange(len(batch)) - np.repeat(begins, sizes)
    return place
