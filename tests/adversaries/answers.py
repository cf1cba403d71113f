"""Cheats that return wrong answers when they expect no check."""

import random
import time
from typing import Any

import numpy as np

from harness.backends.ort import OrtBackend
from harness.loadgen.plan import LoadPlan
from harness.types import Array, Batch, Outputs
from tests.adversaries.parts import frames, is_performance, is_timed, named, zeros


class _Wrong(OrtBackend):
    """Computes the answers, then replaces them when `is_wrong` is true."""

    batches = 0

    def is_wrong(self, batch: Batch) -> bool:
        raise NotImplementedError

    def bend(self, outputs: Outputs) -> Outputs:
        return zeros(outputs)

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        self.batches += 1
        return self.bend(outputs) if self.is_wrong(batch) else outputs


class AccOnly(_Wrong):
    """Answers correctly only in the accuracy run, which it recognises by the log folder."""

    def is_wrong(self, batch: Batch) -> bool:
        return is_performance()


class AccOnlyBurn(_Wrong):
    """Computes nothing in performance runs, but spins for 100 us to look busy."""

    def is_wrong(self, batch: Batch) -> bool:
        return is_performance()

    def bend(self, outputs: Outputs) -> Outputs:
        until_s = time.perf_counter() + 100e-6
        while time.perf_counter() < until_s:
            pass
        return zeros(outputs)


class AccOnlyPlan(_Wrong):
    """Answers correctly only in the accuracy run, which it recognises by the load plan in a stack frame."""

    def is_wrong(self, batch: Batch) -> bool:
        plans = [p for f in frames() for p in f.f_locals.values() if isinstance(p, LoadPlan)]
        return is_timed() and not any(plan.accuracy for plan in plans)


class AccOnlyBatches(_Wrong):
    """Answers correctly only in large batches, which Server uses in the accuracy run."""

    def is_wrong(self, batch: Batch) -> bool:
        return is_timed() and batch.size < 8


class WrongInLargeBatches(_Wrong):
    """Answers wrongly in batches of more than eight."""

    def is_wrong(self, batch: Batch) -> bool:
        return batch.size > 8


class RandomAnswers(_Wrong):
    """Returns random answers."""

    def is_wrong(self, batch: Batch) -> bool:
        return is_timed()

    def bend(self, outputs: Outputs) -> Outputs:
        return {n: np.random.random(r.shape).astype(r.dtype) for n, r in named(outputs).items()}


class EverySecond(_Wrong):
    """Computes only every second batch."""

    def is_wrong(self, batch: Batch) -> bool:
        return self.batches % 2 == 0


class EverySecondInRun(EverySecond):
    """Computes only every second batch of the performance run."""

    def is_wrong(self, batch: Batch) -> bool:
        return super().is_wrong(batch) and is_performance()


class NoisyInRun(AccOnly):
    """Computes with so little precision in the performance run that some answers change."""

    def bend(self, outputs: Outputs) -> Outputs:
        return {
            name: rows + np.random.normal(0, 4, rows.shape).astype(rows.dtype)
            for name, rows in named(outputs).items()
        }


class WrongUnderLoad(_Wrong):
    """Answers wrongly if a batch arrives less than 1 ms after the previous batch."""

    last_s = 0.0

    def is_wrong(self, batch: Batch) -> bool:
        since_s, self.last_s = time.monotonic() - self.last_s, time.monotonic()
        return is_timed() and since_s < 1e-3


class WrongOneIn100(_Wrong):
    """Answers one sample in a hundred of the performance run wrongly."""

    every = 100

    def is_wrong(self, batch: Batch) -> bool:
        return self.batches % self.every == 0 and is_performance()


class WrongOneIn1000(WrongOneIn100):
    """Answers one sample in a thousand of the performance run wrongly."""

    every = 1000


class Rounds(_Wrong):
    """Answers in half precision without reporting it."""

    def is_wrong(self, batch: Batch) -> bool:
        return True

    def bend(self, outputs: Outputs) -> Outputs:
        return {
            name: rows.astype(np.float16).astype(rows.dtype)
            for name, rows in named(outputs).items()
        }


class MutatesInput(OrtBackend):
    """Writes into the dataset's memory."""

    def infer(self, batch: Batch) -> Outputs:
        for rows in batch.inputs.values():
            rows[...] = 0
        return super().infer(batch)


class MutatesInputInRun(OrtBackend):
    """Removes the write protection of the dataset's memory, and clears the memory in the performance run."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        if is_performance():
            for rows in batch.inputs.values():
                owner: Any = rows if rows.base is None else rows.base
                while owner.base is not None:
                    owner = owner.base
                owner.setflags(write=True)
                owner[...] = 0
        return outputs


class SharesABuffer(OrtBackend):
    """Shares one array for the answers of all instances."""

    buffer: Array = np.zeros((4096, 10), np.float32)

    def infer(self, batch: Batch) -> Outputs:
        ((name, rows),) = named(super().infer(batch)).items()
        self.buffer[: len(rows)] = rows
        time.sleep(1e-3)
        return {name: self.buffer[: len(rows)]}


class ReusesItsBuffer(OrtBackend):
    """Reuses one array for every answer, which the harness copies before the next call."""

    def infer(self, batch: Batch) -> Outputs:
        ((name, rows),) = named(super().infer(batch)).items()
        buffer: Array = vars(self).setdefault("buffer", np.zeros((4096, 10), rows.dtype))
        buffer[: len(rows)] = rows
        return {name: buffer[: len(rows)]}


class Deduplicates(OrtBackend):
    """Computes equal samples in a batch only once."""

    def infer(self, batch: Batch) -> Outputs:
        ((name, rows),) = batch.inputs.items()
        different, places = np.unique(rows.reshape(len(rows), -1), axis=0, return_inverse=True)
        some = Batch(len(different), {name: different.reshape(-1, *rows.shape[1:])})
        return {n: r[places.ravel()] for n, r in named(super().infer(some)).items()}


class WrongNowAndThen(_Wrong):
    """Answers one random batch in 50 wrongly, in both runs."""

    def is_wrong(self, batch: Batch) -> bool:
        return is_timed() and random.random() < 0.02
