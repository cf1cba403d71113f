"""Fake backends: runs with given speeds and answers replace measured processes."""

import itertools
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.errors import HarnessError
from harness.results.compare.finished import FinishedRun
from harness.results.numbers import Number
from harness.results.outcome import Finished
from harness.run.progress import Progress

LABELS = np.arange(10)
"""Right answers, by sample."""


class Backends:
    """speed: maps (backend, round from 0) to samples/s. ends: maps the number of a run that is not VALID to a
    (reason's code, exit status), or to an error to raise. answers: maps a backend to its answers by sample, or to the
    error at its start.
    doubted: backends whose runs have a doubt about the machine.
    """

    def __init__(
        self,
        speed: Callable[[str, int], float],
        ends: Mapping[int, tuple[str, int] | HarnessError] | None = None,
        answers: Mapping[str, Any] | None = None,
        sample_ns: Mapping[str, float] | None = None,
        doubted: tuple[str, ...] = (),
    ) -> None:
        self.speed = speed
        self.ends = ends or {}
        self.answers = answers or {}
        self.sample_ns = sample_ns or {}
        self.doubted = doubted
        self.configs: list[RunConfig] = []
        self.answered: list[str] = []
        self._first_seed: int | None = None
        self._now = itertools.count()

    def measure(
        self, config: RunConfig, *, progress: Progress, probe_s: float, quiet: bool = True
    ) -> Finished:
        assert quiet
        assert 0 < probe_s < 1
        progress.show("performance", share=0.5)
        self.configs.append(config)
        end = self.ends.get(len(self.configs), ("", 0))
        if isinstance(end, HarnessError):
            raise end
        code, status = end
        assert config.out is not None
        assert config.schedule_seed is not None
        self._first_seed = config.schedule_seed if self._first_seed is None else self._first_seed
        speed = self.speed(config.backend, config.schedule_seed - self._first_seed)
        started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self._now))
        result = {
            "started": started.isoformat(timespec="milliseconds"),
            "verdict": "INVALID" if code else "VALID",
            "reasons": [{"code": code, "text": f"{code} it is"}] if code else [],
            "doubts": [{"code": "busy-machine"}] if config.backend in self.doubted else [],
            "scenario": config.scenario,
            "backend": config.backend,
            "model": config.model,
            "throughput_per_s": {"completed": speed},
            "latency_ns": dict.fromkeys(("p50", "p90", "p99", "mean"), 1e9 / speed),
            "latency_intervals_ns": {},
        }
        partial = status not in (0, 4)
        folder = config.out.with_name(config.out.name + ".partial") if partial else config.out
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result))
        return Finished(status, folder, result)

    def call(self, target: str, request: Mapping[str, Any], _log: Path) -> dict[str, Any]:
        assert target.endswith(":answer")
        backend = request["config"].get("backend", "ort")
        self.answered.append(backend)
        answers = self.answers.get(backend, LABELS)
        if isinstance(answers, HarnessError):
            raise answers
        np.savez(request["out"], **{str(i): value for i, value in enumerate(answers)})
        about = {"framework": f"{backend} 1", "precision": "float32"}
        sample_ns = self.sample_ns.get(backend)
        return {"backend": about, "samples": len(answers), "sample_ns": sample_ns}


def read(folder: Path) -> FinishedRun:
    """Replaces harness.results.compare.finished.read; returns numbers with an interval of 2 % within the run."""
    result = json.loads((folder / "result.json").read_text())
    speed = result["throughput_per_s"]["completed"]
    found = {"throughput": Number(speed, "samples/s", "rate", 0.98 * speed, 1.02 * speed, True)}
    for name in ("p50", "p90", "p99"):
        ns = result["latency_ns"][name]
        found[name] = Number(ns, "ns", "tail" if name == "p99" else "body", 0.98 * ns, 1.02 * ns)
    if result["scenario"] == "offline":
        found = {"throughput": found["throughput"]}
    return FinishedRun(
        name=folder.name,
        folder=folder,
        measured=str(folder),
        result=result,
        environment={},
        config={"model_sha256": "a" * 64, "dataset_digest": "b" * 64},
        numbers=found,
    )
