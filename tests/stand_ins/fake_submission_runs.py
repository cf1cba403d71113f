"""Finished runs for a whole matrix without running anything: the files of a run are made from the golden logs, as if
the digits model had answered 50,000 samples for 600 s.
"""

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.config.run_config import to_plain
from harness.core.formats.strict_yaml import write_yaml
from harness.core.shown.private import host_id
from harness.datasets import digits
from harness.loadgen.logs import ACCURACY
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.user_conf import copy_audit
from harness.submit.plan import data_size
from harness.submit.plan.attempts import RUNS
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import PlannedRun, plan, write_audits
from harness.submit.plan.request import INTERACTIVE, Request
from harness.submit.plan.request_file import read_request
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.tree.verify import TEST01
from tests.builders.submission.trees import (
    AUDIT,
    SAMPLES,
    TEST01_ROWS,
    write_accuracy_logs,
    write_performance_logs,
)

CLOSED = Request(
    division="closed",
    submitter="LabOrg",
    system="box",
    category="datacenter,edge",
    benchmark="resnet",
    options={"model": "digits", "backend": "ort", "target_qps": 2000.0},
)
WORDS = (
    *("--division", "closed", "--submitter", "LabOrg", "--system", "box"),
    *("--category", "datacenter,edge", "--benchmark", "resnet"),
    *("--model", "digits", "--backend", "ort", "--target-qps", "2000"),
)
"""The request CLOSED as words of a command line."""

FAKE = "tests.stand_ins.fake_submission_runs"
"""The module that a test runs in place of a run's command."""

ANSWERS = {
    "status": "available",
    "cooling": "air",
    "host_storage_type": "SSD",
    "host_networking": "N/A",
    "host_networking_topology": "N/A",
    "host_memory_configuration": "2x 16 GB",
    "retraining": "no",
    "weight_data_types": "fp32",
    "weight_transformations": "none",
    "calibration": "None: float32.",
}
SLEPT: Mapping[str, Any] = {
    "measured_process": {"cpu_s_per_query": 60e-6},
    "stages_ns": {"infer": {"p50": 900_000}},
    "queries": {"samples_per_query": 1, "mean_batch": 1.5},
}
"""The values in result.json for a backend that waited during most of its batches' time."""

ENVIRONMENT: Mapping[str, Any] = {
    "machine": {"cpu": 'A "fast" CPU', "memory_bytes": 32 << 30, "host": host_id()},
    "system": {"os": "Linux", "kernel": "6.1", "python": "3.11"},
    "packages": {"numpy": "2.0"},
    "harness": {"version": "0.1.0", "commit": None},
}


@cache
def right_answers(count: int, samples: int = SAMPLES) -> str:
    """Returns an accuracy log with `count` rows that repeat the labels of the digits. samples: number of different
    samples.
    """
    with np.load(digits.FILE) as file:
        labels = [np.int64(label).tobytes().hex().upper() for label in file["labels"]]
    rows = (
        f'{{ "seq_id" : {i}, "qsl_idx" : {i % samples}, "data" : "{labels[i % samples % len(labels)]}" }}'
        for i in range(count)
    )
    return "[\n" + ",\n".join(rows) + "\n]\n"


def make_runs(request: Request, work: Path, **changed: Any) -> None:
    """Writes a valid attempt for every run in the matrix. changed: changed values in result.json."""
    write_audits(request, work)
    for row in plan(request, work):
        make_run(row, work, right_answers(TEST01_ROWS, 50), **changed)


