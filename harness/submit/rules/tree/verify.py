"""Verifies audits from the runs' logs, with the same results as MLCommons' scripts in compliance/TEST01 and
compliance/TEST04.

Sources: mlcommons/inference b66003e, compliance/TEST01/README.md, compliance/TEST04/README.md.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.core.numbers import number
from harness.core.units import show_percent
from harness.loadgen.logs import (
    ACCURACY,
    DETAIL,
    EARLY_STOPPING,
    SUMMARY,
    DetailLog,
    read_answers,
    read_detail,
)
from harness.results.agreement import is_first_equal

TEST01, TEST04 = "TEST01", "TEST04"
PASS, FAIL = "TEST PASS", "TEST FAIL"
MARGIN, SHORT_MARGIN = 0.10, 0.20
SHORT = {"SingleStream": 200_000.0, "MultiStream": 1_600_000.0}
"""SHORT_MARGIN applies to scores up to this value. TEST01 compares latencies in ns, so SHORT_MARGIN applies only to
fast systems. TEST04 compares rates in 1/s with the same limits, so SHORT_MARGIN applies almost always.
"""

ANSWER_DTYPES = ("int8", "float32", "int32", "int64", "float16", "float64", "int16")
"""Possible types of TEST01's answers. A tree does not state the type, so the answers must match one of these types."""

_SUMMARY_SCORES = {
    "SingleStream": re.compile(r".*Early stopping (?:90|90\.0|99\.9)th percentile estimate: (.*)"),
    "MultiStream": re.compile(r".*Early stopping (?:99|99\.0)th percentile estimate: (.*)"),
    "Server": re.compile(r"Completed samples per second\s*: (.*)"),
    "Offline": re.compile(r"Samples per second\s*: (.*)"),
}
_DETAIL_SCORES = {
    **EARLY_STOPPING,
    "Server": "result_completed_samples_per_sec",
    "Offline": "result_samples_per_second",
}
_COUNT = re.compile(r"^(num_\w+) = (\d{1,18})\s*$", re.MULTILINE)


class Scores(NamedTuple):
    """Scores from the performance run and from the audit, in ns or 1/s."""

    reference: float
    test: float


class Verified(NamedTuple):
    """Outcome of a verification. texts: maps a file name to its content in the official scripts' format."""

    passed: bool
    texts: Mapping[str, str]


def performance_scores(audit: str, reference: DetailLog, test: DetailLog) -> Scores | None:
    """Returns both scores; None if a log does not contain them. In TEST01, the scores of SingleStream and MultiStream
    are latencies in ns; all other scores are rates.
    """
    values = [_score(log) for log in (reference, test)]
    if None in values:
        return None
    first, second = (float(v) for v in values if v is not None)
    if audit == TEST04 and str(reference.get("effective_scenario")).endswith("Stream"):
        return Scores(1e9 / first, 1e9 / second)
    return Scores(first, second)


def _score(log: DetailLog) -> float | None:
    value = number(log.get(_DETAIL_SCORES.get(str(log.get("effective_scenario")), "")))
    return value if value is not None and value > 0 else None


def compare(audit: str, reference: DetailLog, test: DetailLog, scores: Scores | None = None) -> str:
    """Returns the reason why the audit's performance fails; '' if it passes. scores: None means the scores in the logs.

    TEST01 must be neither slower nor faster than the margin allows. TEST04 must not be faster, because a higher speed
    would reveal a cache.
    """
    scenario = str(reference.get("effective_scenario"))
    if scenario != str(test.get("effective_scenario")):
        return f"scenario {test.get('effective_scenario')}, but {scenario} in the performance run"
    for name, log in (("performance", reference), ("audit", test)):
        if log.get("result_validity") != "VALID":
            return f"the {name} run is {log.get('result_validity')}"
    key = "effective_target_latency_ns"
    if audit == TEST01 and scenario == "Server" and reference.get(key) != test.get(key):
        return f"target latency {test.get(key)} ns, but {reference.get(key)} in the performance run"
    scores = scores or performance_scores(audit, reference, test)
    return "a log lacks its result" if scores is None else _outside(audit, scenario, scores)


