"""`python -m harness check RUN`: the verdict of a finished run, derived again from its files alone.

Whatever LoadGen, the journal and the accuracy log say is recomputed and compared with result.json
and config.yaml, so that a number edited by hand is found. What only the moment could tell (noise,
other processes, why a run was stopped) is taken from findings.json as it stands.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files, registry
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError
from harness.loadgen.logs import SUMMARY
from harness.loadgen.plan import Loaded
from harness.loadgen.schedule import SCHEDULE, read_stored
from harness.models.manifest.defaults import default_metric, slo_of
from harness.models.manifest.lookup import load_model
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import records, resolved, run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.findings import Findings
from harness.results.result_json import result
from harness.results.verdict import score

_FOLDERS = re.compile(r"[^\s:]*/(?=(?:performance|accuracy)[/.])")
"""A rename of the run's folder changes the paths that texts name."""

_CHANGED = "they were changed, or another version of the harness wrote them"


def check(folder: Path) -> list[str]:
    """What in result.json is not what the files say, one line each; [] when they agree."""
    said = files.read_json(folder / run_folder.RESULT)
    if not (folder / run_folder.CONFIG).is_file():
        raise ConfigError(
            f"{folder} has no {run_folder.CONFIG}: its run ended before its first query"
        )
    config = configuration(folder)
    with files.reading(f"{folder}: its files do not fit together", _CHANGED):
        found = findings(folder, config)
        derived = json.loads(json.dumps(result(found), default=str))
        run = found.performance or found.accuracy
        changed = list(_config_differences(folder, config, found, run)) if run else []
        changed += _file_differences(folder, found, said)
    return [*_differences(said, derived), *changed]


def agreed(folder: Path) -> str:
    """One line for a folder in which `check` found no difference. That says nothing about the verdict,
    so the line names it.
    """
    said = files.read_json(folder / run_folder.RESULT)
    codes = ", ".join(reason["code"] for reason in said["reasons"])
    verdict = f"{said['verdict']} ({codes})" if codes else said["verdict"]
    return f"{folder}: result.json agrees with the files; the run is {verdict}"


def configuration(folder: Path) -> RunConfig:
    """config.yaml of a run's folder."""
    path = folder / run_folder.CONFIG
    return from_plain(_mapping(path), str(path))


def findings(folder: Path, config: RunConfig) -> Findings:
    """What a run of this configuration found out, from the files in its folder."""
    model = load_model(config.model)
    scenario = registry.load("scenario", config.scenario)
    values, scored = records.read_findings(folder)
    performance = records.read(folder / "performance" / "run_1", scenario.loadgen_name)
    slo = None if config.mlperf else slo_of(scenario, config, model)
    plan = performance.plan if performance else None
    if config.mlperf and plan and plan.percentile and plan.latency_bound_ns:
        slo = Slo(plan.percentile, plan.latency_bound_ns)
    run = ResolvedRun(
        config=config,
        model=model,
        scenario=scenario,
        dataset=values.pop("dataset"),
        metric=config.metric or default_metric(model),
        slo=slo,
        instances=values.pop("spec"),
    )
    found = Findings(
        resolved=run,
        performance=performance,
        accuracy=records.read(folder / "accuracy", scenario.loadgen_name),
        **values,
    )
    if scored and found.loaded is not None:
        found.scoring = _scoring(folder, found, found.loaded)
    return found


def _scoring(folder: Path, found: Findings, loaded: Loaded) -> score.Scoring:
    """Again, from the accuracy log."""
    run = found.accuracy
    if run is None:
        metric = found.resolved.metric
        return score.Scoring(no_score=score.no_score(found.model, loaded, metric))
    if run.ended is None:
        return score.Scoring()
    performance = found.performance
    return score.judge(
        folder,
        found.resolved,
        loaded,
        run.ended,
        compared=performance is not None and performance.plan.logged_answers > 0,
    )


def _config_differences(
    folder: Path, config: RunConfig, found: Findings, run: Evidence
) -> Iterator[str]:
    """config.yaml is what was asked for with every value resolved, which is done here again."""
    assert found.loaded is not None
    path = folder / records.FINDINGS
    asked = files.read_json(path).get("asked")
    made = config if asked is None else from_plain(asked, str(path))  # None: of an older harness
    again = resolved.config(replace(found.resolved, config=made), run.plan, found.loaded)
    said, done = to_plain(config), to_plain(again)
    for key in dict.fromkeys([*done, *said]):
        if said.get(key) != done.get(key) and key != "loadgen_version":
            ours, theirs = (_shown(plain.get(key)) for plain in (said, done))
            yield f"config.yaml: {key} is {ours}, the run was made with {theirs}"


