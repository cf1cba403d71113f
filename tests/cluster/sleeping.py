"""A backend for tests that waits for its answers without using a processor."""

import os
import time
from collections.abc import Mapping
from typing import Self

import numpy as np

from harness.types import Array, BackendSetup, Batch


class Sleeping:
    """ms: time per batch, whatever the batch size."""

    def __init__(self, setup: BackendSetup) -> None:
        self._s = float(setup.options.get("ms", "20")) / 1e3

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def infer(self, batch: Batch) -> Array:
        time.sleep(self._s)
        rows = batch.inputs["image"].reshape(batch.size, -1)[:, :10]
        return np.ascontiguousarray(rows, np.float32)

    def describe(self) -> Mapping[str, object]:
        return {"framework": "sleep", "device": "none", "precision": "none", "threads": 0}


class OfItsProcess(Sleeping):
    """Behaves as a different backend in every process."""

    def describe(self) -> Mapping[str, object]:
        return {**super().describe(), "precision": str(os.getpid())}
