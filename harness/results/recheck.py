"""Derives a finished run's verdict from its files again: `python -m harness check RUN`.

Recomputes the results from LoadGen's logs, the journal and the accuracy log, and compares them with result.json and
config.yaml. The comparison reveals edited numbers. Also compares all files with each other (harness/results/check) and
with their digests (harness/results/seal). Readings that cannot be repeated (noise, other processes, why the run was
stopped) are taken from findings.json unchanged.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.core import files, registry
from harness.core.codes import Reason
from harness.core.config import code
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig, from_plain
from harness.core.shown.private import hidden
from harness.errors import ConfigError, refuse
from harness.loadgen.plan import Loaded
from harness.models.cache.model_set import load_model_set
from harness.models.manifest.defaults import default_metric, slos_of
from harness.models.manifest.lookup import is_path, load_model
from harness.models.manifest.model import Model
from harness.models.opened.loading import missing_data
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import records, resolved, run_folder
from harness.results.check import copies, request, rows
from harness.results.findings import Findings
from harness.results.nodes import section as nodes
from harness.results.pages.report import page_differences
from harness.results.result_json import result
from harness.results.run_files import check_shape, read_config
from harness.results.seal import digests, signature
from harness.results.verdict import score
from harness.types import Score

_FOLDERS = re.compile(r"[^\s:]*/(?=(?:performance|accuracy)[/.])")
"""Matches folders in texts. Folders are not compared, because they change when the run's folder is renamed."""

MODEL = "model"
"""Name of the folder in a published copy that contains the model's manifest."""

_OF_SCORE = ("model", "data_dir", "dataset", "metric", "hook")
"""Fields that name the files from which the score is computed."""

_UNSCORED = ("accuracy-failed", "accuracy-incomplete", "answers-unusable")
"""Codes of reasons that leave an accuracy run without a score."""

_UNSEALED = ("did-not-finish", "not-saved")
"""Codes of reasons that may leave a run without a seal."""


class CheckedFolder(NamedTuple):
    """Result of `check` for a run or a study."""

    folder: Path
    differences: Sequence[str]
    """One line per difference; [] if result.json agrees with the files."""
    signer: str
    """Line that names the seal's signer; "" if the seal is not signed."""

    def lines(self) -> list[str]:
        lines = self.differences or [agreed(self.folder)]
        return [*lines, *filter(None, [self.signer])]

    def to_json(self) -> Mapping[str, Any]:
        """Returns an object with the verdict and codes from result.json. For a study or an unreadable result.json, the
        verdict is None and the codes are [].
        """
        try:
            stored = _read_result(self.folder)
        except ConfigError:
            stored = {}
        codes = {key: [e["code"] for e in stored.get(key, ())] for key in ("reasons", "doubts")}
        return {
            "folder": str(self.folder),
            "agrees": not self.differences,
            "differences": self.differences,
            "verdict": stored.get("verdict"),
            **codes,
            "signature": self.signer or None,
        }


def checked(folder: Path, trusted: Collection[str], signers: Path | None) -> list[CheckedFolder]:
    """Checks the folder and, for a study, each of its runs.

    trusted: as in `check`. signers: OpenSSH's allowed-signers file.
    """
    folders = []
    for part, differences in _parts(folder, trusted):
        unsigned, signer = signature.vouched(folder, signers) if part == folder else ([], "")
        folders.append(CheckedFolder(part, [*differences, *unsigned], signer))
    return folders


def _read_result(folder: Path) -> Mapping[str, Any]:
    """Reads result.json. Raises a ConfigError if the file does not have the structure of a run's result."""
    path = folder / run_folder.RESULT
    content = files.read_json(path)
    check_shape(content, path, request.CHANGED)
    return content


