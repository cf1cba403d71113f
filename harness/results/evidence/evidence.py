"""Bundles the evidence that one measured process leaves. The verdict, the doubts and result.json are derived from this
evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.clock import ClockWatch
from harness.core.codes import Reason
from harness.loadgen.logs import DetailLog
from harness.loadgen.plan import LoadPlan
from harness.results.evidence.stages import Completions
from harness.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence from one LoadGen run."""

    plan: LoadPlan
    loadgen_scenario: str
    """LoadGen's name for the scenario."""
    log: DetailLog
    done: Completions | None
    """Rows of the journal; None without a journal."""
    ended: Mapping[str, Any] | None
    """Last message of the measured process; None if the process died."""
    failure: Reason | None
    """Why the run failed; None if it did not fail."""
    clock: ClockWatch
    """Steps and slew of the wall clock during the run."""
    looks: Sequence[tuple[int, int]] = ()
    """(wall clock in ns, answered samples) at each observation of the supervisor during the run."""
    changed_files: Sequence[str] = ()
    """LoadGen's files that changed after LoadGen returned."""
    load_hosts: Sequence[Mapping[str, Any]] = ()
    """Hosts of --load-hosts, in the order of the column `host`. Keys: name, queries, clock_offset_ns, clock_error_ns,
    clock_drift_ns, lost (how the host was lost; empty if the host was not lost) and client (from the host's last
    message).
    """
    probes: Mapping[str, Array] | None = None
    """Columns of the probes during the load (results/tokens/probes.py); None without --probe-rate."""
    ramp: Mapping[str, Array] | None = None
    """Steps of a ramp (results/tokens/ramp.py); None without a ramp."""
    models: Sequence[str] = ()
    """Names of the models, if the requests name several. The column `model` contains the position in this list."""
    witness: Mapping[str, Any] | None = None
    """The coordinator's own queries if --load-hosts names other machines, in the form that `seen` in
    load_hosts/witness.py returns.
    """

    @property
    def logged(self) -> bool:
        """Whether LoadGen's log is complete and belongs to this run, so that its numbers can be used."""
        logged = (self.log.get("effective_scenario"), self.log.get("effective_test_mode"))
        expected = (self.loadgen_scenario, self.expected_mode)
        whole = self.log.complete and self.log.repeated == 1
        return self.failure is None and whole and logged == expected

    @property
    def expected_mode(self) -> str:
        return "AccuracyOnly" if self.plan.accuracy else "PerformanceOnly"
