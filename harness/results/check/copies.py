"""Compares files that repeat a run's numbers (summaries, environment.json, metrics) with their sources."""

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness.core import files, registry
from harness.loadgen.logs import SUMMARY
from harness.results import run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.evidence.summary import differences as summary_differences
from harness.results.evidence.summary import read_summary
from harness.results.findings import Findings
from harness.types import Score

_SAMPLE = re.compile(r"(harness_\w+)\{(.*)\} (\S+)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_BY = re.compile(", (?:scored|judged|checked) by ")
"""Matches the end of a score's line, which names the scoring program."""

_ROUNDING = 1e-12
"""Two computations of the same float count as equal if their relative difference is at most this value."""

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def differences(folder: Path, derived: Findings, stored: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line per difference. stored: the content of result.json."""
    if derived.runs and derived.loaded is not None:
        yield from _environment(folder / run_folder.ENVIRONMENT, derived, stored)
    if derived.scoring.score is not None:
        path, line = folder / "accuracy" / run_folder.ACCURACY_TEXT, derived.scoring.score.line
        text = path.read_text(errors="replace") if path.is_file() else ""
        if not path.is_file():
            yield f"{path} is missing"
        elif line not in text.splitlines():
            yield f"{path} has no line {line!r}"
        elif text.splitlines() != [line]:
            yield f"{path} has lines other than {line!r}"
        if derived.scoring.score.metric in registry.BY_PROGRAM:
            yield from _stated(path, derived.scoring.score)
    for role, run in derived.runs.items():
        if not run.plan.harness_scheduled:
            yield from _summary(folder / run_folder.FOLDERS[role], run)
    yield from _metrics(folder / run_folder.METRICS, derived, stored)
    if derived.performance is not None:
        yield from _peak(folder / run_folder.PEAK, derived.performance)


def _stated(path: Path, score: Score) -> Iterator[str]:
    """Checks the line that states a score, if the score cannot be computed again. Yields each number in the line that
    result.json lacks.
    """
    known = {"value": score.value, "samples": score.samples, **score.details}
    stated = _NUMBER.findall(_BY.split(score.line)[0])
    for text in stated:
        if not any(_is_written(text, number) for number in known.values()):
            yield f"{path} states {text}, but the score in result.json contains no such number"
    if not any(_is_written(text, score.value) for text in stated):
        yield f"{path} does not state {score.value:.10g}, the score in result.json"


def _is_written(text: str, number: float) -> bool:
    """Returns whether the text shows the number, rounded to as many digits as the text has."""
    last = Decimal(text).as_tuple().exponent
    return abs(float(text) - number) <= 0.5000001 * 10.0 ** int(last)


def _summary(folder: Path, run: Evidence) -> Iterator[str]:
    """Yields differences between LoadGen's summary and its detail log."""
    if not run.logged:
        return
    expected = [_counted("warning", len(run.log.warnings)), _counted("ERROR", len(run.log.errors))]
    path = folder / SUMMARY
    text = path.read_text(errors="replace") if path.is_file() else ""
    for line in expected:
        if line not in text.splitlines():
            yield f"{path} has no line {line!r}, which follows from LoadGen's detail log"
    for line, stated, logged in summary_differences(read_summary(text), run.log):
        yield f"{path}: the line {line!r} states {stated}, but LoadGen's detail log states {logged}"


def _counted(kind: str, count: int) -> str:
    """Returns the summary's line for a count. Source: mlcommons/inference b66003e, loadgen/logging.cc, SetLogFiles."""
    if not count:
        return f"No {kind.lower()}s encountered during test."
    return f"{count} {kind}{'' if count == 1 else 'S' if kind.isupper() else 's'} encountered. See detailed log."


def _environment(path: Path, derived: Findings, stored: Mapping[str, Any]) -> Iterator[str]:
    """Compares the machine, seeds, dataset and model in environment.json, because `compare` reads them."""
    machine = files.read_json(path)
    ours = stored.get("environment") or {}
    if not ours:
        yield "environment: result.json contains none"
    for key, value in ours.items():
        yield from compared(f"environment.{key}", value, machine.get(key))
    yield from compared("environment.code", ours.get("code"), derived.code)
    run, loaded = next(iter(derived.runs.values())), derived.loaded
    assert loaded is not None
    loadgen = machine["loadgen"]
    for name, used, stated in (
        ("seeds", run.plan.seeds._asdict(), loadgen["seeds"]),
        ("dataset digest", loaded.dataset.get("digest"), machine["dataset"].get("digest")),
        ("dataset", _without_digest(loaded.dataset), _without_digest(machine["dataset"])),
        ("backend", loaded.backend, machine["backend"]),
        ("model_sha256", loaded.model_sha256, machine["model_sha256"]),
    ):
        if used != stated:
            yield f"{path.name}: {name} is {stated}, but the run used {used}"
    for one in derived.runs.values():
        logged = str(one.log.get("loadgen_version", "")).partition(" ")[0]
        for name, version in (
            (path.name, loadgen["version"]),
            (run_folder.CONFIG, derived.config.loadgen_version),
        ):
            if logged and version != logged:
                yield f"{name}: LoadGen's version is {version}, but its log has {logged}"


def _without_digest(dataset: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in dataset.items() if key != "digest"}


def _counts(done: Completions) -> dict[str, int]:
    """Returns the expected sample counts of metrics.prom. The counts include the steps of a ramp."""
    parts = [done.columns, *([done.before] if done.before is not None else [])]
    return {
        "issued": done.issued,
        "completed": sum(len(part["order"]) for part in parts),
        "failed": sum(int(part["failed"].sum()) for part in parts),
    }


def _metrics(path: Path, derived: Findings, stored: Mapping[str, Any]) -> Iterator[str]:
    """Compares the verdict, the score and the sample counts in metrics.prom.

    Under MLPerf Power, metrics.prom comes from the testing run, whose result did not contain the power yet.
    """
    if not path.is_file():
        return
    samples = [
        (match[1], {**dict(_LABEL.findall(match[2])), "": match[3]})
        for match in map(_SAMPLE.fullmatch, path.read_text(errors="replace").splitlines())
        if match is not None
    ]
    for role, run in derived.runs.items():
        done = run.done if run.ended is not None else None
        counts = _counts(done) if done else {}
        for name, count in counts.items():
            key = f"harness_samples_{name}_total"
            values = [s[""] for n, s in samples if n == key and s.get("phase") == role]
            if [float(value) for value in values] != [float(count)]:
                yield f"{path}: {key} of the {role} run is {', '.join(values)}, but the journal has {count}"
    if derived.ptdaemon is not None:
        return
    score = (stored.get("accuracy") or {}).get("value")
    for key, label, expected in (
        ("harness_run_valid", "", {float(stored["verdict"] == "VALID")}),
        ("harness_run_reason", "code", {reason["code"] for reason in stored["reasons"]}),
        ("harness_run_doubt", "code", {doubt["code"] for doubt in stored["doubts"]}),
        ("harness_accuracy", "", {score} - {None}),
    ):
        stated = [s.get(label, "") for name, s in samples if name == key]
        if {text if label else float(text) for text in stated} != expected:
            words = ", ".join(sorted(map(str, expected))) or "none"
            yield f"{path}: {key} is {', '.join(stated) or 'none'}, but result.json has {words}"


def _peak(path: Path, run: Evidence) -> Iterator[str]:
    """Compares the peak that a search found with the load of the run in the same folder."""
    if not path.is_file():
        return
    plan = run.plan
    load = plan.concurrency or plan.target_qps or plan.samples_per_query
    peak = files.read_json(path).get("peak")
    if peak != load:
        yield f"{path}: the peak is {peak}, but the load of the run was {load:g}"


def compared(path: str, stored: Any, derived: Any) -> Iterator[str]:
    """Yields each place where two values differ, with both values."""
    if isinstance(stored, dict) and isinstance(derived, dict):
        for name in sorted({*stored, *derived}):
            yield from compared(f"{path}.{name}", stored.get(name), derived.get(name))
    elif stored != derived and not _is_rounded(stored, derived):
        yield f"{path}: result.json has {stored!r}, but the files have {derived!r}"


def _is_rounded(stored: Any, derived: Any) -> bool:
    """Returns whether both values are floats that differ only in the last digits. NumPy adds in a different order on
    different machines.
    """
    floats = isinstance(stored, float) and isinstance(derived, float)
    return floats and math.isclose(stored, derived, rel_tol=_ROUNDING)
