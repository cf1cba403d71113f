"""Backends with one fault each, named on the command line as faulty.py:Class."""

import ctypes
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from harness.core import clock
from harness.loadgen import binding
from harness.types import Array, BackendSetup, Batch

GOOD_BATCHES = 150
"""Number of batches in the run before the fault."""


def in_run() -> bool:
    """Returns whether the run has begun; before the run, warm-up and calibration must pass."""
    return any(t.name == "loadgen" for t in threading.enumerate())


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
        self.batches += in_run()
        good = np.zeros((batch.size, 10), np.float32)
        return good if self.batches <= GOOD_BATCHES else self.fault(good)

    def fault(self, good: Array) -> Any:
        return good


class Raises(Faulty):
    def fault(self, good: Array) -> Any:
        raise RuntimeError("boom")


class RaisesOnce(Faulty):
    def fault(self, good: Array) -> Any:
        if self.batches == GOOD_BATCHES + 1:
            raise SystemExit("once")
        return good


class CutsCorners(Faulty):
    """Gives different answers in the first process, which makes the performance run, and in the second process."""

    def __enter__(self) -> Self:
        mark = Path(self.mark)
        self.label = int(mark.exists())
        mark.touch()
        return self

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self.mark = setup.options["mark"]

    def infer(self, batch: Batch) -> Any:
        good = np.zeros((batch.size, 10), np.float32)
        good[:, self.label] = 1.0
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


class WrongShape(Faulty):
    def fault(self, good: Array) -> Any:
        return np.zeros((len(good), 10, 2), np.float32)


class OtherRank(Faulty):
    """Returns rows as a list, which may differ in length but not in rank."""

    def infer(self, batch: Batch) -> Any:
        return list(super().infer(batch))

    def fault(self, good: Array) -> Any:
        return good.reshape(len(good), 2, 5)


class NotANumber(Faulty):
    def fault(self, good: Array) -> Any:
        return good * np.nan


class Overflows(Faulty):
    """Returns values that overflow, as a network in float16 does."""

    def fault(self, good: Array) -> Any:
        return good.astype(np.float16) + np.float16(np.inf)


class RaisesAfterwards(Faulty):
    """Works in the first process that uses it, and raises an exception in the next."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self.mark = Path(setup.options["mark"])
        self.second = self.mark.exists() and self.mark.read_text() != str(os.getpid())
        self.mark.write_text(str(os.getpid()))

    def infer(self, batch: Batch) -> Any:
        if self.second and in_run():
            raise RuntimeError("only now")
        return np.zeros((batch.size, 10), np.float32)


class OutOfMemory(Faulty):
    def __enter__(self) -> Self:
        np.zeros(2**62, np.uint8)
        return self


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
            ctypes.PyDLL(None).usleep(3_000_000)  # the call holds the GIL, as a bad extension does
        return good


class SlowsDown(Faulty):
    """Slows down from 1 ms to 3 ms per batch in the middle of a run of 600 batches."""

    def infer(self, batch: Batch) -> Any:
        self.slow += in_run()
        time.sleep(0.001 if self.slow < 300 else 0.003)
        return np.zeros((batch.size, 10), np.float32)

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self.slow = 0


class Sleeps(Faulty):
    """Claims to be a framework, but computes nothing. Sleeps long enough that even a busy machine wakes it in time."""

    def describe(self) -> dict[str, object]:
        return {"framework": "numpy", "device": "cpu"}

    def infer(self, batch: Batch) -> Any:
        time.sleep(0.2)
        return np.zeros((batch.size, 10), np.float32)


class Leaks(Faulty):
    """Keeps 300 kB per batch, in cycles that only a garbage collector would free."""

    def infer(self, batch: Batch) -> Any:
        if in_run():
            node: list[Any] = [np.ones(300_000, np.uint8)]
            node.append(node)
        time.sleep(0.005)
        return np.zeros((batch.size, 10), np.float32)


class StampsWrong(Faulty):
    """Passes an answer to LoadGen 5 ms after the journal's time stamp, as on a machine that is briefly busy."""

    def __enter__(self) -> Self:
        def stamped() -> int:
            now_ns = clock.wall_ns()
            time.sleep(0.005)
            return now_ns

        vars(binding)["wall_ns"] = stamped
        return self

    def infer(self, batch: Batch) -> Any:
        time.sleep(0.01)
        return np.zeros((batch.size, 10), np.float32)


class Prints(Faulty):
    def fault(self, good: Array) -> Any:
        print("noise" * 2000)  # noqa: T201 - what the fault is
        return good


class RaisesInLoad(Faulty):
    def __enter__(self) -> Self:
        raise ValueError("no load")


class ForgetsFormats(Faulty):
    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        if setup.model is None:
            raise ValueError(f"load model from {setup.model} failed")


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


class LeavesInClose(Faulty):
    def __exit__(self, *exc: object) -> None:
        raise SystemExit(7)


class SwallowsInClose(Faulty):
    """Raises an exception in the warm-up, and hides it."""

    def __exit__(self, *exc: object) -> bool:  # type: ignore[override]
        return True

    def infer(self, batch: Batch) -> Any:
        raise ValueError("no warm-up")


class OwnThreadRaises(Faulty):
    def fault(self, good: Array) -> Any:
        if self.batches == GOOD_BATCHES + 1:
            threading.Thread(target=self.fail).start()
        return good

    def fail(self) -> None:
        raise RuntimeError("in a thread of my own")


class DescribesNan(Faulty):
    def describe(self) -> dict[str, object]:
        return {"framework": "none", "speed": float("nan")}


class BlocksInWarmUp(Faulty):
    def infer(self, batch: Batch) -> Any:
        time.sleep(1e6)


class _Logs(Faulty):
    """Changes LoadGen's detail log when it closes, because the log is complete by then."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self.folder = Path(setup.options["run"]) / "performance/run_1"

    def fault(self, good: Array) -> Any:
        return good

    def __exit__(self, *exc: object) -> None:
        path = self.folder / "mlperf_log_detail.txt"
        text = path.read_text()
        path.unlink()
        changed = self.change(text)
        if changed:
            path.write_text(changed)

    def change(self, text: str) -> str:
        return ""


class RemovesTheLog(_Logs):
    pass


class CutsTheLog(_Logs):
    def change(self, text: str) -> str:
        return text[:-40]


class AddsAnError(_Logs):
    """Writes an error to both logs in LoadGen's format each time an instance closes."""

    def change(self, text: str) -> str:
        text = text.replace('"is_error": false', '"is_error": true', 1)
        count = text.count('"is_error": true')
        said = f"{count} ERROR{'S' if count > 1 else ''} encountered. See detailed log."
        summary = self.folder / "mlperf_log_summary.txt"
        summary.write_text(re.sub(r".*(?i:errors?) encountered.*", said, summary.read_text()))
        return text


class AddsAnotherRun(_Logs):
    def change(self, text: str) -> str:
        return text + text


class SwapsTheLog(_Logs):
    def change(self, text: str) -> str:
        golden = Path(__file__).parent.parent / "golden/offline/performance"
        return (golden / "mlperf_log_detail.txt").read_text()


class LocksTheFolder(_Logs):
    """Locks the folder before LoadGen opens its logs."""

    def infer(self, batch: Batch) -> Any:
        self.folder.chmod(0o555)
        return super().infer(batch)

    def __exit__(self, *exc: object) -> None:
        self.folder.chmod(0o755)
