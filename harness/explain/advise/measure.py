"""Measures all data from which `advise` derives its answers."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.shown.private import host_id
from harness.core.units import counted, show_wait
from harness.errors import ConfigError, HarnessError, one_line
from harness.explain.advise import accuracy
from harness.explain.advise.layers import bench
from harness.explain.advise.layers.settings import FILE, INT8, Setting, candidates
from harness.explain.advise.layers.timing import Timing, compare, open_session, time_alone
from harness.explain.advise.layers.units import Unit, units
from harness.explain.advise.predict import combination
from harness.explain.advise.record import SCHEMA, Record
from harness.explain.advise.subject import Job
from harness.explain.kernels import ort as ort_profile
from harness.explain.kernels.kernels import LayerProfile
from harness.explain.pieces.cut import decisions
from harness.explain.pieces.database import Database
from harness.machine import host
from harness.machine.characterise.here import stored_or_none
from harness.machine.cores import available
from harness.models.graph.calls import nodes_of
from harness.models.graph.wiring import read_wiring
from harness.models.opened.ort_session import GRAPH_LEVELS, SessionSetup
from harness.results import run_folder
from harness.run.progress import Pace

_NOTED_EVERY_S = 1.0
"""The progress is written at most this often, because it is written between two measurements."""
_NOW_CALLS = 20
_PROFILED = 10


def measure(job: Job, database: Path, content: dict[str, Any]) -> Path | None:
    """Fills in the content of measured.json, except for the parts that do not depend on the advice. After Ctrl-C, the
    content includes the measurements so far. Returns the int8 model if it was made.
    """
    import onnxruntime as ort

    now, axes = job.now, job.options.vary
    profiles, failed = _profiles(job)
    if now.graph not in profiles:
        raise ConfigError(failed[now.graph])
    # Maps a node's position in the file to the corresponding nodes in the graph. A Constant has no node, and a function
    # call has several.
    in_graph = nodes_of(read_wiring(job.path), job.graph)
    content |= {
        **_about(job),
        "runtime": f"onnxruntime {ort.__version__}",
        "nodes": _nodes(job, profiles[now.graph], in_graph),
        "profiles": {level: _profile(profile, in_graph) for level, profile in profiles.items()},
        "failed_levels": failed,
        "layers": {},
        "counted": {"ran": 0, "found": 0, "elsewhere": 0},
        "now_runs": None,
        "candidates": [],
        "pairs": {},
        "accuracy": {"failed": "stopped before"} if "precision" in axes else None,
    }
    kernels = content["profiles"]["all" if "all" in profiles else now.graph]["kernels"]
    parts = units(job.graph, [kernel["nodes"] for kernel in kernels if not kernel["inserted"]])
    content["units"] = [unit.to_json() for unit in parts]
    files = {FILE: job.path}
    if "precision" in axes:
        job.report("int8: quantising the model and measuring its accuracy")
        content["accuracy"], int8_file = accuracy.int8(job)
        files |= {INT8: int8_file} if int8_file else {}
    settings = candidates(now, axes, available().threads)
    settings = [s for s in settings if s.precision in files and s.graph not in failed]
    stored = Database(database, content["environment"]["machine"], content["runtime"])
    runs: list[Timing] = []
    layers = partial(_layers, job, parts, stored, runs, content)
    levels = [now._replace(graph=level) for level in GRAPH_LEVELS if level not in failed]
    layers([now, *levels, *settings])
    content["candidates"] = [str(s) for s in settings]
    both = combination(Record(content))
    if both is not None and both not in settings:
        layers([both])
        settings.append(both)
        content["candidates"].append(str(both))
    _pairs(job, settings, files, content["pairs"])
    return files.get(INT8)


def _about(job: Job) -> dict[str, Any]:
    subject = job.subject
    return {
        **SCHEMA,
        "model": {
            "name": subject.model.name,
            "sha256": subject.model.sha256(job.path),
            "has_random_weights": subject.model.has_random_weights,
            "dataset": subject.dataset,
            "inputs": {name: [str(rows.dtype), *rows.shape] for name, rows in job.feeds.items()},
        },
        "batch": job.options.batch,
        "host": host_id(),
        "environment": dict(host.fingerprint()),
        "peaks": dict(stored_or_none(job.now.threads)),
        "now": str(job.now),
        "axes": list(job.options.vary),
    }


def _profiles(job: Job) -> tuple[dict[str, LayerProfile], dict[str, str]]:
    """Returns the profiles by graph level, and the reasons why other levels could not be profiled."""
    profiles, failed = {}, {}
    for level in GRAPH_LEVELS:
        job.report(f"the whole model under ONNX Runtime's profiler, graph={level}")
        setup = SessionSetup(threads=job.now.kernel.threads, graph=level)
        try:
            profiles[level] = ort_profile.profile(job.path, job.feeds, runs=_PROFILED, setup=setup)
        except ConfigError as e:
            failed[level] = str(e)
    return profiles, failed


def _nodes(
    job: Job, profile: LayerProfile, in_graph: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Returns a row per node of the graph: its operator, work and traffic."""
    eliminated = {one: why for i, why in profile.eliminated.items() for one in in_graph[i]}
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


