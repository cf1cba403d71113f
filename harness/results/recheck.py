"""Derives the verdict of a finished run again from its files: `python -m harness check RUN`.

The results of LoadGen's logs, the journal and the accuracy log are recomputed and compared with
result.json and config.yaml, which reveals a number edited by hand. Readings of the moment (noise,
other processes, why the run was stopped) are taken from findings.json as they are.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files, registry
from harness.core.codes import Reason
from harness.core.config.parse import HUB, Slo
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.core.shown.private import hidden
from harness.loadgen.logs import SUMMARY
from harness.loadgen.plan import Loaded
from harness.loadgen.schedule import SCHEDULE, read_stored
from harness.models.manifest.defaults import default_metric, slo_of
from harness.models.manifest.lookup import is_path, load_model
from harness.models.manifest.model import Model
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import records, resolved, run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.summary import differences, read_summary
from harness.results.findings import Findings
from harness.results.result_json import result
from harness.results.run_files import read_config
from harness.results.verdict import score
from harness.types import Score

_FOLDERS = re.compile(r"[^\s:]*/(?=(?:performance|accuracy)[/.])")
"""Folders in texts; they change when the run's folder is renamed, so they are not compared."""

MODEL = "model"
"""Folder with the model's manifest in a published copy."""

_CHANGED = "they were changed, or another version of the harness wrote them"


def check(folder: Path, trusted: Collection[str] = ()) -> list[str]:
    """Differences between result.json and the files, one line each; [] when they agree.

    trusted: datasets and metrics whose code the folder names and which may run. Without it they do not
    run, and the stored score counts.
    """
    stored = files.read_json(folder / run_folder.RESULT)
    config = configuration(folder)
    with files.reading(f"{folder}: its files do not fit together", _CHANGED):
        derived = findings(folder, config, trusted)
        content = hidden(json.loads(json.dumps(result(derived), default=str)))
        run = derived.performance or derived.accuracy
        changed = list(_config_differences(folder, config, derived, run)) if run else []
        changed += _file_differences(folder, derived, stored)
    return [*_differences(stored, content), *changed]


def agreed(folder: Path) -> str:
    """The line for a folder without differences, with the verdict: agreement does not imply VALID."""
    stored = files.read_json(folder / run_folder.RESULT)
    codes = ", ".join(reason["code"] for reason in stored["reasons"])
    verdict = f"{stored['verdict']} ({codes})" if codes else stored["verdict"]
    return f"{folder}: result.json agrees with the files; the run is {verdict}"


def configuration(folder: Path) -> RunConfig:
    return from_plain(read_config(folder), str(folder / run_folder.CONFIG))


def untrusted(folder: Path, trusted: Collection[str] = ()) -> list[str]:
    """Datasets and metrics whose code the folder names and `check` does not run."""
    config = configuration(folder)
    values, _ = records.read_findings(folder)
    metric = config.metric or default_metric(_model(folder, config))
    return _untrusted(values["dataset"], metric, trusted)


def _untrusted(dataset: str, metric: str | None, trusted: Collection[str]) -> list[str]:
    names = (dataset, metric)
    return [name for name in names if name and registry.is_code(name) and name not in trusted]


def _model(folder: Path, config: RunConfig) -> Model:
    """The model of the run. A published copy has the manifest in its folder, or only the name of a file."""
    path = Path(config.model)
    if not is_published(config) or not is_path(config.model):
        return load_model(config.model)
    if path.suffix in (".yaml", ".yml"):
        return load_model(str(folder / MODEL / path.name))
    return Model(path.stem, None, folder, folder / path.name)


def is_published(config: RunConfig) -> bool:
    """Whether files are left as bare names, as `publish` does; a run stores absolute paths."""
    model = config.model if is_path(config.model) else None
    named = [Path(p) for p in (model, config.data_dir) if p and not str(p).startswith(HUB)]
    return any(not path.is_absolute() for path in named)


def findings(folder: Path, config: RunConfig, trusted: Collection[str] = ()) -> Findings:
    model = _model(folder, config)
    scenario = registry.load("scenario", config.scenario)
    values, scored = records.read_findings(folder)
    runs = {
        role: records.read(folder / path, scenario.loadgen_name)
        for role, path in run_folder.FOLDERS.items()
    }
    performance, accuracy = runs["performance"], runs["accuracy"]
    slo = None if config.mlperf else slo_of(scenario, config, model)
    measured = performance or accuracy
    plan = measured.plan if measured else None
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
    derived = Findings(
        resolved=run,
        performance=performance,
        accuracy=accuracy,
        answers=runs["answers"],
        **values,
    )
    if scored and derived.loaded is not None:
        if is_published(config) or _untrusted(run.dataset, run.metric, trusted):
            derived.scoring = _stored_scoring(folder, derived)
        else:
            derived.scoring = _scoring(folder, derived, derived.loaded)
    return derived


def _stored_scoring(folder: Path, derived: Findings) -> score.Scoring:
    """The score in result.json, where scoring again would run code that the folder names; the answers are
    compared again.
    """
    stored = files.read_json(folder / run_folder.RESULT)
    for entry in stored["reasons"]:
        if entry["code"] in ("accuracy-failed", "accuracy-incomplete"):
            return score.Scoring(failure=Reason.stored(entry))
    accuracy = stored["accuracy"]
    if accuracy["value"] is None:
        return score.Scoring(no_score=accuracy["reason"])
    assert derived.accuracy is not None
    assert derived.accuracy.ended is not None
    dtype = str(derived.accuracy.ended["answer_dtype"])
    path = folder / "accuracy" / run_folder.ACCURACY_TEXT
    lines = path.read_text().splitlines() if path.is_file() else []
    return score.Scoring(
        Score(
            metric=accuracy["metric"],
            value=accuracy["value"],
            unit=accuracy["unit"],
            samples=accuracy["samples"],
            line=lines[-1] if lines else "",
            details=accuracy["details"],
            lower_is_better=accuracy["lower_is_better"],
        ),
        compared=score.compare_answers(folder, derived.model, dtype, derived.compared_run),
    )


