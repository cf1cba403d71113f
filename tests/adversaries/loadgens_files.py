"""Cheats that change LoadGen's settings and files. Each cheat computes the answers with ONNX Runtime."""

import json
import os
import time
from typing import Any, Self

from harness.backends.ort import OrtBackend
from harness.loadgen.binding import settings_for
from harness.loadgen.logs import ACCURACY, ANSWERS, DETAIL, SUMMARY
from harness.run.measured import load
from harness.types import Batch, Outputs
from tests.adversaries.parts import callers_indices, is_performance, is_timed, run_folder, zeros


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
    """Sleeps beyond the latency bound, and writes VALID into the log."""

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
    """Replaces the rate by a rate ten times as high."""

    def edit(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            if "_samples_per_sec" in line:
                entry = json.loads(line.removeprefix(":::MLLOG "))
                entry["value"] *= 10
                line = f":::MLLOG {json.dumps(entry)}"  # noqa: PLW2901
            lines.append(line)
        return "\n".join(lines) + "\n"


class EditsLatencies(_EditsTheLog):
    """Halves every latency."""

    def edit(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            entry = json.loads(line.removeprefix(":::MLLOG ")) if line.startswith(":::") else {}
            if str(entry.get("key")).endswith("latency_ns") and "result" in entry["key"]:
                entry["value"] //= 2
                line = f":::MLLOG {json.dumps(entry)}"  # noqa: PLW2901
            lines.append(line)
        return "\n".join(lines) + "\n"


class _PatchesSettings(OrtBackend):
    """Changes LoadGen's settings between the plan and the run."""

    def patch(self, settings: Any) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        # Saves the original function and not a patched one, because a run may open the backend several times.
        original = settings_for

        def patched(plan: Any) -> Any:
            settings = original(plan)
            self.patch(settings)
            return settings

        vars(load)["settings_for"] = patched
        super().__enter__()
        return self


class PatchesBound(_PatchesSettings):
    """Makes LoadGen judge against a bound of 1,000 s."""

    def patch(self, settings: Any) -> None:
        settings.server_target_latency_ns = 10**12


class PatchesSamples(_PatchesSettings):
    """Makes LoadGen request one sample repeatedly, so that its answer can be cached."""

    def patch(self, settings: Any) -> None:
        settings.performance_issue_same = True


class PatchesCount(_PatchesSettings):
    """Makes LoadGen issue only a tenth of the queries."""

    def patch(self, settings: Any) -> None:
        settings.min_query_count //= 10


class PatchesSampling(_PatchesSettings):
    """Makes LoadGen log very few answers for the comparison."""

    def patch(self, settings: Any) -> None:
        settings.accuracy_log_sampling_target = 1


class PlantsAnswers(OrtBackend):
    """Computes nothing in the performance run, and writes right answers to the file in which the harness keeps them."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        if is_performance():
            rows = [
                {"seq_id": i, "qsl_idx": sample, "data": ""}
                for i, sample in enumerate(callers_indices() or [])
            ]
            (run_folder() / ANSWERS).write_text(json.dumps(rows))
            return zeros(outputs)
        return outputs


class MendsTheLog(OrtBackend):
    """Computes nothing in the performance run, and empties LoadGen's answer log at the end."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        if is_performance():
            return zeros(outputs)
        return outputs

    def __exit__(self, *exception: object) -> None:
        path = run_folder() / ACCURACY
        if path.is_file() and "accuracy" not in path.parent.name:
            path.write_text("[]")
        super().__exit__(*exception)


class EditsResultLater(OrtBackend):
    """Computes nothing in the performance run, and leaves a process that writes VALID into the result after the run."""

    def infer(self, batch: Batch) -> Outputs:
        outputs = super().infer(batch)
        return zeros(outputs) if is_performance() else outputs

    def __exit__(self, *exception: object) -> None:
        folder = run_folder().parents[1]
        if folder.name.endswith(".partial") and not os.fork():
            os.setsid()
            path = folder.with_suffix("") / "result.json"
            while not path.is_file():
                time.sleep(0.1)
            # The process id keeps the names apart, because the process of the accuracy run edits the result, too.
            edited = path.with_name(f"{os.getpid()}.json")
            edited.write_text(path.read_text().replace('"INVALID"', '"VALID"'))
            edited.rename(path)
            os._exit(0)
        super().__exit__(*exception)
