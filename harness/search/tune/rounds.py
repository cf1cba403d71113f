"""Judges the finalists in `tune` with ordinary, alternating LoadGen runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from harness.core.codes import INTERRUPTED
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.config.schema import MAX_SEED
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S, show_rate
from harness.errors import HarnessError, RunInvalid, one_line
from harness.loadgen.scenario import Scenario
from harness.loadgen.versions import seeds_of
from harness.results.evidence.stages import reported_percentile
from harness.results.outcome import Finished
from harness.run.study import Ended, other_reason
from harness.search.peak.table import out_of_reach
from harness.search.tune.candidates import Aim
from harness.search.tune.content import RunEntry
from harness.search.tune.decision import Finalist, is_settled, to_drop

NOISE_PROBE_S = 0.2
"""Length of the noise probe before each run. The noise probe before an ordinary run takes one second."""

START_SHARE = 0.9
"""The first rate is this share of the best forecast, because bare loops exclude the cost of issuing queries."""

MOST_PER_S = 1e6
"""Highest rate to try, in queries/s. For a backend that does almost nothing, bare loops predict a higher rate, but a
single thread issues the queries, and an Offline run would need more samples than fit into memory.
"""

DOWN = 0.8
MOST_RATES = 8
LEAST_BATCHES = 4
"""An Offline run makes at least this many batches of the largest size per instance. With fewer batches, the end
of the run would dominate the result.
"""


@dataclass(kw_only=True)
class Rounds:
    config: RunConfig
    scenario: Scenario
    slo: Slo | None
    make_run: Callable[..., Finished]
    """Performs one run, and shows its progress (Study.make_run)."""
    time_left: Callable[[Sequence[float], str], str]
    """Returns the end of the line that is printed after a run (Study.time_left)."""
    folder: Path
    say: Callable[[str], None]
    save: Callable[[], None]
    runs: list[RunEntry] = field(default_factory=list)
    """Entries of `runs` in tune.json."""

    def __post_init__(self) -> None:
        self.rate_per_s = self.config.target_qps
        """Offered rate; None until it is known."""
        self._first_seed = seeds_of(self.config).schedule
        self._percentile = self.slo.percentile if self.slo else self.scenario.percentile

    @property
    def aim(self) -> Aim:
        if self.scenario.all_at_once:
            return Aim("throughput", "samples/s", more_is_better=True)
        name = reported_percentile(self._percentile)
        rate = f" at {show_rate(self.rate_per_s)} queries/s" if self.rate_per_s else ""
        return Aim(f"{name}{rate}", "ns", more_is_better=False)

    def judge(self, finalists: Sequence[Finalist], rounds: int) -> None:
        """Runs each finalist once per round, in alternating order. All runs in a round share one seed.

        rounds: maximum number of rounds. Judging ends earlier if further rounds cannot change the decision.
        """
        if self.scenario.scheduled and self.rate_per_s is None:
            self._find_rate(finalists)
        for number in range(rounds):
            running = [one for one in finalists if not (one.dropped or one.failed)]
            if not running or is_settled(self.aim, finalists):
                return
            turns = running if number % 2 == 0 else running[::-1]
            for turn, one in enumerate(turns):
                after = len(turns) - turn - 1 + (rounds - number - 1) * len(turns)
                result = self._run(
                    one, number, f"round {number + 1} of at most {rounds}", after, "at most"
                )
                value = self._value(result) if result is not None else None
                if value is not None:
                    one.values[number] = value
                self.save()
            for one in to_drop(self.aim, finalists):
                one.dropped = True

    def _find_rate(self, finalists: Sequence[Finalist]) -> None:
        """Finds the highest rate at which the placement with the best forecast meets the SLO, because placements differ
        most at this rate.
        """
        assert self.slo is not None
        for one in finalists:
            rate = min(MOST_PER_S, START_SHARE * one.predicted)
            was_late = False
            for number in range(1, MOST_RATES + 1):
                self.rate_per_s = float(f"{rate:.3g}")
                most = (
                    f"rate {number} of at most {MOST_RATES}, {show_rate(self.rate_per_s)} queries/s"
                )
                result = self._run(one, 0, most, MOST_RATES - number, bound="at most")
                if result is None:
                    break
                was_late = self._check_fastest(result, was_late)
                tail_ns = self._value(result)
                if tail_ns is not None and tail_ns <= self.slo.bound_ns:
                    return
                completed = (result["throughput_per_s"] or {}).get("completed") or rate
                rate = DOWN * min(self.rate_per_s, completed)
            if not one.failed:
                return

    def _check_fastest(self, result: Mapping[str, Any], was_late: bool) -> bool:
        """Returns whether even the fastest answer was later than the SLO's bound.

        Raises RunInvalid only for the second such run, at a lower rate, because a stall or an initial queue can make
        every answer in a single run late.
        """
        assert self.slo is not None
        fastest_ns = (result["latency_ns"] or {}).get("min")
        if fastest_ns is None or fastest_ns <= self.slo.bound_ns:
            return False
        if was_late:
            raise RunInvalid(out_of_reach(str(self.slo), fastest_ns))
        return True

    def _run(
        self, one: Finalist, number: int, purpose: str, after: int, bound: str = "about"
    ) -> Mapping[str, Any] | None:
        """Performs a run. Returns the content of the run's result.json; on failure, returns None and stores the reason
        in `failed`.

        after: number of later runs, as far as known. bound: `at most` if fewer than `after` runs may follow.
        """
        name = f"{len(self.runs) + 1:02}-{_plain(str(one.plan))}"
        config = replace(
            one.plan.applied(self.config),
            queries=self.config.queries or self._queries(one),
            target_qps=self.rate_per_s,
            schedule_seed=(self._first_seed + number) & MAX_SEED,
            out=self.folder / "runs" / name,
        )
        text = f"{purpose}: {one.plan}"
        planned_s = [0.0] * (after + 1)
        try:
            finished = self.make_run(config, text, planned_s, bound, probe_s=NOISE_PROBE_S)
        except HarnessError as e:
            one.failed = one_line(e)
            return None
        result, other = finished.result, other_reason(finished.result)
        value = self._value(result)
        shown = result["verdict"] if value is None else self.aim.show(value)
        if other is None or other.code != INTERRUPTED:
            self.say(f"{text}: {shown}{self.time_left(planned_s[1:], bound)}")
        self.runs.append(
            {
                "plan": str(one.plan),
                "round": number if purpose.startswith("round") else None,
                "rate_per_s": self.rate_per_s,
                "value": value,
                "verdict": result["verdict"],
                "reasons": [reason["code"] for reason in result["reasons"]],
                "doubts": [doubt["code"] for doubt in result["doubts"]],
                "folder": str(finished.folder.relative_to(self.folder)),
            }
        )
        if other is None:
            return result
        if other.code == INTERRUPTED:
            raise Ended(finished.status or RunInvalid.exit_status, other.text)
        one.failed = f"{other.code}: {other.text}"
        return None

    def _value(self, result: Mapping[str, Any]) -> float | None:
        if self.scenario.all_at_once:
            value = (result["throughput_per_s"] or {}).get("completed")
        else:
            value = (result["latency_ns"] or {}).get(reported_percentile(self._percentile))
        return float(value) if value else None

    def _queries(self, one: Finalist) -> int:
        """Returns the number of queries that fill --duration or, if larger, the number that the percentile needs."""
        seconds = self.config.duration_ns / NS_PER_S
        if self.scenario.all_at_once:
            full = one.plan.layout.instances * one.plan.max_batch
            per_s = min(MOST_PER_S, one.predicted)
            return full * max(LEAST_BATCHES, ceil(seconds * per_s / full))
        per_s = self.rate_per_s or min(MOST_PER_S, NS_PER_S / one.predicted)
        return max(ceil(seconds * per_s), queries_needed(1, self._percentile))


def _plain(text: str) -> str:
    """Converts '2 x 1 spinning=on, batch 8' to '2x1-spinning-on-batch-8'."""
    return text.replace(" x ", "x").replace(",", "").replace("=", "-").replace(" ", "-")
