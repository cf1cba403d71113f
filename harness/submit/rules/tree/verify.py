"""Whether an audit passed, from its run's logs and the submission's: what MLCommons' scripts in
compliance/TEST01 and compliance/TEST04 decide, on the same files.

Sources: mlcommons/inference b66003e, compliance/TEST01/README.md, compliance/TEST04/README.md.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.core.units import show_percent
from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY, DetailLog, read_answers, read_detail
from harness.results.agreement import is_first_equal

TEST01, TEST04 = "TEST01", "TEST04"
PASS, FAIL = "TEST PASS", "TEST FAIL"
MARGIN, SHORT_MARGIN = 0.10, 0.20
SHORT = {"SingleStream": 200_000.0, "MultiStream": 1_600_000.0}
"""Below this score the wider margin holds. TEST01 compares latencies in ns, so it holds for fast
systems; TEST04 compares rates in 1/s with the same numbers, so there it nearly always holds."""

_SUMMARY_SCORES = {
    "SingleStream": re.compile(r".*Early stopping (?:90|90\.0|99\.9)th percentile estimate: (.*)"),
    "MultiStream": re.compile(r".*Early stopping (?:99|99\.0)th percentile estimate: (.*)"),
    "Server": re.compile(r"Completed samples per second\s*: (.*)"),
    "Offline": re.compile(r"Samples per second\s*: (.*)"),
}
_DETAIL_SCORES = {
    "SingleStream": "early_stopping_latency_ss",
    "MultiStream": "early_stopping_latency_ms",
    "Server": "result_completed_samples_per_sec",
    "Offline": "result_samples_per_second",
}


class Scores(NamedTuple):
    """Of the performance run and of the audit's, in the audit's own unit."""

    reference: float
    test: float


class Verified(NamedTuple):
    """texts: file name -> content, as the official scripts write them."""

    passed: bool
    texts: Mapping[str, str]


def performance_scores(audit: str, reference: DetailLog, test: DetailLog) -> Scores | None:
    """None where one of the logs has no result. TEST01: as logged, ns for streams; TEST04: rates."""
    values = [_score(log) for log in (reference, test)]
    if None in values:
        return None
    first, second = (float(v) for v in values if v is not None)
    if audit == TEST04 and str(reference.get("effective_scenario")).endswith("Stream"):
        return Scores(1e9 / first, 1e9 / second)
    return Scores(first, second)


def _score(log: DetailLog) -> float | None:
    value = log.get(_DETAIL_SCORES.get(str(log.get("effective_scenario")), ""))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def compare(audit: str, reference: DetailLog, test: DetailLog, scores: Scores | None = None) -> str:
    """Why the audit's performance fails, '' where it passes. scores: default the logs'.

    TEST01: neither slower nor faster than the margin. TEST04: not faster, which would be a cache.
    """
    scenario = str(reference.get("effective_scenario"))
    if scenario != str(test.get("effective_scenario")):
        return f"scenario {test.get('effective_scenario')}, the performance run's is {scenario}"
    for name, log in (("performance", reference), ("audit", test)):
        if log.get("result_validity") != "VALID":
            return f"the {name} run is {log.get('result_validity')}"
    key = "effective_target_latency_ns"
    if audit == TEST01 and scenario == "Server" and reference.get(key) != test.get(key):
        return f"target latency {test.get(key)} ns, the performance run's is {reference.get(key)}"
    scores = scores or performance_scores(audit, reference, test)
    return "a run without its result" if scores is None else _outside(audit, scenario, scores)


def _outside(audit: str, scenario: str, scores: Scores) -> str:
    short = scenario in SHORT and scores.reference <= SHORT[scenario]
    margin = SHORT_MARGIN if short else MARGIN
    high = scores.reference * (1 + margin)
    low = scores.reference * (1 - margin) if audit == TEST01 else -math.inf
    fits = low <= scores.test <= high if audit == TEST01 else scores.test < high
    if fits:
        return ""
    return f"{scores.test:.6g}, the performance run's is {scores.reference:.6g} (± {show_percent(margin)})"


def verify(audit: str, performance: Path, accuracy: Path, test: Path, dtype: str) -> Verified:
    """performance, accuracy, test: folders with the untruncated logs of the three runs.

    dtype: of an answer's elements (TEST01). An AccuracyLogError when an accuracy log cannot be read.
    """
    texts = {"verify_performance.txt": _performance_text(audit, performance, test)}
    if audit == TEST01:
        compared = compare_answers(accuracy / ACCURACY, test / ACCURACY, dtype)
        texts["verify_accuracy.txt"] = compared.text
    return Verified(all(PASS in text for text in texts.values()), texts)


def _performance_text(audit: str, performance: Path, test: Path) -> str:
    """TEST01 reads detail logs, TEST04 summaries; so does this."""
    reference, tested = (read_detail(folder / DETAIL) for folder in (performance, test))
    scores = performance_scores(audit, reference, tested)
    if audit == TEST04:
        found = [_summary_score(folder / SUMMARY) for folder in (performance, test)]
        scores = Scores(*(v for v in found if v is not None)) if None not in found else None
    problem = compare(audit, reference, tested, scores)
    lines = ["Verifying performance."]
    if scores is not None:
        words = ("Reference", "Test") if audit == TEST01 else ("reference", "test")
        lines += [f"{word} score = {score}" for word, score in zip(words, scores, strict=True)]
    lines.append(f"{FAIL}: {problem}" if problem else PASS)
    return "\n".join(lines) + "\n"


def _summary_score(path: Path) -> float | None:
    """As TEST04 takes it: queries/s of streams, samples/s of Offline and Server."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    scenario = next(
        (
            line.split(": ", 1)[1].strip()
            for line in text.splitlines()
            if line.startswith("Scenario") and ": " in line
        ),
        "",
    )
    pattern = _SUMMARY_SCORES.get(scenario)
    if pattern is None:
        return None
    found = [m[1] for line in text.splitlines() if (m := pattern.match(line))]
    try:
        value = float(found[-1])
        return 1e9 / value if scenario.endswith("Stream") else value
    except (IndexError, ValueError, ZeroDivisionError):
        return None


class Answers(NamedTuple):
    """matched: answers of the audit whose sample is in the accuracy run. different: of them.

    samples: the dataset indices the audit answered.
    """

    matched: int
    different: int
    samples: frozenset[int]
    text: str

    @property
    def passed(self) -> bool:
        return self.matched > 0 and not self.different


def compare_answers(accuracy: Path, test: Path, dtype: str) -> Answers:
    """TEST01: the first element of each answer must be the accuracy run's for the same sample.

    An audit's answer then stands for its sample, so that a sample asked twice must agree, too.
    """
    right: dict[int, bytes] = {}
    twice = contrary = entries = 0
    for sample, payload in read_answers(accuracy):
        entries += 1
        if sample in right:
            twice += 1
            contrary += right[sample] != payload
        else:
            right[sample] = payload
    matched = different = missing = count = 0
    samples = set()
    for sample, payload in read_answers(test):
        count += 1
        samples.add(sample)
        if sample in right:
            matched += 1
            different += not is_first_equal(payload, right[sample], dtype)
        else:
            missing += 1
        right[sample] = payload
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
    return Answers(matched, different, frozenset(samples), "\n".join(lines) + "\n\n")
