"""Determines from the journal which model each sample used, and where the model came from. Has no side effects."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.loadgen.plan import Loaded
from harness.models.cache.cache import ORIGINS
from harness.models.cache.model_set import models_of
from harness.results.evidence.stages import Completions
from harness.types import Array


class Requests(NamedTuple):
    """A run's samples in the order of issue."""

    model: Array
    """(n,) number of the sample's model in the set."""
    origin: Array
    """(n,) index in ORIGINS that shows where the model came from."""
    evicted: Array
    """(n,) number of models that were evicted to serve the sample."""

    def by_origin(self, models: int) -> Array:
        """Returns (models, origins) int64 counts of samples per model and origin."""
        flat = np.bincount(self.model * len(ORIGINS) + self.origin, minlength=models * len(ORIGINS))
        return flat.reshape(models, len(ORIGINS))


def requests_of(done: Completions, loaded: Loaded | None) -> Requests | None:
    """Returns the requests; None if the run does not use a set of models, or if its rows do not match the set."""
    about: Mapping[str, Any] = loaded.dataset if loaded is not None else {}
    columns = done.columns
    if "origin" not in columns or "models" not in about:
        return None
    slots = [int(each["slots"]) for each in about["models"]]
    index, origin = columns["index"], columns["origin"]
    if not len(index) or int(index.min()) < 0 or int(index.max()) >= sum(slots):
        return None
    if int(origin.min()) < 0 or int(origin.max()) >= len(ORIGINS):
        return None
    model: Array = models_of(slots, int(about["seed"]))[index]
    return Requests(model, origin.astype(np.int64), columns["evicted"].astype(np.int64))
