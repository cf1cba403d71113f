"""Exports a run into a folder of MLflow's file store; MLflow itself is not needed.

Source: mlflow/store/tracking/file_store.py of MLflow 3: EXPERIMENT/RUN holds meta.yaml, a file for each
metric, param and tag, and the artifacts.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.core.config.options import option_key
from harness.core.config.run_config import RunConfig
from harness.core.formats.strict_yaml import load_yaml, write_yaml
from harness.core.shown.private import USER
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError
from harness.results import run_folder
from harness.results.export.samples import span_ns
from harness.results.numbers import numbers
from harness.results.run_files import RunFiles, shown_config

EXPERIMENT = "mlperf-harness"
"""Name of the experiment that gets the runs."""

_META = "meta.yaml"
_FINISHED, _FAILED, _LOCAL = 3, 4, 4
"""MLflow's RunStatus and SourceType."""

_LONGEST_VALUE = 6_000
_NOT_IN_A_NAME = re.compile(r"[^\w.\- ]", re.ASCII)
"""MLflow's limits; `/` is allowed there and would be a folder."""


def write(run: RunFiles, out: Path) -> None:
    """out: the store's folder, made where it is missing. A ConfigError where the run is there already."""
    started_ms, ended_ms = (ns // NS_PER_MS for ns in span_ns(run))
    result = (run.folder / run_folder.RESULT).read_bytes()
    found = list(entries(run))  # before anything is written: they may be unusable
    experiment = _experiment(out, started_ms)
    run_id = id_of(result)
    folder = experiment / run_id
    if folder.exists():
        raise ConfigError(f"{folder} exists: {run.folder} was exported there before")
    for name in ("metrics", "params", "tags", "artifacts"):
        (folder / name).mkdir(parents=True)
    for kind, name, value in found:
        text = f"{ended_ms} {value!r} 0\n" if kind == "metrics" else value
        (folder / kind / name).write_text(str(text), encoding="utf-8")
    (folder / "artifacts" / run_folder.RESULT).write_bytes(result)
    meta = {
        "artifact_uri": (folder / "artifacts").absolute().as_uri(),
        "end_time": ended_ms,
        "entry_point_name": "",
        "experiment_id": experiment.name,
        "lifecycle_stage": "active",
        "run_id": run_id,
        "run_name": run.name,
        "run_uuid": run_id,
        "source_name": "",
        "source_type": _LOCAL,
        "source_version": "",
        "start_time": started_ms,
        "status": _FINISHED if is_finished(run) else _FAILED,
        "tags": [],
        "user_id": USER,
    }
    write_yaml(
        folder / _META, meta
    )  # last: MLflow takes a folder for a run once this file is there


def id_of(result: bytes) -> str:
    """Returns the run's id, so that no run is exported twice. result: the content of result.json."""
    return hashlib.sha256(result).hexdigest()[:32]


def is_finished(run: RunFiles) -> bool:
    """Whether MLflow shows the run as FINISHED; an INVALID one is FAILED there."""
    return bool(run.result["verdict"] == "VALID")


def _experiment(out: Path, started_ms: int) -> Path:
    """The folder of the experiment, whoever made it; the name of a new one derives from EXPERIMENT."""
    for path in sorted(out.glob(f"*/{_META}")):
        try:
            known = load_yaml(path)
        except ConfigError:
            continue
        if isinstance(known, dict) and known.get("name") == EXPERIMENT:
            return path.parent
    number = int(hashlib.sha256(EXPERIMENT.encode()).hexdigest()[:12], 16)
    folder = out / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    meta = {
        "artifact_location": folder.absolute().as_uri(),
        "creation_time": started_ms,
        "experiment_id": folder.name,
        "last_update_time": started_ms,
        "lifecycle_stage": "active",
        "name": EXPERIMENT,
    }
    write_yaml(folder / _META, meta)
    return folder


def entries(run: RunFiles) -> Iterator[tuple[str, str, str | float]]:
    """(`metrics`, `params` or `tags`, name, value), within MLflow's limits."""
    result = run.result
    for name, number in numbers(result).items():
        unit = number.unit.replace("/", "_per_").replace("%", "percent")
        yield "metrics", _name(f"{name}_{unit}"), float(number.value)
    known = {option_key(field) for field in fields(RunConfig)}
    for key, value in shown_config(run.config).items():
        if key in known and value not in (None, "", []):
            yield "params", key, _value(value)
    facts: Mapping[str, Any] = {
        "mlflow.runName": run.name,
        "mlflow.source.type": "LOCAL",
        "harness.verdict": result["verdict"],
        "harness.reasons": run.codes("reasons"),
        "harness.doubts": run.codes("doubts"),
        "harness.dataset": result["dataset"],
        "mlflow.note.content": "\n\n".join(
            f"{result['verdict']}: {reason['code']}: {reason['text']}"
            for reason in result["reasons"]
        ),
    }
    yield from (("tags", name, _value(value)) for name, value in facts.items() if value)


def _name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text)


def _value(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:_LONGEST_VALUE]
