"""Backends that cheat. Each computes on ONNX Runtime and bends one number; test_cheats.py says what finds it."""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from harness.backends.ort import OrtBackend
from harness.loadgen import binding
from harness.loadgen.logs import ACCURACY, ANSWERS, DETAIL, SUMMARY
from harness.run.measured import load
from harness.types import Batch, Outputs


def run_folder() -> Path:
    """The folder of LoadGen's logs: the frames of the measured process hold it."""
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            setup = getattr(at.f_locals.get("self"), "_setup", None)
            outdir = getattr(setup, "outdir", None)
            if outdir is not None:
                return Path(outdir)
            at = at.f_back
    raise LookupError("the setup is in no frame")


def zeros(outputs: Outputs) -> Outputs:
    if isinstance(outputs, Mapping):
        return {name: np.zeros_like(value) for name, value in outputs.items()}
    return np.zeros_like(outputs)


def is_timed() -> bool:
    """LoadGen runs in a thread of this name."""
    return any(thread.name == "loadgen" for thread in threading.enumerate())


class _EditsTheLog(OrtBackend):
    """Changes LoadGen's files when it is closed, after LoadGen has returned."""

    def edit(self, text: str) -> str:
        raise NotImplementedError

    def __exit__(self, *exception: object) -> None:
        for name in (DETAIL, SUMMARY):
            path = run_folder() / name
            if path.is_file():
                path.write_text(self.edit(path.read_text()))
        super().__exit__(*exception)


class EditsValidity(_EditsTheLog):
    """Sleeps beyond the bound and writes VALID into the log."""

    def infer(self, batch: Batch) -> Outputs:
        if is_timed():
            time.sleep(0.06)
        return super().infer(batch)

    def edit(self, text: str) -> str:
        text = text.replace('"INVALID"', '"VALID"').replace(
            '_met", "value": false', '_met", "value": true'
        )
        return text.replace("Result is : INVALID", "Result is : VALID")


class EditsRate(_EditsTheLog):
    """Writes a rate ten times as high."""

    def edit(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            if "_samples_per_sec" in line:
                entry = json.loads(line.removeprefix(":::MLLOG "))
                entry["value"] *= 10
                line = f":::MLLOG {json.dumps(entry)}"  # noqa: PLW2901
            lines.append(line)
        return "\n".join(lines) + "\n"


class _PatchesSettings(OrtBackend):
    """Changes LoadGen's settings between the plan and the run."""

    def patch(self, settings: Any) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        original = vars(load)["settings_for"]

        def patched(plan: Any) -> Any:
            settings = original(plan)
            self.patch(settings)
            return settings

        vars(load)["settings_for"] = patched
        super().__enter__()
        return self


class PatchesBound(_PatchesSettings):
    """LoadGen judges against a bound of 1,000 s."""

    def patch(self, settings: Any) -> None:
        settings.server_target_latency_ns = 10**12


class PatchesSamples(_PatchesSettings):
    """LoadGen asks for one sample again and again, whose answer can be kept."""

    def patch(self, settings: Any) -> None:
        settings.performance_issue_same = True


class PatchesCount(_PatchesSettings):
    """LoadGen issues a tenth of the queries."""

    def patch(self, settings: Any) -> None:
        settings.min_query_count //= 10


class PatchesSampling(_PatchesSettings):
    """Hardly any answer is compared."""

    def patch(self, settings: Any) -> None:
        settings.accuracy_log_sampling_target = 1


class PlantsAnswers(OrtBackend):
    """Answers nothing in the performance run, and leaves right answers in a file of the harness's own name."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        if is_timed() and "accuracy" not in str(run_folder()):
            rows = [
                {"seq_id": i, "qsl_idx": int(sample), "data": ""}
                for i, sample in enumerate(batch.indices)
            ]
            (run_folder() / ANSWERS).write_text(json.dumps(rows))
            return zeros(outputs)
        return outputs


class AccOnlyBurn(OrtBackend):
    """Answers nothing in performance runs and spins for 100 us, so that it seems to compute."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        if is_timed() and "accuracy" not in str(run_folder()):
            until_s = time.perf_counter() + 100e-6
            while time.perf_counter() < until_s:
                pass
            return zeros(outputs)
        return outputs


class MendsTheLog(OrtBackend):
    """Answers nothing in the performance run, and empties LoadGen's log of its answers at the end."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        if is_timed() and "accuracy" not in str(run_folder()):
            return zeros(outputs)
        return outputs

    def __exit__(self, *exception: object) -> None:
        path = run_folder() / ACCURACY
        if path.is_file() and "accuracy" not in path.parent.name:
            path.write_text("[]")
        super().__exit__(*exception)


class AnswersEarly(OrtBackend):
    """Completes a query from a table before it computes, and swallows the harness's own completion."""

    _table: ClassVar[dict[int, Outputs]] = {}
    _answered: ClassVar[dict[int, int]] = {}
    """LoadGen's id -> wall clock in ns of a completion that the harness is still to make."""

    def __enter__(self) -> Self:
        original = binding.Responder.complete

        def complete(responder: binding.Responder, ids: Sequence[int], answers: Any) -> int:
            early = self._answered.pop(ids[0], None)
            return early if early is not None else original(responder, ids, answers)

        vars(binding)["Responder"].complete = complete
        super().__enter__()
        return self

    def infer(self, batch: Batch) -> Outputs:
        caller = sys._getframe(1).f_locals
        kept = self._table.get(batch.indices[0])
        if not is_timed() or kept is None or "ids" not in caller:
            outputs = super().infer(batch)
            self._table[batch.indices[0]] = outputs
            return outputs
        instance, ids = caller["self"], caller["ids"]
        answers = instance._postprocess(kept, batch.indices)
        self._answered[ids[0]] = instance._responder.complete(ids, answers)
        time.sleep(0.001)
        return kept
