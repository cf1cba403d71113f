"""Measures all that `advise` says something about; what is made of it is derived from the record."""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import host
from harness.analysis import advise_accuracy, flops, graph_file, layer_bench, ort_profile
from harness.analysis.advise_predict import combination
from harness.analysis.advise_record import SCHEMA_VERSION, Record
from harness.analysis.advise_time import Timing, against, open_session, timed
from harness.analysis.baseline import Baseline, Subject, open_runner
from harness.analysis.flops import Cost
from harness.analysis.graph import Graph
from harness.analysis.int8 import quantise_file
from harness.analysis.kernels import OrtProfile, SessionSetup
from harness.analysis.layer_db import LayerDatabase, machine_key
from harness.analysis.layer_units import Unit, units
from harness.analysis.settings import FILE, GRAPH_LEVELS, INT8, Setting, candidates
from harness.analysis.wiring import read_wiring
from harness.cores import available
from harness.errors import ConfigError, HarnessError, one_line
from harness.loading import model_file, plugin
from harness.types import Array

_CALIBRATION = 64
"""Samples that int8 is calibrated with, at most."""

_NOW_CALLS = 20
_PROFILED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """now: how the model runs today. axes: what may be changed. batch: samples a call.

    samples: that accuracy is measured on. pairs: of each setting against now. passes: times that
    each layer is measured.
    """

    now: Setting
    axes: Sequence[str]
    batch: int = 1
    samples: int = 200
    pairs: int = 7
    passes: int = 2
    database: Path


class Job(NamedTuple):
    """A model that is measured: the first samples of its data as the call's inputs."""

    request: Request
    subject: Subject
    baseline: Baseline
    path: Path
    feeds: Mapping[str, Array]
    graph: Graph
    costs: Sequence[Cost]
    folder: Path
    tell: Callable[[str], None]


def open_job(request: Request, subject: Subject, folder: Path, tell: Callable[[str], None]) -> Job:
    """folder: for what is written meanwhile. tell: one line for each thing begun."""
    with ExitStack() as first:  # its session is not needed any longer than for the answers
        baseline = Baseline(subject, request.samples, open_runner(subject, first))
    path = model_file(subject.config, subject.model)
    assert path is not None  # the backend is `ort`, which reads one
    feeds = _first(baseline, request.batch)
    shapes = {name: rows.shape for name, rows in feeds.items()}
    graph = graph_file.read(path, shapes=shapes)
    return Job(
        request, subject, baseline, path, feeds, graph, flops.graph_costs(graph), folder, tell
    )


def _first(baseline: Baseline, count: int) -> dict[str, Array]:
    """The first `count` samples as one batch, again from the start where there are fewer."""
    _, inputs = next(baseline.chunks())
    rows = np.arange(count) % min(map(len, inputs.values()))
    return {name: np.ascontiguousarray(values[rows]) for name, values in inputs.items()}


def measure(job: Job) -> dict[str, Any]:
    """The content of measured.json, without the parts that stand for themselves."""
    import onnxruntime as ort

    request, now = job.request, job.request.now
    cores = available().threads
    profiles, failed = _profiles(job)
    if now.graph not in profiles:
        raise ConfigError(failed[now.graph])
    made = units(job.graph, _fused(job, profiles.get("all", profiles[now.graph])))
    content = _about(job, profiles, failed, made, f"onnxruntime {ort.__version__}")
    files = {FILE: job.path}
    content["accuracy"] = _accuracy(job, files) if "precision" in request.axes else None
    wanted = candidates(now, request.axes, cores)
    wanted = [s for s in wanted if s.precision in files and s.graph not in failed]
    database = LayerDatabase(
        request.database, machine_key(host.fingerprint()["machine"]), content["runtime"]
    )
    runs: list[Timing] = []
    layers = partial(_layers, job, made, database, runs, content)
    levels = [now._replace(graph=level) for level in GRAPH_LEVELS if level not in failed]
    layers([now, *levels, *wanted])
    content["candidates"] = [str(s) for s in wanted]
    both = combination(Record(content))
    if both is not None and both not in wanted:
        layers([both])
        wanted.append(both)
        content["candidates"].append(str(both))
    _pairs(job, wanted, files, content)
    return content


def _about(
    job: Job,
    profiles: Mapping[str, OrtProfile],
    failed: Mapping[str, str],
    made: Sequence[Unit],
    runtime: str,
) -> dict[str, Any]:
    request, subject = job.request, job.subject
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            "name": subject.model.name,
            "sha256": subject.model.sha256(job.path),
            "has_random_weights": subject.model.has_random_weights,
            "dataset": subject.dataset,
            "inputs": {name: [str(rows.dtype), *rows.shape] for name, rows in job.feeds.items()},
        },
        "batch": request.batch,
        "host": platform.node(),
        "environment": dict(host.fingerprint()),
        "runtime": runtime,
        "now": str(request.now),
        "axes": list(request.axes),
        "nodes": _nodes(job, profiles[request.now.graph]),
        "units": [unit._asdict() for unit in made],
        "profiles": {level: _profile(job, profile) for level, profile in profiles.items()},
        "failed_levels": dict(failed),
        "layers": {},
        "counted": {"ran": 0, "found": 0, "elsewhere": 0},
        "now_runs": None,
        "candidates": [],
        "pairs": {},
        "accuracy": None,
    }


def _profiles(job: Job) -> tuple[dict[str, OrtProfile], dict[str, str]]:
    """By graph level; and why there is none of some."""
    found, failed = {}, {}
    for level in GRAPH_LEVELS:
        job.tell(f"the whole model under ONNX Runtime's profiler, graph={level}")
        setup = SessionSetup(threads=job.request.now.kernel.threads, graph=level)
        try:
            found[level] = ort_profile.profile(job.path, job.feeds, runs=_PROFILED, setup=setup)
        except ConfigError as e:
            failed[level] = str(e)
    return found, failed