def check(folder: Path, trusted: Collection[str] = (), *, scores: bool = True) -> list[str]:
    """Returns the differences between result.json and the files, one line each; [] if they agree.

    trusted: names, as stored in the folder, of the datasets and metrics whose code may run. If the score requires
    untrusted code, the stored score is accepted. scores: whether to compute the score again; otherwise the stored score
    is accepted.
    """
    stored = _read_result(folder)
    config = configuration(folder)
    with files.reading(f"{folder}: its files do not fit together", request.CHANGED):
        derived = findings(folder, config, trusted, scores=scores)
        content = hidden(json.loads(json.dumps(result(derived), default=str)))
        changed = [
            *request.differences(folder, config, derived),
            *rows.differences(folder, derived),
            *copies.differences(folder, derived, stored),
            *page_differences(folder),
            *_seal_differences(folder, stored),
        ]
    found = [*_differences(stored, content), *changed]
    return sorted(found, key=lambda line: not line.endswith(digests.MISSING))


def _parts(folder: Path, trusted: Collection[str] = ()) -> Iterator[tuple[Path, list[str]]]:
    """Yields a (folder, differences) pair for a run, or for a study and each of its runs. A run in a study counts as
    different if it cannot be read, and is skipped if it ended before its first query.
    """
    is_study = run_folder.is_study(folder)
    if is_study and not (folder / run_folder.RESULT).is_file():
        yield folder, list(_seal_differences(folder))
    else:
        yield folder, check(folder, trusted)
    for run in sorted(path.parent for path in folder.rglob(run_folder.RESULT)) if is_study else ():
        if run != folder and (run / run_folder.CONFIG).is_file():
            try:
                yield run, check(run, trusted)
            except ConfigError as e:
                yield run, str(e).splitlines()


def agreed(folder: Path) -> str:
    """Returns the line for a folder without differences. The line shows the verdict, because an INVALID run's files may
    agree too.
    """
    if not (folder / run_folder.RESULT).is_file():
        return f"{folder}: its files match {digests.SEAL}"
    stored = files.read_json(folder / run_folder.RESULT)
    codes = ", ".join(dict.fromkeys(reason["code"] for reason in stored["reasons"]))
    verdict = f"{stored['verdict']} ({codes})" if codes else stored["verdict"]
    return f"{folder}: result.json agrees with the files; the run is {verdict}"


def configuration(folder: Path) -> RunConfig:
    return from_plain(read_config(folder), str(folder / run_folder.CONFIG))


def untrusted(folder: Path, trusted: Collection[str] = ()) -> list[str]:
    """Returns the datasets and metrics whose untrusted code or programs `check` would have to run to compute the score."""
    config = configuration(folder)
    values, _ = records.read_findings(folder)
    metric = config.metric or default_metric(_model(folder, config))
    return _untrusted(values["dataset"], metric, trusted)


def _untrusted(dataset: str, metric: str | None, trusted: Collection[str]) -> list[str]:
    names = {"dataset": dataset, "metric": metric}
    return [
        name
        for kind, name in names.items()
        if name
        and (
            (registry.is_foreign(kind, name) and not code.is_trusted(name, trusted))
            or (kind == "metric" and name in registry.BY_PROGRAM)
        )
    ]


def notes(folder: Path, trusted: Collection[str] = ()) -> Iterator[str]:
    """Yields the reasons why the stored score was accepted; nothing if the score was computed again."""
    result_file = folder / run_folder.RESULT
    accuracy = files.read_json(result_file).get("accuracy") if result_file.is_file() else None
    if not isinstance(accuracy, dict) or accuracy.get("value") is None:
        return
    stored = "so the stored score is used"
    if lacks_data(configuration(folder)):
        yield f"{folder} is a published copy without its data or model, {stored}"
        return
    for name in untrusted(folder, trusted):
        if name in registry.BY_PROGRAM:
            yield f"{name} may run one of your programs, which `check` does not run, {stored}"
            continue
        yield f"{name} is code and did not run, {stored}: pass --trust {name}"


def _model(folder: Path, config: RunConfig) -> Model:
    """Loads the run's model. A published copy contains the manifest in its folder, or only the name of a model file."""
    if config.models is not None:
        if config.models.is_absolute():
            return load_model_set(config.models)
        return load_model_set(folder / MODEL / config.models.name, without_files=True)
    path = Path(config.model)
    if path.is_absolute() or not is_path(config.model):
        return load_model(config.model)
    if path.suffix in (".yaml", ".yml"):
        return load_model(str(folder / MODEL / path.name))
    return Model(path.stem, None, folder, folder / path.name)


