"""Fake runs, in process and through a server, that replace harness.run.supervisor.job.measure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.results.evidence.stages import LOCAL_STAGES, REMOTE_STAGES
from harness.results.outcome import Finished

HERE = dict.fromkeys(LOCAL_STAGES, 1_000) | {"infer": 20_000}
THERE = dict.fromkeys(REMOTE_STAGES, 5_000) | {"remote": 150_000}
FLOOR_NS = 43_000
TIMES_NS = (10_000, 25_000)
"""Times in ns that a query spends in the server's queue and in the model."""


def _stages(stages: Mapping[str, int]) -> dict[str, Any]:
    return {
        "latency_ns": {"p50": sum(stages.values())},
        "stages_ns": {name: {"p50": ns, "p99": ns, "share": 0.1} for name, ns in stages.items()},
    }


def in_process(stages: Mapping[str, int] = HERE) -> dict[str, Any]:
    """Returns the parts of result.json that `overhead` reads; every query takes the same time."""
    return {**_stages(stages), "client": None}


def served(
    stages: Mapping[str, int] = THERE,
    floor_ns: int | None = FLOOR_NS,
    queue_ns: int = TIMES_NS[0],
    compute_ns: int = TIMES_NS[1],
) -> dict[str, Any]:
    times = {"queue_ns": queue_ns, "compute_ns": compute_ns, "total_ns": queue_ns + compute_ns}
    told = {"source": "Server-Timing", "requests": 100, **times}
    client = {"floor_p50_ns": floor_ns, "no_ceiling": "it was busy", "server_times": told}
    return {**_stages(stages), "client": client}


class Runs:
    """Stands in for `measure`. change: function that changes the files of a run, given the run's name; the function may
    raise an exception.
    """

    def __init__(self, change: Callable[[str, dict[str, Any]], None] | None = None) -> None:
        self.change = change or (lambda name, result: None)
        self.made: list[str] = []
        self.configs: list[RunConfig] = []

    def __call__(self, config: RunConfig, **_: object) -> Finished:
        assert config.out is not None
        name = config.out.name
        self.made.append(name)
        self.configs.append(config)
        remote = bool(config.url)
        rate = 500.0 if remote else 2000.0
        result = {
            "verdict": "VALID",
            "reasons": [],
            "doubts": [{"code": "loopback", "text": "here"}] if remote else [],
            "scenario": config.scenario,
            "throughput_per_s": {"completed": rate} if config.mode == "performance" else None,
            "backend_description": {"precision": "float32", "threads": "1" if remote else 1},
            **(served() if remote else in_process()),
            "answer": 0.25,
        }
        self.change(name, result)
        result["verdict"] = "INVALID" if result["reasons"] else "VALID"
        status = result.pop("status", 4 if result["reasons"] else 0)
        config.out.mkdir(parents=True)
        if config.mode == "accuracy":
            self._log(config, result["answer"])
        (config.out / "result.json").write_text(json.dumps(result))
        return Finished(status, config.out, result)

    @staticmethod
    def _log(config: RunConfig, score: float) -> None:
        assert config.out is not None
        folder = config.out / "accuracy"
        folder.mkdir()
        data = np.array([score, 1.0], np.float32).tobytes().hex()
        rows = [{"seq_id": i, "qsl_idx": i, "data": data} for i in range(10)]
        (folder / "mlperf_log_accuracy.json").write_text(json.dumps(rows))
        (folder / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "float32"}}))