def _outside(audit: str, scenario: str, scores: Scores) -> str:
    short = scenario in SHORT and scores.reference <= SHORT[scenario]
    margin = SHORT_MARGIN if short else MARGIN
    high = scores.reference * (1 + margin)
    low = scores.reference * (1 - margin) if audit == TEST01 else -math.inf
    fits = low <= scores.test <= high if audit == TEST01 else scores.test < high
    if fits:
        return ""
    return f"{scores.test:.6g}, but {scores.reference:.6g} (± {show_percent(margin)}) in the performance run"


def verify(audit: str, performance: Path, accuracy: Path, test: Path, dtype: str) -> Verified:
    """Verifies an audit. performance, accuracy, test: folders with whole logs. dtype: type of the elements in TEST01's
    answers.
    """
    texts = {"verify_performance.txt": _performance_text(audit, performance, test)}
    if audit == TEST01:
        texts["verify_accuracy.txt"] = compare_answers(accuracy / ACCURACY, test / ACCURACY, dtype)
    return Verified(all(PASS in text for text in texts.values()), texts)


def _performance_text(audit: str, performance: Path, test: Path) -> str:
    """Returns the text for verify_performance.txt. Reads the same files as the scripts: detail logs for TEST01, and
    summaries for TEST04.
    """
    reference, tested = (read_detail(folder / DETAIL) for folder in (performance, test))
    scores = performance_scores(audit, reference, tested)
    if audit == TEST04:
        values = [_summary_score(folder / SUMMARY) for folder in (performance, test)]
        scores = Scores(*(v for v in values if v is not None)) if None not in values else None
    problem = compare(audit, reference, tested, scores)
    lines = ["Verifying performance."]
    if scores is not None:
        words = ("Reference", "Test") if audit == TEST01 else ("reference", "test")
        lines += [f"{word} score = {score}" for word, score in zip(words, scores, strict=True)]
    lines.append(f"{FAIL}: {problem}" if problem else PASS)
    return "\n".join(lines) + "\n"


def _summary_score(path: Path) -> float | None:
    """Returns TEST04's score in queries/s for SingleStream and MultiStream, and in samples/s for Offline and Server."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^Scenario.*?: (.*)$", text, re.MULTILINE)
    scenario = match[1].strip() if match else ""
    pattern = _SUMMARY_SCORES.get(scenario)
    if pattern is None:
        return None
    values = [m[1] for line in text.splitlines() if (m := pattern.match(line))]
    try:
        value = float(values[-1])
        return 1e9 / value if scenario.endswith("Stream") else value
    except (IndexError, ValueError, ZeroDivisionError):
        return None


def stated_counts(text: str) -> dict[str, int]:
    """Returns the numbers in the text about TEST01's answers, by their names."""
    return {m[1]: int(m[2]) for m in _COUNT.finditer(text)}


def compare_answers(accuracy: Path, test: Path, dtype: str) -> str:
    """Returns the text about TEST01. Each answer's first element must be the same as in the accuracy run.

    The audit compares each answer with the sample's previous answer, so the answers to a repeated sample must also
    agree with each other.
    """
    expected: dict[int, bytes] = {}
    twice = contrary = entries = 0
    for sample, payload in read_answers(accuracy):
        entries += 1
        if sample in expected:
            twice += 1
            contrary += expected[sample] != payload
        else:
            expected[sample] = payload
    matched = different = missing = count = 0
    for sample, payload in read_answers(test):
        count += 1
        if sample in expected:
            matched += 1
            different += not is_first_equal(payload, expected[sample], dtype)
        else:
            missing += 1
        expected[sample] = payload
    lines = [
        "Verifying accuracy. This might take a while...",
        "Reading accuracy mode results...",
        "Reading performance mode results...",
        f"num_acc_log_entries = {entries}",
        f"num_acc_log_duplicate_keys = {twice}",
        f"num_acc_log_data_mismatch = {contrary}",
        f"num_perf_log_entries = {count}",
        f"num_perf_log_qsl_idx_match = {matched}",
        f"num_perf_log_data_mismatch = {different}",
        f"num_missing_qsl_idxs = {missing}",
        PASS if matched and not different else FAIL,
    ]
    return "\n".join(lines) + "\n\n"