def is_published(config: RunConfig) -> bool:
    """Returns whether config.yaml contains file names without folders, as `publish` writes them. Runs store absolute
    paths.
    """
    return bool(resolved.without_folder(config))


def lacks_data(config: RunConfig) -> bool:
    """Returns whether a published copy lacks a file that is needed to compute its score again."""
    return not set(_OF_SCORE).isdisjoint(resolved.without_folder(config))


def findings(
    folder: Path, config: RunConfig, trusted: Collection[str] = (), *, scores: bool = True
) -> Findings:
    """Derives the findings from the run's files. trusted, scores: as in `check`."""
    model = _model(folder, config)
    scenario = registry.load("scenario", config.scenario)
    values, scored = records.read_findings(folder)
    runs = {
        role: records.read(folder / path, scenario.loadgen_name)
        for role, path in run_folder.FOLDERS.items()
    }
    performance, accuracy = runs["performance"], runs["accuracy"]
    slos = () if config.mlperf else slos_of(scenario, config, model)
    measured = performance or accuracy
    plan = measured.plan if measured else None
    if config.mlperf and plan and plan.percentile and plan.latency_bound_ns:
        slos = (Slo(plan.percentile, plan.latency_bound_ns),)
    run = ResolvedRun(
        config=config,
        model=model,
        scenario=scenario,
        dataset=values.pop("dataset"),
        metric=config.metric or default_metric(model),
        slos=slos,
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
        if not scores or lacks_data(config) or _untrusted(run.dataset, run.metric, trusted):
            derived.scoring = _stored_scoring(folder, derived, derived.loaded)
        else:
            derived.scoring = _scoring(folder, derived, derived.loaded)
    return derived


def _stored_scoring(folder: Path, derived: Findings, loaded: Loaded) -> score.Scoring:
    """Returns the stored score for a run that must not or cannot be scored again, but still compares the answers."""
    stored = files.read_json(folder / run_folder.RESULT)
    for entry in stored["reasons"]:
        if entry["code"] in _UNSCORED:
            return score.Scoring(failure=Reason.stored(entry))
    accuracy = stored["accuracy"]
    if accuracy["value"] is None:
        return score.Scoring(no_score=accuracy["reason"].removesuffix(score.LEFT_OUT))
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
            scorer=accuracy.get("scorer", ""),
        ),
        compared=score.compare_answers(folder, derived.model, dtype, derived.compared_run, loaded),
    )


def _scoring(folder: Path, derived: Findings, loaded: Loaded) -> score.Scoring:
    run = derived.accuracy
    if run is None:
        metric = derived.resolved.metric
        lost = nodes.no_score(derived.performance)
        return score.Scoring(no_score=lost or score.no_score(derived.model, loaded, metric))
    if run.ended is None:
        return score.Scoring()
    moved = missing_data(derived.resolved.config.data_dir)
    refuse(f"{folder} cannot be scored again ({why}): restore it" for why in moved)
    return score.judge(folder, derived.resolved, loaded, run.ended, derived.compared_run)


def _differences(stored: Mapping[str, Any], derived: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*derived, *stored]):
        if key != "environment":  # the environment is compared separately, with environment.json
            ours, theirs = (_without_folders(content.get(key)) for content in (stored, derived))
            yield from copies.compared(key, ours, theirs)


def _without_folders(value: Any) -> Any:
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, list):
        return [_without_folders(v) for v in value]
    if isinstance(value, dict):
        return {k: _without_folders(v) for k, v in value.items()}
    return value


def _seal_differences(
    folder: Path, stored: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    """Yields each file that changed after the run or study ended. stored: content of result.json; {} for a study.

    A run that was killed or could not be saved may lack a seal, but its reasons then say so.
    """
    if (folder / digests.SEAL).is_file():
        yield from digests.differences(folder)
    elif not any(reason["code"] in _UNSEALED for reason in stored.get("reasons", ())):
        yield f"{folder} has no {digests.SEAL}, which every finished run or study has"