def _scoring(folder: Path, derived: Findings, loaded: Loaded) -> score.Scoring:
    run = derived.accuracy
    if run is None:
        metric = derived.resolved.metric
        return score.Scoring(no_score=score.no_score(derived.model, loaded, metric))
    if run.ended is None:
        return score.Scoring()
    return score.judge(folder, derived.resolved, loaded, run.ended, derived.compared_run)


def _config_differences(
    folder: Path, config: RunConfig, facts: Findings, run: Evidence
) -> Iterator[str]:
    """config.yaml is the request with every value resolved; resolve the request again and compare."""
    assert facts.loaded is not None
    path = folder / records.FINDINGS
    request = from_plain(files.read_json(path)["asked"], str(path))
    again = resolved.config(replace(facts.resolved, config=request), run.plan, facts.loaded)
    stored, derived = to_plain(config), to_plain(again)
    for key in dict.fromkeys([*derived, *stored]):
        if stored.get(key) != derived.get(key) and key != "loadgen_version":
            values = (plain.get(key) for plain in (stored, derived))
            ours, theirs = (", ".join(map(str, v)) if isinstance(v, list) else v for v in values)
            yield f"config.yaml: {key} is {ours}, the run used {theirs}"


def _differences(stored: Mapping[str, Any], derived: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*derived, *stored]):
        if key != "environment":  # compared with environment.json
            ours, theirs = (_without_folders(content.get(key)) for content in (stored, derived))
            yield from _compare(key, ours, theirs)


def _without_folders(value: Any) -> Any:
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, list):
        return [_without_folders(v) for v in value]
    if isinstance(value, dict):
        return {k: _without_folders(v) for k, v in value.items()}
    return value


def _file_differences(folder: Path, derived: Findings, stored: Mapping[str, Any]) -> Iterator[str]:
    """Differences in files that repeat what other files hold."""
    if derived.performance is not None or derived.accuracy is not None:
        machine = files.read_json(folder / run_folder.ENVIRONMENT)
        for key, value in stored.get("environment", {}).items():
            yield from _compare(f"environment.{key}", value, machine.get(key))
        if not stored.get("environment"):
            yield "environment: result.json holds none"
        yield from _environment_differences(derived, machine)
    if derived.scoring.score is not None:
        path = folder / "accuracy" / run_folder.ACCURACY_TEXT
        if not path.is_file() or derived.scoring.score.line not in path.read_text().splitlines():
            yield f"{path} has no line {derived.scoring.score.line!r}"
    if derived.performance is not None and derived.performance.plan.harness_scheduled:
        yield from _schedule_differences(folder / "performance" / "run_1", derived.performance)
    else:
        yield from _summary_differences(folder / "performance" / "run_1", derived.performance)
    yield from _summary_differences(folder / "accuracy", derived.accuracy)
    yield from _summary_differences(folder / "answers", derived.answers)


def _summary_differences(folder: Path, run: Evidence | None) -> Iterator[str]:
    """LoadGen's summary must repeat its detail log."""
    if run is None or not run.logged:
        return
    expected = [_counted("warning", len(run.log.warnings)), _counted("ERROR", len(run.log.errors))]
    path = folder / SUMMARY
    text = path.read_text(errors="replace") if path.is_file() else ""
    for line in expected:
        if line not in text.splitlines():
            yield f"{path} has no line {line!r}, which follows from LoadGen's detail log"
    for line, stated, logged in differences(read_summary(text), run.log):
        yield f"{path}: the line {line!r} says {stated}, LoadGen's detail log {logged}"


def _counted(kind: str, count: int) -> str:
    """A last line of a summary. Source: mlcommons/inference b66003e, loadgen/logging.cc, SetLogFiles."""
    if not count:
        return f"No {kind.lower()}s encountered during test."
    return f"{count} {kind}{'' if count == 1 else 'S' if kind.isupper() else 's'} encountered. See detailed log."


def _environment_differences(derived: Findings, machine: Mapping[str, Any]) -> Iterator[str]:
    """environment.json repeats the seeds, the dataset and the model; `compare` reads them there."""
    run = derived.performance or derived.accuracy
    assert run is not None
    assert derived.loaded is not None
    for name, ours, theirs in (
        ("seeds", run.plan.seeds._asdict(), machine["loadgen"]["seeds"]),
        ("dataset digest", derived.loaded.dataset.get("digest"), machine["dataset"].get("digest")),
        ("model_sha256", derived.loaded.model_sha256, machine["model_sha256"]),
    ):
        if ours != theirs:
            yield f"environment.json: {name} is {theirs}, the run used {ours}"


def _schedule_differences(folder: Path, run: Evidence) -> Iterator[str]:
    """The replayed schedule must fit the times at which the queries were due."""
    if run.plan.schedule is None or run.done is None:
        return
    due_ns = read_stored(str(folder / SCHEDULE)).after_ns[run.done.columns["order"]]
    start_ns = run.done.columns["scheduled_ns"] - due_ns
    if len(start_ns) and int(start_ns.min()) != int(start_ns.max()):
        yield f"{folder / records.COMPLETIONS}: its queries were not due at the times of {SCHEDULE}"


def _compare(path: str, stored: Any, derived: Any) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(derived, dict):
        for name in sorted({*stored, *derived}):
            yield from _compare(f"{path}.{name}", stored.get(name), derived.get(name))
    elif stored != derived:
        yield f"{path}: result.json has {stored!r}, the files have {derived!r}"
