"""Doubts and reasons at their limits: neither a value exactly at the limit nor a missing part causes a doubt or a
reason.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from harness.core.clock import JUMP_NS, ClockWatch
from harness.core.codes import Reason
from harness.core.units import NS_PER_S
from harness.loadgen.logs import DetailLog
from harness.models.manifest.schema import Accuracy
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.verdict import doubts, reasons
from harness.types import Score
from tests.builders.support import evidence
from tests.results.verdict.test_doubts import BOUND_NS, ours


def found(given: Iterable[Reason]) -> set[str]:
    return {reason.code for reason in given}


def slewed(ppm: int) -> ClockWatch:
    return ClockWatch(_samples=[(0, 0), (10 * NS_PER_S, ppm * 10_000)])


@pytest.mark.parametrize(("ppm", "doubted"), [(100, False), (101, True), (-100, False)])
def test_slewing_at_its_limit_is_not_doubted(ppm: int, doubted: bool) -> None:
    run = evidence("server", clock=slewed(ppm))
    assert run.clock.slew_ppm == ppm
    assert ("clock-slewed" in found(doubts.performance(run, ours(run), BOUND_NS))) == doubted


@pytest.mark.parametrize(("gap_ns", "doubted"), [(20_000, False), (20_001, True)])
def test_percentiles_20_us_apart_agree(gap_ns: int, doubted: bool) -> None:
    run = evidence("single-stream")
    theirs = run.log.get("result_50.00_percentile_latency_ns")
    assert theirs < 2_000_000  # below 2 ms, the limit is 20 us and not one percent
    told = {**ours(run), "p50": theirs + gap_ns}
    assert ("percentiles-disagree" in found(doubts.performance(run, told, BOUND_NS))) == doubted


def without_rows(run: Evidence) -> Evidence:
    assert run.done is not None
    columns = {name: column[:0] for name, column in run.done.columns.items()}
    return replace(run, done=Completions(columns, 0, answered_once=True))


def test_a_run_without_rows_has_no_doubt_about_their_times() -> None:
    run = evidence("server")
    assert found(doubts.performance(replace(run, done=None), None, BOUND_NS)) == set()
    assert found(doubts.performance(without_rows(run), None, BOUND_NS)) == set()


@pytest.mark.parametrize("scenario", ["offline", "single-stream", "server"])
def test_the_longest_gap_is_between_neighbours(scenario: str) -> None:
    at = np.array([0, 1, 9, 10]) * NS_PER_S
    begun = at - 8 * NS_PER_S
    columns = {"completed_ns": at, "entry_ns": begun, "scheduled_ns": begun}
    done = Completions(columns, 4, True)
    assert doubts.longest_gap_ns(done, scenario) == 8 * NS_PER_S


def test_a_run_without_a_log_is_not_doubted_for_its_number_of_queries() -> None:
    run = evidence("single-stream", log=DetailLog())
    assert found(doubts.few_samples(run, 0.9)) == set()


@pytest.mark.parametrize(("step_ns", "jumped"), [(JUMP_NS, False), (-JUMP_NS - 1, True)])
def test_clock_step_at_the_limit_is_accepted(step_ns: int, jumped: bool) -> None:
    run = evidence("server", clock=ClockWatch(largest_step_ns=step_ns))
    assert ("clock-jumped" in found(reasons.any_run(run))) == jumped


@pytest.mark.parametrize(
    ("unit", "shown"), [("%", "75.123 %"), ("", "75.12346")], ids=["percent", "plain"]
)
def test_a_score_below_its_target_has_as_many_digits_as_its_unit_needs(
    unit: str, shown: str
) -> None:
    score = Score(metric="m", value=75.1234567, unit=unit, samples=1, line="")
    (reason,) = reasons.score(score, Accuracy(metric="m", target=76.0))
    assert f"is {shown}," in reason.text.replace(" ,", ",")
