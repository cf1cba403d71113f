"""Backends with one fault each, named on the command line as faulty.py:Class."""

import ctypes
import os
import time
from typing import Any, Self

import numpy as np

from harness.types import Array, BackendSetup, Batch

GOOD_BATCHES = 300
"""Warm-up and calibration must pass; the fault comes in the run."""


class Faulty:
    formats = ()

    def __init__(self, setup: BackendSetup) -> None:
        self.batches = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def describe(self) -> dict[str, object]:
        return {"framework": "none"}

    def infer(self, batch: Batch) -> Any:
        self.batches += 1
        good = np.zeros((len(batch.indices), 10), np.float32)
        return good if self.batches <= GOOD_BATCHES // 2 else self.fault(good)

    def fault(self, good: Array) -> Any:
        return good


class Raises(Faulty):
    def fault(self, good: Array) -> Any:
        raise RuntimeError("boom")


class RaisesOnce(Faulty):
    def fault(self, good: Array) -> Any:
        if self.batches == GOOD_BATCHES // 2 + 1:
            raise SystemExit("once")
        return good


class TooFew(Faulty):
    def fault(self, good: Array) -> Any:
        return good[:-1]


class TooMany(Faulty):
    def fault(self, good: Array) -> Any:
        return np.concatenate([good, good])


class WrongType(Faulty):
    def fault(self, good: Array) -> Any:
        return "not an array"


class Blocks(Faulty):
    def fault(self, good: Array) -> Any:
        time.sleep(1e6)


class Segfaults(Faulty):
    def fault(self, good: Array) -> Any:
        ctypes.string_at(0)


class Exits(Faulty):
    def fault(self, good: Array) -> Any:
        os._exit(7)


class StallsOnce(Faulty):
    stalled = False

    def fault(self, good: Array) -> Any:
        if not StallsOnce.stalled:
            StallsOnce.stalled = True
            ctypes.PyDLL(None).usleep(1_000_000)  # holds the GIL, as a bad extension would
        return good


class Prints(Faulty):
    def fault(self, good: Array) -> Any:
        print("noise" * 2000)  # noqa: T201 - what the fault is
        return good


class RaisesInLoad(Faulty):
    def __enter__(self) -> Self:
        raise ValueError("no load")


class BlocksInLoad(Faulty):
    def __enter__(self) -> Self:
        time.sleep(1e6)
        return self


class DiesInLoad(Faulty):
    def __enter__(self) -> Self:
        ctypes.string_at(0)
        return self


class RaisesInWarmUp(Faulty):
    def infer(self, batch: Batch) -> Any:
        raise ValueError("no warm-up")


class RaisesInClose(Faulty):
    def __exit__(self, *exc: object) -> None:
        raise ValueError("no close")
