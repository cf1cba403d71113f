"""Reads LoadGen's summary, and compares its lines with the detail log, which repeats the same numbers."""

import re
from collections.abc import Iterator, Mapping
from math import isclose
from typing import NamedTuple

from harness.loadgen.logs import EARLY_STOPPING, RATE_DIGITS, DetailLog
from harness.loadgen.scenario import percent_text
from harness.results.evidence.stages import PERCENTILES

_LINE = re.compile(r"^\s*(.*?)\s*:\s*(.*?)\s*$")
_UNIT = re.compile(r"_(ns|ms)$")
_RESULTS: Mapping[str, str] = {
    "SUT name": "sut_name",
    "Scenario": "effective_scenario",
    "Mode": "effective_test_mode",
    "Result is": "result_validity",
    "Performance constraints satisfied": "result_perf_constraints_met",
    "Min duration satisfied": "result_min_duration_met",
    "Min queries satisfied": "result_min_queries_met",
    "Early stopping satisfied": "early_stopping_met",
    "Samples per second": "result_samples_per_second",
    "Completed samples per second": "result_completed_samples_per_sec",
    "Scheduled samples per second": "result_scheduled_samples_per_sec",
    "QPS w/ loadgen overhead": "result_qps_with_loadgen_overhead",
    "QPS w/o loadgen overhead": "result_qps_without_loadgen_overhead",
}
_ERRORS = re.compile(r"^(No|\d+) errors? encountered", re.IGNORECASE)
_STREAMS = {"SingleStream": "90", "MultiStream": "99"}
"""Maps a scenario to the percentile of its metric, in percent."""

_ESTIMATES = {percent: EARLY_STOPPING[scenario] for scenario, percent in _STREAMS.items()}

ERRORS = "errors encountered"
"""Words after the number in the summary's last line."""


class Difference(NamedTuple):
    """A line in the summary that disagrees with the detail log."""

    line: str
    """Words before the line's colon."""
    summary: str | None
    """Value in the summary; None if the summary lacks the line."""
    detail: object


def read_summary(text: str) -> Mapping[str, str]:
    """Maps the words before a colon to the words after it. If several lines start with the same words, the first
    counts.
    """
    lines: dict[str, str] = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            lines.setdefault(match[1], match[2])
        elif match := _ERRORS.match(line):
            lines.setdefault(ERRORS, match[1].replace("No", "0"))
    return lines


def differences(summary: Mapping[str, str], log: DetailLog) -> Iterator[Difference]:
    """Yields each line that differs from the detail log, and each line that a performance run should have but lacks."""
    accuracy = log.get("effective_test_mode") == "AccuracyOnly"
    errors = summary.get(ERRORS)
    if errors is not None and errors != str(len(log.errors)):
        yield Difference(ERRORS, errors, len(log.errors))
    for line, key in _keys(log).items():
        logged, text = log.get(key), summary.get(line)
        needed = key.startswith("result_") and not accuracy
        if logged is not None and (needed if text is None else not _equal(text, logged)):
            yield Difference(line, text, logged)


def _keys(log: DetailLog) -> Mapping[str, str]:
    """Returns a mapping from a summary line to the detail log's key with the same value."""
    by_query = log.get("effective_scenario") == "MultiStream"
    latency = "per_query_latency" if by_query else "latency"
    keys = dict(_RESULTS)
    for percent, key in _ESTIMATES.items():
        keys[f"* Early stopping {percent}.0th percentile estimate"] = key
    judged = _STREAMS.get(str(log.get("effective_scenario")))
    if judged is not None and log.get("effective_target_latency_percentile") == int(judged) / 100:
        keys[f"{judged}.0th percentile latency (ns)"] = (
            f"result_{judged}.00_percentile_{latency}_ns"
        )
    for name in ("min", "max", "mean"):
        end = "query_latency" if by_query else "latency"
        keys[f"{name.title()} latency (ns)"] = f"result_{name}_{end}_ns"
    for percent in map(percent_text, PERCENTILES.values()):
        keys[f"{percent} percentile latency (ns)"] = f"result_{percent}_percentile_{latency}_ns"
    for key in log.values:
        if key.startswith("effective_"):
            name = key.removeprefix("effective_")
            keys[_UNIT.sub(r" (\1)", name)] = key
    return keys


def _equal(text: str, logged: object) -> bool:
    if isinstance(logged, bool):
        return text in (("Yes", "1") if logged else ("NO", "0"))
    if isinstance(logged, int | float):
        try:
            # The unit of the last printed digit is the tolerance, because Server's rates have two decimals.
            unit = 10.0 ** -len(text.partition(".")[2])
            return isclose(float(text), logged, rel_tol=RATE_DIGITS, abs_tol=0.5001 * unit)
        # The text is not a number, or it is an integer too large for a float.
        except (ValueError, OverflowError):
            return False
    return text == str(logged)
