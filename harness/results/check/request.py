"""Checks that a finished run is consistent: its request, `config.yaml` and load plans must match each other and the
loaded model and data.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.errors import ConfigError
from harness.loadgen.plan import Loaded, LoadPlan, accuracy_samples, performance_samples
from harness.results import records, resolved, run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.findings import Findings

_DECIDED = ("loadgen_version", "max_batch")
"""Keys that may differ from the request, for example because a model file fixes the batch size."""

CHANGED = "changed since the run, or written by another version of the harness"
"""End of a message about content that a run of this version cannot have written."""


def differences(folder: Path, config: RunConfig, derived: Findings) -> Iterator[str]:
    run = derived.performance or derived.accuracy
    if run is None or derived.loaded is None:
        return
    yield from _config(folder, config, derived, run)
    for role, evidence in derived.runs.items():
        path = folder / run_folder.FOLDERS[role] / run_folder.RUN
        for name, ours, theirs in _plan(derived, role, evidence, path):
            if ours != theirs:
                yield f"{path}: {name} is {ours!r}, but the run used {theirs!r}"


def _config(folder: Path, config: RunConfig, facts: Findings, run: Evidence) -> Iterator[str]:
    """Resolves the request again and compares the outcome with config.yaml, which is the request with every value
    resolved.
    """
    assert facts.loaded is not None
    path = folder / records.FINDINGS
    request = _request(path)
    again = resolved.config(replace(facts.resolved, config=request), run.plan, facts.loaded)
    stored, derived, requested = to_plain(config), to_plain(again), to_plain(request)
    for key in dict.fromkeys([*derived, *stored]):
        if stored.get(key) != derived.get(key) and key != "loadgen_version":
            yield (
                f"config.yaml: {key} is {_text(stored.get(key))}, but the run used "
                f"{_text(derived.get(key))}"
            )
    if request.seed is not None and not request.mlperf:
        requested = {
            **{f"{name}_seed": request.seed for name in run.plan.seeds._fields},
            **requested,
        }
    for key, value in requested.items():
        if key not in _DECIDED and value != derived.get(key):
            yield f"{path}: {key} of the request is {_text(value)}, but the run used {_text(derived.get(key))}"


def _request(path: Path) -> RunConfig:
    """Reads the run's request. Raises ConfigError with a one-line message if the request is invalid, because a run
    never stores an invalid request.
    """
    asked = files.read_json(path).get("asked")
    if not isinstance(asked, dict):
        raise ConfigError(f"{path} does not contain the run's request under `asked`: {CHANGED}")
    try:
        return from_plain(asked, str(path))
    except ConfigError as e:
        problem = str(e).splitlines()[0].removeprefix(f"{path}: ")
        raise ConfigError(
            f"{path} does not contain the run's request under `asked` ({problem}): {CHANGED}"
        ) from e


def _text(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _room(plan: LoadPlan, loaded: Loaded) -> int:
    is_replay = plan.schedule is not None
    return performance_samples(
        plan.planned_samples, loaded, sessions=plan.sessions, from_file=is_replay
    )


def _plan(facts: Findings, role: str, run: Evidence, path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, value in run.json, value in the other files) for each field that other files repeat."""
    plan, loaded, config = run.plan, facts.loaded, facts.config
    assert loaded is not None
    content = files.read_json(path)
    yield "started", content["started"], facts.started
    yield "scenario", plan.scenario, config.scenario
    yield "role", plan.role, role
    yield "total_count", plan.total_count, loaded.total_count
    if role != "answers":
        yield "an official run", plan.model_key is not None, config.mlperf
    if not plan.accuracy:
        yield "concurrency", plan.concurrency, config.concurrency
        yield "streams", plan.streams, config.streams
        yield "until", plan.until, config.until
        yield "cancel_share", plan.cancel_share, config.cancel.share if config.cancel else 0.0
        yield "probe_rate", plan.probe_rate, config.probe_rate or 0.0
    if plan.model_key is None:
        # In an official run, the answer check uses the performance_count from the accuracy run's plan, because
        # LoadGen's rules set it.
        official = facts.accuracy.plan if role == "answers" and facts.accuracy else loaded
        yield "performance_count", plan.performance_count, official.performance_count
        room = accuracy_samples(loaded) if plan.accuracy else _room(plan, loaded)
        yield "journal_samples", plan.journal_samples, room
    performance = facts.performance
    if performance is None or run is performance:
        return
    for name in ("seeds", "samples_per_query", "percentile", "latency_bound_ns"):
        yield name, getattr(plan, name), getattr(performance.plan, name)
    if role != "accuracy":
        return
    yield "model_key", plan.model_key, performance.plan.model_key
    yield "query_count", plan.query_count, loaded.total_count
    if run.ended is not None and performance.ended is not None:
        yield "answer_dtype", run.ended.get("answer_dtype"), performance.ended.get("answer_dtype")