def _file_nodes(job: Job) -> dict[int, int]:
    """A node's position in the file -> in the graph, which has no Constant nodes."""
    producer = job.graph.producer
    pairs = ((i, producer.get(n.outputs[0])) for i, n in enumerate(read_wiring(job.path).nodes))
    return {i: node.index for i, node in pairs if node is not None}


def _fused(job: Job, profile: OrtProfile) -> list[list[int]]:
    known = _file_nodes(job)
    kernels = (kernel for kernel in profile.kernels if not kernel.inserted)
    return [[known[i] for i in kernel.nodes if i in known] for kernel in kernels]


def _nodes(job: Job, profile: OrtProfile) -> list[dict[str, Any]]:
    """One for each of the graph's, with what it computes and moves."""
    known = _file_nodes(job)
    eliminated = {known[i]: why for i, why in profile.eliminated.items() if i in known}
    makers = job.graph.producer
    return [
        {
            "name": node.name or node.outputs[0],
            "op": node.op_type,
            "takes": sorted({makers[n].index for n in node.inputs if n in makers}),
            "eliminated": eliminated.get(node.index),
            "makes": str(job.graph.tensors.get(node.outputs[0], "?")),
            **cost._asdict(),
        }
        for node, cost in zip(job.graph.nodes, job.costs, strict=True)
    ]


def _profile(job: Job, profile: OrtProfile) -> dict[str, Any]:
    known = _file_nodes(job)
    return {
        "run_ns": list(profile.session.run_ns),
        "kernels": [
            {
                "name": kernel.name,
                "op": kernel.op_type,
                "nodes": [known[i] for i in kernel.nodes if i in known],
                "inserted": kernel.inserted,
                "duration_ns": list(kernel.duration_ns),
            }
            for kernel in profile.kernels
        ],
    }


def _accuracy(job: Job, files: dict[str, Path]) -> dict[str, Any]:
    """Makes the int8 file, which `files` then has, and says what it costs."""
    job.tell("int8: quantising, and its accuracy")
    made, setting = job.folder / "int8.onnx", job.request.now._replace(precision=INT8)
    feeds, are_others = _calibration(job)
    try:
        quantise_file(job.path, made, feeds)
        found = advise_accuracy.compared(job.subject, job.baseline, made, setting)
    except Exception as e:  # noqa: BLE001 - whatever refuses it, the rest is measured
        return {"precision": INT8, "failed": one_line(e) or type(e).__name__}
    files[INT8] = made
    return {**found, "calibrated_on": len(feeds), "calibrated_on_others": are_others}


def _calibration(job: Job) -> tuple[list[Mapping[str, Array]], bool]:
    """Samples that the accuracy is not measured on, as long as there are any; and whether so."""
    dataset = job.baseline.open_dataset(None)
    others = sorted(set(range(len(dataset))) - set(job.baseline.indices))
    chosen = others or list(job.baseline.indices)
    chosen = chosen[:: -(-len(chosen) // _CALIBRATION)]
    feeds: list[Mapping[str, Array]] = []
    for index in chosen:  # one at a time: large ones need not fit all at once
        with plugin(f"dataset {job.subject.dataset!r}"):
            dataset.load([index])
            feeds.append({k: np.array(v) for k, v in dataset.batch([index]).inputs.items()})
            dataset.unload([index])
    return feeds, bool(others)


def _layers(
    job: Job,
    made: Sequence[Unit],
    database: LayerDatabase,
    runs: list[Timing],
    content: dict[str, Any],
    settings: Sequence[Setting],
) -> None:
    """Adds their times, and the whole model's between the passes, to `content`."""
    kernels = list(dict.fromkeys(s.kernel for s in settings))
    job.tell(f"layers: {len({unit.key for unit in made})} different ones, {len(kernels)} settings")

    def progress(done: int, total: int) -> None:
        if done % max(1, total // 10) == 0:
            job.tell(f"layers: {done} of {total} measurements")

    found, counted = layer_bench.measure(
        job.graph,
        made,
        kernels,
        database,
        passes=job.request.passes,
        between=lambda: runs.append(_now(job)),
        progress=progress,
    )
    for key, times in found.items():
        kept = content["layers"].setdefault(key, {})
        kept |= {str(setting): timed.to_json() for setting, timed in times.items()}
    for name, count in counted._asdict().items():
        content["counted"][name] += count
    content["now_runs"] = {
        name: [ns for timing in runs for ns in getattr(timing, name)] for name in Timing._fields
    }


def _now(job: Job) -> Timing:
    session = open_session(job.path, job.request.now)
    try:
        return timed(lambda: session.run(None, job.feeds), _NOW_CALLS)
    except Exception as e:  # noqa: BLE001 - onnxruntime's own share no base but this
        raise ConfigError(f"{job.path}: ONNX Runtime failed to run it: {one_line(e)}") from None


def _pairs(
    job: Job, wanted: Sequence[Setting], files: Mapping[str, Path], content: dict[str, Any]
) -> None:
    now = job.request.now
    for setting in wanted:
        job.tell(f"the whole model, {setting.changes(now)} against now")
        try:
            before, after = against(
                (job.path, now),
                (files[setting.precision], setting),
                job.feeds,
                job.request.pairs,
            )
            content["pairs"][str(setting)] = {"now": before._asdict(), "other": after._asdict()}
        except HarnessError as e:
            content["pairs"][str(setting)] = {"failed": str(e)}
