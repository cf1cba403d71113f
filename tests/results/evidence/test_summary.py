"""The summary repeats LoadGen's detail log; each line that does not is found."""

import re

import pytest

from harness.loadgen.logs import DETAIL, SUMMARY, read_detail
from harness.results.evidence.summary import differences, read_summary
from tests.builders.support import GOLDEN, SCENARIOS, golden_log

LINES = [
    (scenario, line)
    for scenario in SCENARIOS
    for line in (GOLDEN / scenario / "performance" / SUMMARY).read_text().splitlines()
    if re.search(r" *: ?\S", line) and "stopping 9" not in line
]
"""Each line of the golden summaries that states a value; early stopping's text repeats other lines."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_golden_summary_repeats_its_log(scenario: str) -> None:
    for folder in (GOLDEN / scenario / "performance", GOLDEN / scenario / "accuracy"):
        if (folder / SUMMARY).is_file():
            summary = read_summary((folder / SUMMARY).read_text())
            assert not list(differences(summary, read_detail(folder / DETAIL)))


@pytest.mark.parametrize(("scenario", "line"), LINES)
def test_every_line_of_a_summary_is_held_against_the_log(scenario: str, line: str) -> None:
    """Bug: `check` compared three lines; a rate of ten times in the summary agreed."""
    name, _, value = (part.strip() for part in line.partition(":"))
    other = f"1{value}" if value[0].isdigit() else "NO"
    text = (GOLDEN / scenario / "performance" / SUMMARY).read_text()
    found = list(
        differences(read_summary(text.replace(line, f"{name} : {other}")), golden_log(scenario))
    )
    if name.endswith("th percentile latency (ns)"):
        assert not found  # the same value stands in the line of that percentile
    else:
        assert [difference.line for difference in found] == [name]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_summary_that_is_one_word_lacks_the_result(scenario: str) -> None:
    missing = [one.line for one in differences(read_summary("VALID"), golden_log(scenario))]
    assert "Result is" in missing
    assert "99.00 percentile latency (ns)" in missing
