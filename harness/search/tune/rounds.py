"""The second half of `tune`: LoadGen judges the finalists, in ordinary runs that take turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from harness.core.codes import INTERRUPTED
from harness.core.config.parse import Slo
from harness.core.config.run_config import MAX_SEED, RunConfig
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S, show_rate
from harness.errors import HarnessError, RunInvalid, one_line
from harness.loadgen.scenario import Scenario
from harness.loadgen.versions import seeds_of
from harness.results.outcome import Measure
from harness.search.peak.table import reported_percentile
from harness.search.study import Ended, other_reason
from harness.search.tune.candidates import Aim
from harness.search.tune.decision import Finalist, to_drop

NOISE_PROBE_S = 0.2
"""Before each of so many runs; one that stands alone looks for a second."""

START_SHARE = 0.9
"""Of the rate predicted for the best plan: bare loops do not know what issuing queries costs."""

MOST_PER_S = 1e6
"""One thread issues queries: bare loops of a backend that does next to nothing predict more, and
Offline's samples, that many, would not fit into memory.
"""

DOWN = 0.8
MOST_RATES = 8
LEAST_BATCHES = 4
"""Largest ones, for each instance, in an Offline run: with fewer its end would decide."""


class Rounds:
    """runs: every one, as tune.json tells it. rate_per_s: of Server's runs, None until it is found."""

    def __init__(
        self,
        config: RunConfig,
        scenario: Scenario,
        slo: Slo | None,
        measure: Measure,
        folder: Path,
        tell: Callable[[str], None],
        save: Callable[[], None],
    ) -> None:
        self.runs: list[dict[str, Any]] = []
        self.rate_per_s = config.target_qps
        self._config = config
        self._scenario = scenario
        self._slo = slo
        self._measure = measure
        self._folder = folder
        self._tell = tell
        self._save = save
        self._first_seed = seeds_of(config).schedule
        self._percentile = slo.percentile if slo else scenario.percentile

    @property
    def aim(self) -> Aim:
        if self._scenario.all_at_once:
            return Aim("throughput", "samples/s", more_is_better=True)
        name = reported_percentile(self._percentile)
        rate = f" at {show_rate(self.rate_per_s)} queries/s" if self.rate_per_s else ""
        return Aim(f"{name}{rate}", "ns", more_is_better=False)

    def judge(self, finalists: Sequence[Finalist], rounds: int) -> None:
        """Each one once a round, the next round in reverse order, all of a round with one seed."""
        if self._scenario.scheduled and self.rate_per_s is None:
            self._find_rate(finalists)
        for number in range(rounds):
            running = [one for one in finalists if not (one.dropped or one.failed)]
            if not running or (len(running) == 1 and number >= 2):
                return
            for one in running if number % 2 == 0 else reversed(running):
                result = self._run(one, number, f"round {number + 1} of {rounds}")
                value = self._value(result) if result is not None else None
                if value is not None:
                    one.values[number] = value
                self._save()
            for one in to_drop(self.aim, finalists):
                one.dropped = True

    def _find_rate(self, finalists: Sequence[Finalist]) -> None:
        """As high as the plan predicted to be best meets the SLO: there plans differ most."""
        assert self._slo is not None
        for one in finalists:
            rate = min(MOST_PER_S, START_SHARE * one.predicted)
            for _ in range(MOST_RATES):
                self.rate_per_s = float(f"{rate:.3g}")
                result = self._run(one, 0, "looking for the rate")
                if result is None:
                    break
                tail_ns = self._value(result)
                if tail_ns is not None and tail_ns <= self._slo.bound_ns:
                    return
                completed = (result["throughput_per_s"] or {}).get("completed") or rate
                rate = DOWN * min(self.rate_per_s, completed)
            if not one.failed:
                return

    def _run(self, one: Finalist, number: int, told: str) -> Mapping[str, Any] | None:
        """result.json; None where the plan failed, which it says."""
        name = f"{len(self.runs) + 1:02}-{_plain(str(one.plan))}"
        config = replace(
            one.plan.applied(self._config),
            queries=self._config.queries or self._queries(one),
            target_qps=self.rate_per_s,
            schedule_seed=(self._first_seed + number) & MAX_SEED,
            out=self._folder / "runs" / name,
        )
        self._tell(f"{told}: {one.plan}")
        try:
            finished = self._measure(config, probe_s=NOISE_PROBE_S)
        except HarnessError as e:
            one.failed = one_line(e)
            return None
        result, other = finished.result, other_reason(finished.result)
        self.runs.append(
            {
                "plan": str(one.plan),
                "round": number if told.startswith("round") else None,
                "rate_per_s": self.rate_per_s,
                "value": self._value(result),
                "verdict": result["verdict"],
                "reasons": [reason["code"] for reason in result["reasons"]],
                "doubts": [doubt["code"] for doubt in result["doubts"]],
                "folder": str(finished.folder.relative_to(self._folder)),
            }
        )
        if other is None:
            return result
        if other.code == INTERRUPTED:
            raise Ended(finished.status or RunInvalid.exit_status)
        one.failed = f"{other.code}: {other.text}"
        return None

    def _value(self, result: Mapping[str, Any]) -> float | None:
        if self._scenario.all_at_once:
            found = (result["throughput_per_s"] or {}).get("completed")
        else:
            found = (result["latency_ns"] or {}).get(reported_percentile(self._percentile))
        return float(found) if found else None

    def _queries(self, one: Finalist) -> int:
        """As many as take --duration, and as the percentile needs."""
        seconds = self._config.duration_ns / NS_PER_S
        if self._scenario.all_at_once:
            full = one.plan.layout.instances * one.plan.max_batch
            per_s = min(MOST_PER_S, one.predicted)
            return full * max(LEAST_BATCHES, ceil(seconds * per_s / full))
        per_s = self.rate_per_s or min(MOST_PER_S, NS_PER_S / one.predicted)
        return max(ceil(seconds * per_s), queries_needed(1, self._percentile))


def _plain(text: str) -> str:
    """'2 x 1 spinning=on, batch 8' -> '2x1-spinning-on-batch-8'."""
    return text.replace(" x ", "x").replace(",", "").replace("=", "-").replace(" ", "-")
