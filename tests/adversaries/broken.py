"""Backends that are broken, or that end the measured process."""

import os
import signal
import time
from typing import Self

import numpy as np

from harness.backends.ort import OrtBackend
from harness.core.child import Channel
from harness.loadgen.logs import digests
from harness.types import Batch, Outputs
from tests.adversaries.parts import frames, is_performance, is_timed, named, run_folder


class _Fails(OrtBackend):
    """Fails in every 50th batch of the performance run."""

    batches = 0

    def fail(self, outputs: Outputs) -> Outputs:
        raise NotImplementedError

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        self.batches += is_performance()
        return self.fail(outputs) if self.batches % 50 == 49 else outputs


class RaisesSometimes(_Fails):
    """Raises an exception."""

    def fail(self, outputs: Outputs) -> Outputs:
        raise RuntimeError("out of luck")


class NanSometimes(_Fails):
    """Returns NaN."""

    def fail(self, outputs: Outputs) -> Outputs:
        return {name: np.full_like(rows, np.nan) for name, rows in named(outputs).items()}


class InfSometimes(_Fails):
    """Returns +Inf."""

    def fail(self, outputs: Outputs) -> Outputs:
        return {name: np.full_like(rows, np.inf) for name, rows in named(outputs).items()}


class DropsASample(_Fails):
    """Returns one row too few."""

    def fail(self, outputs: Outputs) -> Outputs:
        return {name: rows[1:] for name, rows in named(outputs).items()}


class KillsItself(_Fails):
    """Kills its own process with a signal."""

    def fail(self, outputs: Outputs) -> Outputs:
        os.kill(os.getpid(), signal.SIGKILL)
        return outputs


class ExitsWithZero(_Fails):
    """Ends the process with exit status 0."""

    def fail(self, outputs: Outputs) -> Outputs:
        os._exit(0)


class SendsItsOwnEnd(_Fails):
    """Sends the supervisor the last message of a run, then ends the process."""

    def fail(self, outputs: Outputs) -> Outputs:
        channels = [c for f in frames() for c in f.f_locals.values() if isinstance(c, Channel)]
        words = ("cpu_s", "wall_s", "wall_offset_ns", "voluntary_switches", "involuntary_switches")
        more = (
            "rss_before_bytes",
            "rss_run_peak_bytes",
            "rss_peak_bytes",
            "cyclic_garbage_objects",
        )
        used = {**dict.fromkeys((*words, *more), 1), "rss_run_peak_reason": None}
        channels[0].send(
            "ended", used=used, answer_dtype="int64", answer_shape=[], dispatcher="inline", issuer=[],
            files=digests(run_folder()), bare=None, probed=None, failed_samples=0, first_failure="", close_error="", client=None,
            tokens=None, models=None,
        )  # fmt: skip
        os._exit(0)


class HangsInRun(_Fails):
    """Never returns from one of its batches."""

    def fail(self, outputs: Outputs) -> Outputs:
        time.sleep(3600)
        return outputs


class RaisesAtTheEnd(OrtBackend):
    """Raises when it is closed."""

    def __exit__(self, *exception: object) -> None:
        raise RuntimeError("no end")


class SleepsInRun(OrtBackend):
    """Sleeps for 30 ms in each batch of the run, as if it waited for another program."""

    def infer(self, batch: Batch) -> Outputs:
        if is_timed():
            time.sleep(30e-3)
        return super().infer(batch)


class Leaks(OrtBackend):
    """Leaks 500 kB per batch of 20 ms, so that the leak shows within nine seconds."""

    def infer(self, batch: Batch) -> Outputs:
        if is_timed():
            kept: list[bytes] = vars(self).setdefault("kept", [])
            kept.append(b"x" * 500_000)
            spins_until_ns = time.monotonic_ns() + 20_000_000
            while time.monotonic_ns() < spins_until_ns:
                pass
        return super().infer(batch)


class SleepsInLoad(OrtBackend):
    """Loads the model slowly."""

    def __enter__(self) -> Self:
        time.sleep(1)
        return super().__enter__()


class BreaksAfterAWhile(OrtBackend):
    """Repeats its first answer after the first hundred batches."""

    batches = 0
    kept: Outputs | None = None

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        self.batches += is_timed()
        if self.batches < 100:
            return outputs
        self.kept = self.kept or {name: rows[:1] for name, rows in named(outputs).items()}
        return {name: rows.repeat(batch.size, axis=0) for name, rows in named(self.kept).items()}
