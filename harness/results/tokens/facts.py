"""Adds a plug-in's facts about each sample to a run's columns. Has no side effects."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.types import Array

MODEL, MEDIA = "model", "media_ns"
"""Column names: the sample's model as a position in `Evidence.models`, or -1 if unknown; the duration of its sound, or
0 without sound.
"""


def with_facts(
    columns: Mapping[str, Array], facts: Mapping[str, Array] | None
) -> Mapping[str, Array]:
    """Returns the columns, plus one column for each fact that the run recorded."""
    if facts is None or not len(facts["index"]):
        return columns
    index = columns["index"]
    most = max(int(index.max(initial=0)), int(facts["index"].max()))
    found = dict(columns)
    if len(facts["names"]) > 1:
        found[MODEL] = _by_sample(facts, "model", most, -1)[index]
    if facts["media_ns"].any():
        found[MEDIA] = _by_sample(facts, "media_ns", most, 0)[index]
    return found


def _by_sample(facts: Mapping[str, Array], name: str, most: int, unknown: int) -> Array:
    values = np.full(most + 1, unknown, np.int64)
    values[facts["index"]] = facts[name]
    return values


def models_of(facts: Mapping[str, Array] | None) -> Sequence[str]:
    """Returns the models in the order of their numbers in the column `model`; empty if the requests name at most one
    model.
    """
    names = facts["names"].tolist() if facts is not None else []
    return names if len(names) > 1 else ()
