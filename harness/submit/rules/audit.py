"""Checks the audits. An audit's files must exist, its logs must come from the audit, and its verification must have
passed and must match the logs.
"""

import re
from collections.abc import Iterator
from math import sqrt

from harness.core.units import counted
from harness.loadgen.logs import AccuracyLogError, logged_answers
from harness.results.agreement import is_first_equal
from harness.submit.rules import run as rules_run
from harness.submit.rules.accuracy import (
    ACCURACY_LOG,
    ACCURACY_TEXT,
    counted_score,
    shown_log,
    stated_hash,
    truncated,
)
from harness.submit.rules.findings import Finding
from harness.submit.rules.layout import exactly, must_have
from harness.submit.rules.rows import CUT, has_whole_answer, shown_answers
from harness.submit.rules.tree.consistency import (
    CONSISTENT,
    DTYPES,
    TEST06,
    verify_consistency,
)
from harness.submit.rules.tree.lengths import TEST09, verify_lengths
from harness.submit.rules.tree.rounds import Benchmark, Round
from harness.submit.rules.tree.submission import ACCURACY, PERFORMANCE, Result, RunLog
from harness.submit.rules.tree.tree import LOG_LIMIT_BYTES, join
from harness.submit.rules.tree.verify import (
    ANSWER_DTYPES,
    PASS,
    TEST01,
    Scores,
    compare,
    performance_scores,
    stated_counts,
)

SCORES = "verify_performance.txt"
BASELINE, COMPLIANCE = "baseline_accuracy.txt", "compliance_accuracy.txt"
_SCORE = re.compile(r"^(reference|test) score = ([-+.\deE]+)", re.IGNORECASE | re.MULTILINE)
_FAILED = re.compile(r"^.*(?:TEST FAIL|pass: False).*$", re.MULTILINE)
_DEVIATIONS = 6
"""The number of sampled answers may deviate from the expected number by at most this many standard deviations."""

_SAME = 1e-3
"""Two numbers count as equal up to this relative difference, because summaries have fewer digits than detail logs."""


def audits(result: Result) -> Iterator[Finding]:
    for name in result.required_audits:
        folder = result.inside(name)
        if result.tree.kind(folder) != "folder":
            yield Finding("audit-missing", folder, "no such folder", f"{name} of {result.name}")
            continue
        yield from _outputs(result, name, folder)
        if result.round.audits[name].runs:
            yield from _run(result, name, folder)
        if name == TEST01:
            yield from _accuracy(result, folder)
        if name == TEST06:
            yield from _consistency(result, folder)
        if name == TEST09:
            yield from _lengths(result, folder)


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
        failed = _FAILED.search(text)
        if failed and PASS in text:
            actual = f"{PASS} and {failed[0].strip()}"
            yield Finding(rule, path, actual[:200], "the text of one verification")


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
    if name == TEST01:
        key = "effective_accuracy_log_sampling_target"
        least = (result.benchmark.test01_answers if result.benchmark else None) or 1
        if (run.number(key) or 0) < least:
            actual = f"accuracy_log_sampling_target: {run.text(key)}"
            yield Finding("audit-not-one", file, actual, f"at least {least:,} answers")
    if result.performance is not None:
        yield from _verified(result, name, folder)


def _verified(result: Result, name: str, folder: str) -> Iterator[Finding]:
    """Checks that verify_performance.txt agrees with both logs, and that the scores are within the audit's margin."""
    performance, run = result.performance, result.audits[name]
    assert performance is not None
    path = join(folder, SCORES)
    scores = performance_scores(name, performance.detail, run.detail)
    if scores is None:
        return  # `performance` reports a log without this result
    problem = compare(name, performance.detail, run.detail)
    if problem:
        yield Finding("audit-score", run.file, problem, "a score within the audit's margin")
    stated = {m[1].lower(): m[2] for m in _SCORE.finditer(result.tree.text(path))}
    yield from _stale(path, stated, scores)


def _stale(path: str, stated: dict[str, str], scores: Scores) -> Iterator[Finding]:
    for which, score in (("reference", scores.reference), ("test", scores.test)):
        if which not in stated:
            yield Finding("audit-stale", path, f"no {which} score", f"{score:.10g}")
            continue
        try:
            value = float(stated[which])
        except ValueError:
            value = float("nan")
        if not abs(value - score) <= _SAME * abs(score):
            actual = f"{which} score = {stated[which]}"
            yield Finding("audit-stale", path, actual, f"{score:.10g}, the value in the log")