def make_run(row: PlannedRun, work: Path, answers: str, number: int = 1, **changed: Any) -> Path:
    folder = work / RUNS / row.name
    out = folder / f"attempt-{number}"
    logs = out / ("accuracy" if row.kind == "accuracy" else "performance/run_1")
    if row.kind == "accuracy":
        write_accuracy_logs(logs, row.scenario)
        (logs / "accuracy.txt").write_text("accuracy=99.200%, good=49600, total=50000\n")
        answers = right_answers(SAMPLES)
    else:
        more = AUDIT.get(row.kind, {})
        write_performance_logs(logs, row.scenario, more)
    (logs / ACCURACY).write_text(answers if row.kind in ("accuracy", TEST01) else "[\n]\n")
    (logs / "user.conf").write_text("*.Server.target_qps = 2000.000000\n")
    (logs / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "int64"}}))
    (logs / "completions.npz").write_bytes(b"never packed")
    if row.config.audit is not None:
        copy_audit(row.config.audit, logs)
    write_yaml(folder / f"{number}-asked.yaml", to_plain(row.config))
    settings = {"model_sha256": "a" * 64, "dataset_digest": "d", "loadgen_version": "6.0.17"}
    threads = {} if row.config.url else {"threads": 1}
    write_yaml(out / "config.yaml", {**to_plain(row.config), **settings, **threads})
    result = {
        "verdict": "VALID",
        "reasons": [],
        "not_for_submission": [],
        "started": f"2026-11-21T04:00:0{number}.000",
        "dataset": "digits",
        "dataset_description": {"count": SAMPLES, "digest": "d"},
        "backend_description": {"framework": "onnxruntime 1.22"},
        "environment": dict(ENVIRONMENT),
        "calibration": {"rate_per_s": 1000.0, "latency_ns": 1_000_000},
        "accuracy": {"value": 99.2, "compared": {"answers": 500, "differing": 0}},
    }
    (out / "result.json").write_text(json.dumps(result | changed))
    (out / "findings.json").write_text(json.dumps(_findings(row)))
    return out


def _samples(row: PlannedRun) -> int:
    """Returns the round's number of samples, so that the run has the right size."""
    of_round = load_round().benchmarks.values()
    key = (row.config.mlperf_model or "").removesuffix(INTERACTIVE)
    return next((one.samples_in(row.scenario) for one in of_round if one.loadgen == key), SAMPLES)


def _findings(row: PlannedRun) -> dict[str, Any]:
    loaded = {
        "inputs": [["image", "float32", ["batch", 1, 8, 8]]],
        "total_count": _samples(row),
        "performance_count": 1024,
        "fixed_batch": None,
        "synthetic": False,
        "backend": {},
        "dataset": {},
        "model_sha256": "a" * 64,
        "model_bytes": 1,
    }
    empty = dict.fromkeys(
        ("noise", "load", "power", "ptdaemon", "calibration", "ceiling_per_s", "stopped")
    )
    return {
        **empty,
        "started": "s",
        "dataset": "digits",
        "spec": InstanceGroup(1, 1, 1)._asdict(),
        "loaded": loaded,
        "scored": True,
    }


def make_peak(out: Path, **changed: Any) -> Path:
    """Writes the files of a search for a peak."""
    out.mkdir(parents=True)
    content = {
        "scenario": "server",
        "backend": "ort",
        "model": "digits",
        "slo": "p99=12ms",
        "unit": "queries/s",
        "finished": True,
        "peak": 1234.5,
    }
    (out / "peak.json").write_text(json.dumps(content | changed))
    return out


def skip_comparison() -> None:
    """Replaces functions in this process, as tests/submit/conftest.py does in pytest's process."""
    setattr(FinishedRun, "differences", lambda _run, **_: [])  # noqa: B010 - mypy
    setattr(data_size, "samples_of", lambda _config: None)  # noqa: B010


def main() -> int:
    """Acts like `python -m harness --config FILE --out DIR`, but only writes the files of the run.

    If the file work/fail-<run> exists, the run fails; if work/hang-<run> exists, the run waits until it is stopped.
    """
    words = sys.argv[1:]
    out = Path(words[words.index("--out") + 1])
    name, work = out.parent.name, out.parents[2]
    if (work / f"hang-{name}").exists():
        out.with_name(f"{out.name}.partial").mkdir()
        (work / "hangs").touch()
        time.sleep(60)
    if (work / f"fail-{name}").exists():
        return 5
    if words[0] == "peak":
        make_peak(out)
        return 0
    skip_comparison()
    request = read_request(work)
    row = next(r for r in plan(request, work) if r.name == name)
    answers = right_answers(TEST01_ROWS, 50)
    number = int(out.name.removeprefix("attempt-"))
    make_run(row, work, answers, number, started=datetime.now(UTC).isoformat())
    return 0
