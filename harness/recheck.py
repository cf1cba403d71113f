"""`python -m harness check RUN`: the verdict of a finished run, derived again from its files alone.

Whatever LoadGen, the journal and the accuracy log say is recomputed and compared with result.json,
so that a number edited by hand is found. What only the moment could tell (noise, other processes,
the environment) is taken from result.json as it stands.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import records, registry, results, score
from harness.config import RunConfig, Slo, from_plain
from harness.errors import ConfigError
from harness.logs import AccuracyLogError
from harness.manifest import load_model, load_yaml
from harness.outcome import Findings, result
from harness.preflight import default_dataset, default_metric
from harness.sizing import slo_of
from harness.types import Reason

COMPARED = (
    "verdict",
    "reasons",
    "headline",
    "latency_ns",
    "throughput_per_s",
    "accuracy",
    "stages_ns",
    "queries",
)


def check(folder: Path) -> list[str]:
    """What in result.json is not what the files say, one line each; [] when they agree."""
    said = _read_result(folder / results.RESULT)
    if not (folder / results.CONFIG).is_file():
        raise ConfigError(f"{folder} has no {results.CONFIG}: its run ended before its first query")
    config = from_plain(_mapping(folder / results.CONFIG), str(folder / results.CONFIG))
    derived = json.loads(json.dumps(result(_findings(folder, config, said)), default=str))
    return list(_differences(said, derived))


def _findings(folder: Path, config: RunConfig, said: Mapping[str, Any]) -> Findings:
    model = load_model(config.model)
    scenario = registry.load("scenario", config.scenario)
    found = Findings(
        config=config,
        model=model,
        dataset=config.dataset or default_dataset(model),
        scenario=scenario,
        slo=None if config.mlperf else slo_of(scenario, config, model),
        started=str(said.get("started")),
    )
    found.performance = records.read(folder / "performance" / "run_1", scenario.loadgen_name)
    found.accuracy = records.read(folder / "accuracy", scenario.loadgen_name)
    plan = found.performance.plan if found.performance else None
    if config.mlperf and plan and plan.percentile and plan.latency_bound_ns:
        found.slo = Slo(plan.percentile, plan.latency_bound_ns)
    _score(folder, found, said)
    return found


def _score(folder: Path, found: Findings, said: Mapping[str, Any]) -> None:
    if found.accuracy is None or found.accuracy.ended is None:
        return
    metric = found.config.metric or default_metric(found.model)
    if found.dataset == "synthetic" or metric is None:
        accuracy = said.get("accuracy")
        found.no_score = accuracy.get("reason", "") if isinstance(accuracy, dict) else ""
        return
    labels = score.labels(found.config, found.model, found.dataset)
    dtype = found.accuracy.ended["answer_dtype"]
    try:
        found.score = score.compute(folder / "accuracy", metric, dtype, labels)
    except AccuracyLogError as e:
        found.score_failure = Reason("accuracy-incomplete", str(e))


def _differences(said: Mapping[str, Any], derived: Mapping[str, Any]) -> Iterator[str]:
    for key in COMPARED:
        if key == "reasons":  # their texts name paths that a rename has changed since
            have = [r.get("code") for r in said.get(key) or []]
            want = [r["code"] for r in derived[key]]
            if have != want:
                yield f"reasons: result.json says {have}, the files give {want}"
            continue
        yield from _compare(key, said.get(key), derived[key])


def _compare(path: str, said: Any, derived: Any) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(derived, dict):
        for name in sorted({*said, *derived}):
            yield from _compare(f"{path}.{name}", said.get(name), derived.get(name))
    elif said != derived:
        yield f"{path}: result.json says {said!r}, the files give {derived!r}"


def _read_result(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}: is this a run's folder?") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not JSON: {e}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a result")
    return content


def _mapping(path: Path) -> Mapping[str, Any]:
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a configuration")
    return content
