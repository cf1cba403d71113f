"""Collects everything known of a run, from which result.json is made."""

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
from harness.models.manifest.model import Model
from harness.models.opened.resolved_run import ResolvedRun
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.performance import Performance
from harness.results.verdict.score import Scoring

NOT_STORED = "the run ended before what its meters read was stored"


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a run has found out so far; whatever is missing has not been measured."""

    resolved: ResolvedRun
    started: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    noise: Mapping[str, Any] | None = None
    load: Mapping[str, float | None] = field(default_factory=dict)
    power: PowerLog | None = None
    ptdaemon: PtdaemonLog | None = None
    ceiling_per_s: float | None = None
    host: HostLog | None = None
    loaded: Loaded | None = None
    calibration: Calibration | None = None
    performance: Evidence | None = None
    accuracy: Evidence | None = None
    scoring: Scoring = field(default_factory=Scoring)
    stopped: Reason | None = None
    unsaved: Reason | None = None
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
        """The performance run's numbers; each is found once, and kept for the next result."""
        run = self.performance
        if run is not None and (self._performed is None or self._performed.run is not run):
            self._performed = Performance(run, self.spec, self._wait_ns)
        return self._performed if run is not None else None

    @property
    def _wait_ns(self) -> int:
        """How long a sample may wait for others; with --dispatch deadline, while it is in time."""
        wait_ns = self.config.batch_wait_ns
        if self.config.dispatch == "deadline" and self.slo and self.calibration:
            wait_ns = min(wait_ns, self.slo.bound_ns - self.calibration.slowest_batch_ns)
        return max(0, wait_ns)