def _profile(profile: LayerProfile, in_graph: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {
        "run_ns": list(profile.session.run_ns),
        "kernels": [
            {
                "name": kernel.name,
                "op": kernel.op_type,
                "nodes": [one for i in kernel.nodes for one in in_graph[i]],
                "inserted": kernel.inserted,
                "duration_ns": list(kernel.duration_ns),
            }
            for kernel in profile.kernels
        ],
    }


def _layers(
    job: Job,
    parts: Sequence[Unit],
    database: Database,
    runs: list[Timing],
    content: dict[str, Any],
    settings: Sequence[Setting],
) -> None:
    """Adds the layers' times to `content`. Between the passes, also measures the whole model and adds its times."""
    kernels = list(dict.fromkeys(s.kernel for s in settings))
    job.report(
        f"layers: {counted(len({unit.key for unit in parts}), 'different layer')}, "
        f"{counted(len(kernels), 'setting')}"
    )

    begun_s, started_s = time.monotonic(), time.time()
    noted_s = begun_s

    def progress(done: int, total: int) -> None:
        nonlocal noted_s
        now_s = time.monotonic()
        left_s = (now_s - begun_s) / done * (total - done)
        counts = f"{done} of {total} measurements"
        job.progress.show("layers", share=done / total, details=[counts], left_s=left_s)
        if now_s - noted_s >= _NOTED_EVERY_S:
            noted_s = now_s
            run_folder.note_progress(job.noted, f"layers: {counts}, about", started_s, left_s)

    layer_times, counts = bench.measure(
        parts,
        kernels,
        database,
        decided=decisions(job.graph, [unit.cut for unit in parts], job.feeds, job.now.session),
        passes=job.options.passes,
        between=lambda: runs.append(_now(job)),
        progress=progress,
    )
    for key, times in layer_times.items():
        stored = content["layers"].setdefault(key, {})
        stored |= {str(setting): timed._asdict() for setting, timed in times.items()}
    for name in content["counted"]:
        content["counted"][name] += getattr(counts, name)
    content["now_runs"] = {
        clock: [ns for timing in runs for ns in timing[clock]] for clock in ("wall_ns", "cpu_ns")
    }
    if counts.was_stopped:
        raise KeyboardInterrupt


def _now(job: Job) -> Timing:
    session = open_session(job.path, job.now)
    try:
        return time_alone(lambda: session.run(None, job.feeds), _NOW_CALLS)
    except Exception as e:  # noqa: BLE001 - onnxruntime's own share no base but this
        raise ConfigError(f"{job.path}: ONNX Runtime failed to run it: {one_line(e)}") from None


def _pairs(
    job: Job, settings: Sequence[Setting], files: Mapping[str, Path], pairs: dict[str, Any]
) -> None:
    pace = Pace()
    for number, setting in enumerate(settings, 1):
        left_s, begun_s = pace.left_s([0.0] * (len(settings) - number + 1)), time.monotonic()
        left = "" if left_s is None else f"; about {show_wait(left_s)} left for all settings"
        which = f"setting {number} of {len(settings)}"
        job.report(
            f"the whole model, {which}: {setting.changes(job.now)} against the current setting{left}"
        )
        other = (files[setting.precision], setting)
        try:
            timings = compare((job.path, job.now), other, job.feeds, job.options.pairs)
            pairs[str(setting)] = dict(zip(("now", "other"), timings, strict=True))
        except HarnessError as e:
            pairs[str(setting)] = {"failed": str(e)}
        pace.ended(time.monotonic() - begun_s)
