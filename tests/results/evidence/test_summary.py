"""The summary repeats LoadGen's detail log, and the harness finds each line that differs."""

import copy
import re

import pytest

from harness.loadgen.logs import DETAIL, SUMMARY, read_detail
from harness.results.evidence.summary import differences, read_summary
from tests.builders.support import GOLDEN, SCENARIOS, golden_log

LINES = [
    (scenario, line)
    for scenario in SCENARIOS
    for line in (GOLDEN / scenario / "performance" / SUMMARY).read_text().splitlines()
    if re.search(r" *: ?\S", line)
]
"""Each line in the golden summaries that states a value."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_golden_summary_repeats_its_log(scenario: str) -> None:
    for folder in (GOLDEN / scenario / "performance", GOLDEN / scenario / "accuracy"):
        if (folder / SUMMARY).is_file():
            summary = read_summary((folder / SUMMARY).read_text())
            assert not list(differences(summary, read_detail(folder / DETAIL)))


@pytest.mark.parametrize(("scenario", "line"), LINES)
def test_every_line_of_a_summary_is_compared_with_the_log(scenario: str, line: str) -> None:
    """Bug: `check` compared only three lines, and accepted a summary whose rate was ten times too high."""
    name, _, value = (part.strip() for part in line.partition(":"))
    other = f"1{value}" if value[0].isdigit() else "NO"
    text = (GOLDEN / scenario / "performance" / SUMMARY).read_text()
    found = list(
        differences(read_summary(text.replace(line, f"{name} : {other}")), golden_log(scenario))
    )
    assert [difference.line for difference in found] == [name]


@pytest.mark.parametrize(
    ("stated", "logged", "found"),
    [("16.23", 16.2279, 0), ("2000.00", 2000.004, 0), ("16.24", 16.2279, 1), ("4.2", 4.3, 1)],
)
def test_rates_have_two_decimals_in_a_summary(stated: str, logged: float, found: int) -> None:
    """Bug: a genuine summary differed from its log if the rate was below 50/s."""
    log = copy.deepcopy(golden_log("server"))
    log.values["result_completed_samples_per_sec"] = logged
    text = (GOLDEN / "server" / "performance" / SUMMARY).read_text()
    text = text.replace("second    : 2023.10", f"second    : {stated}")
    assert len(list(differences(read_summary(text), log))) == found


@pytest.mark.parametrize(("line", "errors"), [("5 ERRORS", "5"), ("1 ERROR", "1")])
def test_a_summary_with_errors_that_the_log_lacks_is_found(line: str, errors: str) -> None:
    """Bug: the last line was not read, because it has no colon."""
    text = (GOLDEN / "server" / "performance" / SUMMARY).read_text()
    text = text.replace("No errors encountered", f"{line} encountered")
    found = list(differences(read_summary(text), golden_log("server")))
    assert [(one.summary, one.detail) for one in found] == [(errors, 0)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_summary_that_is_one_word_lacks_the_result(scenario: str) -> None:
    missing = [one.line for one in differences(read_summary("VALID"), golden_log(scenario))]
    assert "Result is" in missing
    assert "99.00 percentile latency (ns)" in missing
