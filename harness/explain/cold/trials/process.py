"""Runs one trial in a new process: reads, loads and runs a model for the first time, and times each phase. This module
imports little, because imports add to the start time of the process.
"""

import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from harness.core import registry
from harness.core.config.run_config import RunConfig, from_plain
from harness.core.registry import plugin
from harness.explain.cold.trials import page_cache, phases
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.files import files_of
from harness.models.manifest.lookup import model_from_json
from harness.models.manifest.model import Model
from harness.models.opened.loading import inputs_of, open_backends, open_dataset
from harness.types import Backend, Batch

_SAMPLE = [0]
"""Dataset indices of the samples that every trial runs: only the first sample."""


def trial(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns times in ns, and the peak resident memory in bytes.

    request: contains `config` and `model` (plain data), `path` (the model file), `dataset`, `threads`, `runs` (number
    of steady runs), `read` (whether to read the files from the disk first), and `asked_ns` (monotonic time at which the
    process was requested). read_ns is None if no file was read.
    """
    entered_ns = time.monotonic_ns()
    config, model = from_plain(request["config"]), model_from_json(request["model"])
    path = Path(request["path"])
    registry.load("backend", config.backend)
    imported_ns = time.monotonic_ns()
    clock = phases.watch(config.backend)
    read_ns = _read_ns(path) if request["read"] else None
    group = InstanceGroup(1, request["threads"], 1)
    with ExitStack() as stack:
        begun_ns = time.monotonic_ns()
        (backend,) = open_backends(config, model, path, group, stack)
        load_ns = time.monotonic_ns() - begun_ns
        batch, input_ns = first_sample(config, model, backend, request["dataset"])
        runs_ns = _runs_ns(config.backend, backend, batch, 1 + request["runs"])
        framework = str(backend.describe().get("framework", ""))
    return {
        "process_ns": entered_ns - request["asked_ns"],
        "framework_ns": imported_ns - entered_ns,
        "read_ns": read_ns,
        "deserialise_ns": clock.spent_ns.get(phases.DESERIALISE),
        "prepare_ns": clock.spent_ns.get(phases.PREPARE),
        "rest_ns": load_ns - sum(clock.spent_ns.values()),
        "input_ns": input_ns,
        "first_ns": runs_ns[0],
        "steady_ns": round(median(runs_ns[1:])),
        "peak_bytes": _peak_bytes(),
        "framework": framework,
    }


def _read_ns(path: Path) -> int:
    begun_ns = time.monotonic_ns()
    page_cache.read(files_of(path).values())
    return time.monotonic_ns() - begun_ns


def first_sample(config: RunConfig, model: Model, backend: Backend, name: str) -> tuple[Batch, int]:
    """Returns the dataset's first sample as a batch, and the time in ns to decode and preprocess it."""
    dataset = open_dataset(config, model, name, inputs_of(model, backend))
    with plugin(f"dataset {name!r}"):
        begun_ns = time.monotonic_ns()
        dataset.load(_SAMPLE)
        batch = dataset.batch(_SAMPLE)
        return batch, time.monotonic_ns() - begun_ns


def _runs_ns(name: str, backend: Backend, batch: Batch, count: int) -> list[int]:
    runs_ns = []
    with plugin(f"backend {name!r}: infer"):
        for _ in range(count):
            begun_ns = time.monotonic_ns()
            backend.infer(batch)
            runs_ns.append(time.monotonic_ns() - begun_ns)
    return runs_ns


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
