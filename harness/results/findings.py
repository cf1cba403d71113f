"""Collects everything known about a run, the input of result.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.codes import Reason
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Calibration, Instances, Loaded
from harness.loadgen.scenario import Scenario
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.machine.power.ptdaemon_log import PtdaemonLog
from harness.models.manifest.manifest import Model
from harness.models.opened.resolved_run import ResolvedRun
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.performance import Performance
from harness.results.verdict.score import Scoring

NOT_STORED = "the run ended before what its meters read was stored"


@dataclass(slots=True, kw_only=True)
class Findings:
    """State of a run so far; None and {} stand for values not measured yet."""

    resolved: ResolvedRun
    started: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    noise: Mapping[str, Any] | None = None
    """host.NoiseFloor.to_json(), before the run."""
    load: Mapping[str, float | None] = field(default_factory=dict)
    """steal and others as shares, throttled_s; over the performance run."""
    power: PowerLog | None = None
    ptdaemon: PtdaemonLog | None = None
    ceiling_per_s: float | None = None
    """Highest rate of the null backend on this machine, in samples/s."""
    host: HostLog | None = None
    loaded: Loaded | None = None
    calibration: Calibration | None = None
    performance: Evidence | None = None
    accuracy: Evidence | None = None
    scoring: Scoring = field(default_factory=Scoring)
    stopped: Reason | None = None
    """Why the run was stopped."""
    unsaved: Reason | None = None
    """Why the folder could not be written."""
    _performed: Performance | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def model(self) -> Model:
        return self.resolved.model

    @property
    def dataset(self) -> str:
        return self.resolved.dataset

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    @property
    def slo(self) -> Slo | None:
        return self.resolved.slo

    @property
    def spec(self) -> Instances:
        return self.resolved.instances

    @property
    def performed(self) -> Performance | None:
        """The performance run's numbers, kept for the next result."""
        run = self.performance
        if run is not None and (self._performed is None or self._performed.run is not run):
            self._performed = Performance(run, self.spec, self._wait_ns)
        return self._performed if run is not None else None

    @property
    def _wait_ns(self) -> int:
        """Longest time that a sample may wait for others; --dispatch deadline ends it in time for the SLO."""
        wait_ns = self.config.batch_wait_ns
        if self.config.dispatch == "deadline" and self.slo and self.calibration:
            wait_ns = min(wait_ns, self.slo.bound_ns - self.calibration.slowest_batch_ns)
        return max(0, wait_ns)
