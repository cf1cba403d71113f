"""Fake runs and probes that replace harness.run.supervisor.job.measure and harness.core.child.call."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness.core.config.run_config import RunConfig, to_plain
from harness.errors import HarnessError
from harness.results.outcome import Finished
from harness.run.progress import Progress
from harness.search.grid.cells.cells import Row

SPEED = {"fp32": 1.0, "int8": 2.0}
ACCURACY = {"fp32": 99.2, "int8": 99.0}


def row(**values: Any) -> Row:
    """Returns a VALID cell: `net` in fp32 on ort with one sample, one thread and real data."""
    cell = {"model": "net", "backend": "ort", "precision": "fp32", "batch": 1, "threads": 1}
    given = {"shape": (), "data": "real", "verdict": "VALID", "throughput_per_s": 100.0}
    return Row(**{**cell, **given, **values})


def precision_of(config: RunConfig) -> str:
    return "int8" if config.model_file is not None else "fp32"


class Runs:
    """Stands in for runs, which are VALID unless `ends` maps the run's number to something else: a (reason's code,
    exit status), or an error to raise.
    """

    def __init__(self, ends: Mapping[int, tuple[str, int] | HarnessError] | None = None) -> None:
        self.ends = ends or {}
        self.configs: list[RunConfig] = []

    def __call__(
        self, config: RunConfig, *, quiet: bool = True, progress: Progress | None = None
    ) -> Finished:
        assert quiet
        if progress is not None:
            progress.show("performance", share=0.5)
        self.configs.append(config)
        end = self.ends.get(len(self.configs), ("", 0))
        if isinstance(end, HarnessError):
            raise end
        code, status = end
        assert config.out is not None
        partial = status not in (0, 4)
        folder = config.out.with_name(config.out.name + ".partial") if partial else config.out
        folder.mkdir(parents=True)
        made = result(config, [code] if code else [])
        content = {**to_plain(config), "model_sha256": "a" * 64, "dataset_digest": "b" * 64}
        (folder / "result.json").write_text(json.dumps(made))
        (folder / "config.yaml").write_text(yaml.safe_dump(content))
        (folder / "environment.json").write_text(json.dumps({"machine": {"cores_usable": 2}}))
        return Finished(status, folder, made)


def result(config: RunConfig, reasons: list[str]) -> dict[str, Any]:
    """Returns the parts of result.json that a grid reads."""
    precision = precision_of(config)
    speed = 1000.0 * SPEED[precision] * min(config.max_batch or 1, 4)
    scored = {
        "value": ACCURACY[precision],
        "metric": "top1",
        "target": 98.5,
        "lower_is_better": False,
    }
    synthetic = config.dataset == "synthetic"
    return {
        "verdict": "INVALID" if reasons else "VALID",
        "reasons": [{"code": code, "text": f"{code} it is"} for code in reasons],
        "doubts": [],
        "scenario": config.scenario,
        "mode": config.mode,
        "backend": config.backend,
        "model": config.model,
        "dataset": config.dataset or "digits",
        "latency_ns": None,
        "stages_ns": None,
        "throughput_per_s": {"completed": speed},
        "accuracy": {"value": None, "reason": "synthetic data"} if synthetic else scored,
        "plan": {"max_batch": config.max_batch},
        "power": None,
        "power_reason": "no meter was requested",
        "measured_process": {"cpu_over_wall": 1.0},
    }


class Calls:
    """Stands in for calls of child processes. weights: number of weights in the file of each precision."""

    def __init__(self, folder: Path, weights: Mapping[str, list[int]] | None = None) -> None:
        self.folder = folder
        self.weights = weights or {}
        self.targets: list[str] = []

    def __call__(self, target: str, request: Mapping[str, Any], _log: Path) -> dict[str, Any]:
        self.targets.append(target)
        if target.endswith(":make"):
            file = self.folder / "net-int8.onnx"
            file.write_bytes(b"int8")
            return {"file": str(file), "about": "made for a test"}
        precision = "int8" if "model_file" in request["config"] else "fp32"
        outputs = np.array([[1.0, 2.0, 0.0]]) + (0.1 if precision == "int8" else 0.0)
        np.savez(request["out"], outputs=outputs)
        types = ["int8" if precision == "int8" else "float32"]
        weights = self.weights.get(precision, [16, 32])
        structure = {"weights": weights, "types": types, "strides": []}
        return {"structure": structure, "unknown": "", "samples": 1, "backend": {}}