def _accuracy(result: Result, folder: str) -> Iterator[Finding]:
    """Checks TEST01's answers, and checks both scores if these answers differ from the accuracy run's answers."""
    tree, inside = result.tree, join(folder, "accuracy")
    path = join(folder, "verify_accuracy.txt")
    text = tree.text(path)
    passed = any(line.strip() == PASS for line in text.splitlines())
    if text:
        yield from _counts(result, path, text, passed=passed)
    log = join(inside, ACCURACY_LOG)
    own, of_accuracy = (tree.content(p) for p in (log, result.inside(ACCURACY, ACCURACY_LOG)))
    if own is not None and own == of_accuracy and has_whole_answer(own):
        actual = "a copy of the accuracy run's log"
        yield Finding("log-copied", log, actual, "the answers of the audit's run")
    expected = (ACCURACY_LOG, ACCURACY_TEXT) + (() if passed else (BASELINE, COMPLIANCE))
    yield from exactly(tree, inside, expected, result.round)
    yield from truncated(result, inside, once=False)
    yield from _same_answers(result, inside, passed=passed)
    yield from _sampled_score(result, inside)
    if text and not passed:
        yield from _delta(result, inside)


def _same_answers(result: Result, inside: str, *, passed: bool) -> Iterator[Finding]:
    """Checks that samples in both truncated logs have equal answers, and that the logs have different hashes."""
    log, folder = join(inside, ACCURACY_LOG), result.inside(ACCURACY)
    contents = (result.tree.content(join(place, ACCURACY_LOG)) for place in (inside, folder))
    try:
        own, of_accuracy = (shown_answers(content or b"") for content in contents)
    except ValueError:
        return  # `truncated` reports a log that is not truncated
    both = [(own[sample], of_accuracy[sample]) for sample in own.keys() & of_accuracy.keys()]
    different = min(
        sum(not is_first_equal(*pair, dtype) for pair in both) for dtype in ANSWER_DTYPES
    )
    if passed and different:
        actual = f"{PASS}, but {counted(different, 'answer')} of the accuracy run's log differ"
        yield Finding("audit-failed", log, actual, "the same answers in both logs")
    if (hash_ := stated_hash(result, inside)) and hash_ == stated_hash(result, folder):
        actual = "the hash of the accuracy run's log"
        yield Finding("accuracy-hash", join(inside, ACCURACY_TEXT), actual, "the raw log's SHA-256")


def _sampled_score(result: Result, inside: str) -> Iterator[Finding]:
    """Checks that the score of TEST01's answers agrees with the counts and is close to the accuracy run's score.

    Scores between 0 and 1 have at most the standard deviation of scores that are either 0 or 1. The check uses this
    upper bound.
    """
    run, benchmark, path = result.audits.get(TEST01), result.benchmark, join(inside, ACCURACY_TEXT)
    text = result.tree.text(path)
    yield from counted_score(path, text)
    held = run.number("effective_performance_sample_count") if run else None
    answers = stated_counts(result.tree.text(result.inside(TEST01, "verify_accuracy.txt"))).get(
        "num_perf_log_entries"
    )
    if benchmark is None or not held or not answers or held < 1:
        return
    metrics = benchmark.targets_in(str(result.scenario))
    whole = result.round.scores(result.tree.text(result.inside(ACCURACY, ACCURACY_TEXT)), metrics)
    sampled = result.round.scores(text, metrics)
    for metric in metrics:
        highest = result.round.highest_scores.get(metric)
        if highest is None or not whole.get(metric) or not sampled.get(metric):
            continue
        expected, actual = (values[metric][-1] / highest for values in (whole, sampled))
        deviation = sqrt(max(expected * (1 - expected), 0.01) / min(answers, held))
        if not abs(actual - expected) <= _DEVIATIONS * deviation:
            yield Finding(
                "audit-failed",
                path,
                f"{metric} {sampled[metric][-1]:.10g}",
                f"about {whole[metric][-1]:.10g}, as in the accuracy run",
            )


def _consistency(result: Result, folder: str) -> Iterator[Finding]:
    """Checks the answers if the tree contains the log. The tree does not state the answers' type, so the answers pass
    if one type matches.
    """
    path = join(folder, "accuracy", ACCURACY_LOG)
    content, benchmark = result.tree.content(path, LOG_LIMIT_BYTES), result.benchmark
    if content is None or benchmark is None:
        return
    try:
        answers = list(logged_answers(content, path))
    except AccuracyLogError:
        yield Finding("accuracy-log", path, "not a list of answers", "the whole log of the audit")
        return
    ends, scenario = benchmark.end_tokens, str(result.scenario)
    texts = [verify_consistency(answers, dtype, ends, scenario) for dtype in DTYPES]
    if not any(CONSISTENT in text for text in texts):
        expected = "in each answer: the first token, as many tokens as LoadGen received, and at most one end token"
        yield Finding("audit-failed", path, " ".join(texts[0].split("\n")), expected)


