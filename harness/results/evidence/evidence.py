"""Everything known of one measured process: the input of verdict, doubts and result.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.clock import ClockWatch
from harness.core.codes import Reason
from harness.loadgen.logs import DetailLog
from harness.loadgen.plan import LoadPlan
from harness.results.evidence.stages import Completions


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One LoadGen run: what it was told, what it logged, what the journal holds."""

    plan: LoadPlan
    loadgen_scenario: str
    log: DetailLog
    done: Completions | None
    ended: Mapping[str, Any] | None
    failure: Reason | None
    clock: ClockWatch

    @property
    def logged(self) -> bool:
        """LoadGen's log is whole and of this run: its numbers can be taken."""
        found = (self.log.get("effective_scenario"), self.log.get("effective_test_mode"))
        wanted = (self.loadgen_scenario, self.wanted_mode)
        whole = self.log.complete and self.log.repeated == 1
        return self.failure is None and whole and found == wanted

    @property
    def wanted_mode(self) -> str:
        return "AccuracyOnly" if self.plan.accuracy else "PerformanceOnly"
