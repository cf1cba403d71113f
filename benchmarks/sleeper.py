"""A model that sleeps for each batch and each sample, so that instances need no cores."""

import ctypes
import time
from collections.abc import Mapping
from typing import Self

import numpy as np

from harness.types import Array, BackendSetup, Batch

_PR_SET_TIMERSLACK = 29


class Sleeper:
    """A backend that sleeps. Options: service_ms=5, the time per batch; sample_ms=1, the additional time per sample."""

    def __init__(self, setup: BackendSetup) -> None:
        self._service_s = float(setup.options.get("service_ms", "5")) / 1e3
        self._sample_s = float(setup.options.get("sample_ms", "0")) / 1e3
        self._answers = np.zeros((setup.max_batch, 10), np.float32)

    def __enter__(self) -> Self:
        # Threads that start after this call wake up within 1 us of the requested time instead of within 50 us.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def infer(self, batch: Batch) -> Array:
        time.sleep(self._service_s + batch.size * self._sample_s)
        return self._answers[: batch.size]

    def describe(self) -> Mapping[str, object]:
        return {"framework": "none", "device": "none", "precision": "none", "threads": 0}