def _lengths(result: Result, folder: str) -> Iterator[Finding]:
    """Checks the answers if the tree contains the log. Treats every four bytes as a token, as MLCommons' script does."""
    path = join(folder, "accuracy", ACCURACY_LOG)
    content = result.tree.content(path, LOG_LIMIT_BYTES)
    if content is None or result.name is None:
        return
    if CUT in content:  # MLCommons' truncate_accuracy_log.py shortened this log
        yield from shown_log(result, path, content, once=False)
        return
    try:
        answers = list(logged_answers(content, path))
    except AccuracyLogError:
        yield Finding("accuracy-log", path, "not a list of answers", "the whole log of the audit")
        return
    settings = result.round.audit_settings(TEST09, result.name)
    text = verify_lengths(answers, "int32", settings)
    if PASS not in text:
        lines = [line for line in text.splitlines() if "False" in line or "Mean" in line]
        expected = "answers to all queries, with the round's mean number of tokens"
        yield Finding("audit-failed", path, ", ".join(dict.fromkeys(lines))[:200], expected)


def _counts(result: Result, path: str, text: str, *, passed: bool) -> Iterator[Finding]:
    """Checks that the numbers in the text about TEST01's answers agree with both runs."""
    stated = stated_counts(text)
    answers, different = (
        stated.get(key) for key in ("num_perf_log_entries", "num_perf_log_data_mismatch")
    )
    if answers is None or different is None:
        actual = "no number of answers and mismatches"
        yield Finding("audit-failed", path, actual, "the text that the verification writes")
        return
    if passed and different:
        yield Finding("audit-failed", path, f"{PASS} with {different:,} mismatches", "no mismatch")
    matched, missing = (
        stated.get(key) for key in ("num_perf_log_qsl_idx_match", "num_missing_qsl_idxs")
    )
    if matched is not None and matched + (missing or 0) != answers:
        actual = f"{answers:,} answers, {matched:,} of them to samples of the accuracy run"
        yield Finding("audit-failed", path, actual, "all of them, or the number of missing samples")
    issued = result.accuracy.number("effective_accuracy_sample_count") if result.accuracy else None
    if "num_acc_log_duplicate_keys" in stated and "num_acc_log_entries" in stated:
        compared = stated["num_acc_log_entries"] - stated["num_acc_log_duplicate_keys"]
        if issued is not None and compared != issued:
            actual = f"{compared:,} samples of the accuracy run"
            yield Finding("audit-stale", path, actual, f"{issued:,.0f}, as in its log")
    run = result.audits.get(TEST01)
    expected = None if run is None else _expected_answers(run)
    if expected is not None and abs(answers - expected) > _DEVIATIONS * sqrt(expected) + 2:
        actual = f"{answers:,} answers"
        yield Finding("audit-failed", path, actual, f"about {expected:,.0f}, from the run's log")


def _expected_answers(run: RunLog) -> float | None:
    """Returns the expected number of answers that LoadGen logs, which is a share of the samples that depends on the
    expected length.

    Source: mlcommons/inference b66003e, loadgen/loadgen.cc, IssueQueries.
    """
    keys = ("accuracy_log_sampling_target", "target_qps", "min_duration_ms", "samples_per_query")
    values = [run.number(f"effective_{key}") for key in keys]
    queries = run.number("result_query_count")
    if queries is None or queries < 1 or any(value is None or value < 0 for value in values):
        return None
    target, rate, duration_ms, per_query = (float(value or 0) for value in values)
    if run.detail.get("effective_scenario") == "Offline":
        per_query = run.number("generated_samples_per_query") or per_query
        length = max(rate * duration_ms / 1e3, run.number("effective_min_sample_count") or 0)
    else:
        least = run.number("effective_min_query_count") or 0
        length = max(rate * duration_ms / 1e3, least) * per_query
    return min(1.0, target / length) * queries * per_query if length > 0 else None


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
    """Yields an (actual, expected) pair for each metric that changes by more than the round allows.

    accuracy, audit: texts with the scores that the two runs achieved on the same samples.
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
