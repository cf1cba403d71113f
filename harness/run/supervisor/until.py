"""Ends a run under the harness's scheduler when its verdict is decided or its main number is precise enough."""

from dataclasses import replace

from harness.core.config.parse import STEADY, until_share
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.block_intervals import blocks, percentile_intervals
from harness.results.evidence.stages import Completions, query_completed_ns, query_latency_ns
from harness.results.evidence.steady_state import stream_of
from harness.results.steady.referee import referee
from harness.run.journal import Journal
from harness.run.supervisor.completions import completions_so_far
from harness.run.supervisor.watchdog import Now

GROWTH = 1.25
"""A run is checked again when the number of answers has grown by this factor. More frequent checks would be costly,
because each check reads all samples, and would be more likely to end a run by chance.
"""

_AGREEING = 2
"""This many consecutive checks must agree."""


class Until:
    """Checks a run with --until at growing intervals. This class is not thread-safe."""

    def __init__(self, journal: Journal, plan: LoadPlan) -> None:
        self._journal = journal
        self._plan = plan
        self._next = plan.least_queries or 1
        self._before, self._agreeing = "", 0

    def check(self, now: Now) -> None:
        """Ends the run if consecutive checks agree on its verdict."""
        if self._plan.until is None or self._journal.ends or now.completed < self._next:
            return
        self._next = int(now.completed * GROWTH) + 1
        found = decision(completions_so_far(self._journal, self._plan), self._plan)
        self._agreeing = self._agreeing + 1 if found == self._before else 1
        self._before = found
        if found and self._agreeing >= _AGREEING:
            self._journal.ends = True


def decision(done: Completions, plan: LoadPlan) -> str:
    """Returns the verdict, or `precise`; '' if the run must continue."""
    assert plan.until is not None
    if not len(done):
        return ""
    if plan.until == STEADY:
        found = referee(stream_of(done, plan))
        return "" if found is None or found.verdict == "undecided" else found.verdict
    half_width = _half_width(done, plan)
    return "precise" if half_width is not None and half_width <= until_share(plan.until) else ""


def _half_width(done: Completions, plan: LoadPlan) -> float | None:
    """Returns half the width of the main number's 95 % interval, as a share of the number; None without an interval.

    In a closed loop, the main number is the rate. In all other runs, a schedule sets the rate, and the main number is
    the latency percentile that the printed answer shows first.
    """
    if plan.concurrency is not None:
        found = referee(stream_of(done, plan))
        rates = [one for one in found.series if one.name == "rate"] if found is not None else []
        return rates[0].half_width if rates else None
    latency_ns = query_latency_ns(done, plan.samples_per_query)
    fraction = plan.percentile or scenario_named(plan.scenario).percentile
    block = blocks(query_completed_ns(done, plan.samples_per_query))
    found_ns = percentile_intervals(latency_ns, block, {"": fraction})[""]
    if found_ns.low is None or found_ns.high is None or found_ns.low <= 0:
        return None
    return (found_ns.high - found_ns.low) / (found_ns.high + found_ns.low)


def shortened(plan: LoadPlan, journal: Journal) -> LoadPlan:
    """Returns the plan, with the number of queries that were issued if --until ended the run."""
    if not journal.ends:
        return plan
    issued = journal.issued // plan.samples_per_query
    return replace(plan, query_count=issued, journal_samples=issued * plan.samples_per_query)
