"""Checks the audits: their files exist, their logs are an audit's, the verification passed and matches the logs."""

import re
from collections.abc import Iterator
from pathlib import Path

from harness.submit.rules import run as rules_run
from harness.submit.rules.accuracy import ACCURACY_LOG, ACCURACY_TEXT, truncated
from harness.submit.rules.findings import Finding
from harness.submit.rules.layout import exactly, must_have
from harness.submit.rules.tree.rounds import Benchmark, Round
from harness.submit.rules.tree.submission import PERFORMANCE, Result
from harness.submit.rules.tree.tree import join
from harness.submit.rules.tree.verify import TEST01, Scores, compare, performance_scores

SCORES = "verify_performance.txt"
BASELINE, COMPLIANCE = "baseline_accuracy.txt", "compliance_accuracy.txt"
_SCORE = re.compile(r"^(reference|test) score = ([-+.\deE]+)", re.IGNORECASE | re.MULTILINE)
_SAME = 1e-3
"""Relative tolerance: summaries have fewer digits than detail logs."""


def audits(result: Result, raw: Path | None) -> Iterator[Finding]:
    """raw: a folder with the untruncated accuracy logs, or None."""
    for name in result.required_audits:
        folder = result.inside(name)
        if result.tree.kind(folder) != "folder":
            yield Finding("audit-missing", folder, "no such folder", f"{name} of {result.name}")
            continue
        yield from _outputs(result, name, folder)
        if result.round.audits[name].runs:
            yield from _run(result, name, folder)
        if name == TEST01:
            yield from _accuracy(result, folder, raw)


def _outputs(result: Result, name: str, folder: str) -> Iterator[Finding]:
    for file, patterns in result.round.audits[name].outputs.items():
        path = join(folder, file)
        yield from must_have(result.tree, path)
        text = result.tree.text(path)
        rule = "audit-score" if file == SCORES else "audit-failed"
        for pattern in patterns:
            if text and not re.search(rf"^\s*{pattern}\s*$", text, re.MULTILINE):
                *_, last = text.strip().splitlines() or ["an empty file"]
                yield Finding(rule, path, last[:200], pattern)


def _run(result: Result, name: str, folder: str) -> Iterator[Finding]:
    rules = result.round
    yield from exactly(result.tree, join(folder, PERFORMANCE), rules.performance_files, rules)
    run = result.audits.get(name)
    if run is None:
        return
    yield from rules_run.performance(result, run)
    file = run.file
    for key, expected in rules.audits[name].logged.items():
        if run.detail.get(key) != expected:
            yield Finding("audit-not-one", file, f"{key}: {run.text(key)}", f"{expected}")
    if name == TEST01 and not run.number("effective_accuracy_log_sampling_target"):
        actual = (
            f"accuracy_log_sampling_target: {run.text('effective_accuracy_log_sampling_target')}"
        )
        yield Finding("audit-not-one", file, actual, "the benchmark's number of answers")
    if result.performance is not None:
        yield from _verified(result, name, folder)


def _verified(result: Result, name: str, folder: str) -> Iterator[Finding]:
    """Checks that verify_performance.txt follows from the two logs, and that the scores are within the audit's margin."""
    performance, run = result.performance, result.audits[name]
    assert performance is not None
    path = join(folder, SCORES)
    scores = performance_scores(name, performance.detail, run.detail)
    if scores is None:
        return  # `performance` reports a log without its result
    problem = compare(name, performance.detail, run.detail)
    if problem:
        yield Finding("audit-score", run.file, problem, "a score within the audit's margin")
    stated = {m[1].lower(): m[2] for m in _SCORE.finditer(result.tree.text(path))}
    yield from _stale(path, stated, scores)


def _stale(path: str, stated: dict[str, str], scores: Scores) -> Iterator[Finding]:
    for which, score in (("reference", scores.reference), ("test", scores.test)):
        if which not in stated:
            continue
        try:
            value = float(stated[which])
        except ValueError:
            value = float("nan")
        if not abs(value - score) <= _SAME * abs(score):
            actual = f"{which} score = {stated[which]}"
            yield Finding("audit-stale", path, actual, f"{score:.10g}, the value in the log")


def _accuracy(result: Result, folder: str, raw: Path | None) -> Iterator[Finding]:
    """Checks TEST01's answers, and both scores where answers differ from the accuracy run's."""
    tree, inside = result.tree, join(folder, "accuracy")
    text = tree.text(join(folder, "verify_accuracy.txt"))
    passed = any(line.strip() == "TEST PASS" for line in text.splitlines())
    expected = (ACCURACY_LOG, ACCURACY_TEXT) + (() if passed else (BASELINE, COMPLIANCE))
    yield from exactly(tree, inside, expected, result.round)
    yield from truncated(result, inside, raw)
    if text and not passed:
        yield from _delta(result, inside)


def _delta(result: Result, inside: str) -> Iterator[Finding]:
    if result.benchmark is None:
        return
    texts = (result.tree.text(join(inside, name)) for name in (BASELINE, COMPLIANCE))
    changed = changed_scores(result.round, result.benchmark, str(result.scenario), *texts)
    for actual, expected in changed:
        yield Finding("audit-failed", join(inside, COMPLIANCE), actual, expected)


def changed_scores(
    rules: Round, benchmark: Benchmark, scenario: str, accuracy: str, audit: str
) -> Iterator[tuple[str, str]]:
    """Yields (actual, expected) for each metric that differs by more than the round allows.

    accuracy, audit: texts with the scores of the same samples in both runs.
    """
    targets = benchmark.targets_in(scenario)
    before, after = (rules.scores(text, targets) for text in (accuracy, audit))
    for metric in targets:
        most = benchmark.delta_percent(metric)
        pair = before.get(metric, [0.0])[-1], after.get(metric, [0.0])[-1]
        delta = abs(1 - pair[0] / pair[1]) * 100 if pair[1] and pair[0] else float("nan")
        if not delta <= most:
            actual = f"{metric}: {pair[0]:.10g} in the accuracy run, {pair[1]:.10g} in the audit"
            yield actual, f"within {most:g} %"