def _shown(value: object) -> str:
    """As the command line takes it."""
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"


def _differences(said: Mapping[str, Any], derived: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*derived, *said]):
        if key != "environment":  # compared with environment.json
            yield from _compare(
                key, _without_folders(said.get(key)), _without_folders(derived.get(key))
            )


def _without_folders(value: Any) -> Any:
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, list):
        return [_without_folders(v) for v in value]
    if isinstance(value, dict):
        return {k: _without_folders(v) for k, v in value.items()}
    return value


def _file_differences(folder: Path, found: Findings, said: Mapping[str, Any]) -> Iterator[str]:
    """Files that say again what is known from others."""
    if found.performance is not None or found.accuracy is not None:
        machine = files.read_json(folder / run_folder.ENVIRONMENT)
        for key, value in said.get("environment", {}).items():
            yield from _compare(f"environment.{key}", value, machine.get(key))
        if not said.get("environment"):
            yield "environment: result.json holds none"
        yield from _environment_differences(found, machine)
    if found.scoring.score is not None:
        path = folder / "accuracy" / run_folder.ACCURACY_TEXT
        if not path.is_file() or found.scoring.score.line not in path.read_text().splitlines():
            yield f"{path} does not say {found.scoring.score.line!r}"
    if found.performance is not None and found.performance.plan.harness_scheduled:
        yield from _schedule_differences(folder / "performance" / "run_1", found.performance)
    else:
        yield from _summary_differences(folder / "performance" / "run_1", found.performance)
    yield from _summary_differences(folder / "accuracy", found.accuracy)


def _summary_differences(folder: Path, run: Evidence | None) -> Iterator[str]:
    """LoadGen's summary says what its detail log says: the verdict, how many warnings and errors."""
    if run is None or not run.logged:
        return
    wanted = [_counted("warning", len(run.log.warnings)), _counted("ERROR", len(run.log.errors))]
    if not run.plan.accuracy:
        wanted.append(f"Result is : {run.log.get('result_validity')}")
    path = folder / SUMMARY
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in wanted:
        if line not in lines:
            yield f"{path} does not say {line!r}, which LoadGen's detail log says"


def _counted(what: str, count: int) -> str:
    """A summary's last lines. Source: mlcommons/inference b66003e, loadgen/logging.cc, SetLogFiles."""
    if not count:
        return f"No {what.lower()}s encountered during test."
    return f"{count} {what}{'' if count == 1 else 'S' if what.isupper() else 's'} encountered. See detailed log."


def _environment_differences(found: Findings, machine: Mapping[str, Any]) -> Iterator[str]:
    """environment.json says again what the run was of; `compare` goes by its seeds."""
    run = found.performance or found.accuracy
    assert run is not None
    assert found.loaded is not None
    for name, ours, theirs in (
        ("seeds", run.plan.seeds._asdict(), machine["loadgen"]["seeds"]),
        ("dataset digest", found.loaded.dataset.get("digest"), machine["dataset"].get("digest")),
        ("model_sha256", found.loaded.model_sha256, machine["model_sha256"]),
    ):
        if ours != theirs:
            yield f"environment.json: {name} is {theirs}, the run was made with {ours}"


def _schedule_differences(folder: Path, run: Evidence) -> Iterator[str]:
    """The schedule that was replayed is kept beside what came of it."""
    if run.plan.schedule is None or run.done is None:
        return
    due_ns = read_stored(str(folder / SCHEDULE)).after_ns[run.done.columns["order"]]
    made_ns = run.done.columns["scheduled_ns"] - due_ns
    if len(made_ns) and int(made_ns.min()) != int(made_ns.max()):
        yield f"{folder / records.COMPLETIONS}: its queries were not due when {SCHEDULE} says"


def _compare(path: str, said: Any, derived: Any) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(derived, dict):
        for name in sorted({*said, *derived}):
            yield from _compare(f"{path}.{name}", said.get(name), derived.get(name))
    elif said != derived:
        yield f"{path}: result.json says {said!r}, the files give {derived!r}"


def _mapping(path: Path) -> Mapping[str, Any]:
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a configuration")
    return content
