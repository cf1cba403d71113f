"""Collects the facts about a run from which result.json is derived."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.batch_rule import WAITED_SHARE
from harness.core.codes import Reason
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Calibration, InstanceGroup, Loaded
from harness.loadgen.scenario import Scenario
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog
from harness.machine.power.ptdaemon_log import PtdaemonLog
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.model import Model
from harness.models.manifest.schema import Accuracy
from harness.models.opened.resolved_run import ResolvedRun
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.performance import Performance
from harness.results.models import witness
from harness.results.models.section import section
from harness.results.schema.models import Models
from harness.results.verdict import witnesses
from harness.results.verdict.score import Scoring

NOT_STORED = "the run ended before its meter readings were stored"


@dataclass(slots=True, kw_only=True)
class Findings:
    """Everything known about a run so far. A field is None or empty until it is measured."""

    resolved: ResolvedRun
    started: str
    """Start of the run, in ISO 8601, UTC."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Description of the machine, as in environment.json."""
    noise: Mapping[str, Any] | None = None
    """The machine's noise floor, measured before the run."""
    load: Mapping[str, float | None] = field(default_factory=dict)
    """Other load on the machine during the performance run."""
    power: PowerLog | None = None
    ptdaemon: PtdaemonLog | None = None
    ceiling_per_s: float | None = None
    """Rate in samples/s that the null backend reached on this machine in this scenario; None if the null backend never
    ran.
    """
    host: HostLog | None = None
    server_metrics: HostLog | None = None
    """Metrics that the servers of --url reported."""
    no_server_metrics: str = ""
    """Why the servers reported no metrics; '' if they reported metrics, and for a run without servers."""
    loaded: Loaded | None = None
    calibration: Calibration | None = None
    performance: Evidence | None = None
    """Evidence from the performance run."""
    accuracy: Evidence | None = None
    """Evidence from the accuracy run."""
    answers: Evidence | None = None
    """Evidence from a short performance run under the official rules. The answers of this short run are compared with
    the accuracy run's answers.
    """
    scoring: Scoring = field(default_factory=Scoring)
    scored_again: str = ""
    """When the answers were scored again after the run, in ISO 8601, UTC (harness/results/rescore.py)."""
    stopped: Reason | None = None
    """Why the run ended early; None if the run did not end early."""
    unsaved: Reason | None = None
    """Why the result folder is incomplete; None if it is complete."""
    _contradictions: tuple[Evidence, Sequence[Reason]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _performed: Performance | None = field(default=None, init=False, repr=False, compare=False)

    _models: tuple[Evidence, Models | None] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def model(self) -> Model:
        return self.resolved.model

    @property
    def code(self) -> Mapping[str, Any] | None:
        """The harness's files and the code that runs before them; None if the run did not check them."""
        return self.environment.get("code")

    @property
    def dataset(self) -> str:
        return self.resolved.dataset

    @property
    def own_data(self) -> bool:
        """Whether the run uses the manifest's dataset; the manifest's accuracy applies only to this dataset."""
        return self.dataset == default_dataset(self.model)

    @property
    def accuracy_target(self) -> Accuracy | None:
        """Target for the score. None for a dataset other than the manifest's, except under the official rules."""
        return self.model.accuracy if self.own_data or self.config.mlperf else None

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    @property
    def slo(self) -> Slo | None:
        return self.resolved.slo

    @property
    def spec(self) -> InstanceGroup:
        return self.resolved.instances

    @property
    def runs(self) -> Mapping[str, Evidence]:
        """LoadGen runs by role, in the order in which they ran."""
        roles = {
            "performance": self.performance,
            "accuracy": self.accuracy,
            "answers": self.answers,
        }
        return {role: run for role, run in roles.items() if run is not None}

    @property
    def compared_run(self) -> Evidence | None:
        """Run whose logged answers are compared with the accuracy run's answers. Under the official rules, a
        performance run must not log answers.
        """
        return self.answers or self.performance

    @property
    def performed(self) -> Performance | None:
        """Numbers of the performance run, computed only once even if several results are saved."""
        run = self.performance
        if run is not None and (self._performed is None or self._performed.run is not run):
            self._performed = Performance(run, self.spec, self._wait_ns)
        return self._performed if run is not None else None

    @property
    def models(self) -> Models | None:
        """Section of result.json about a set of models; None for a single model. The section is computed only once,
        even if several results are saved.
        """
        run = self.performance
        if run is not None and (self._models is None or self._models[0] is not run):
            self._models = run, section(run, self.loaded)
        return self._models[1] if run is not None and self._models is not None else None

    def contradictions(self, run: Evidence) -> Sequence[Reason]:
        """Returns contradictions in a run's evidence. For the large performance run, the reasons are computed only
        once.
        """
        known = self._contradictions
        if known is not None and known[0] is run:
            return known[1]
        reasons = [
            *witnesses.settings_reasons(run),
            *witnesses.log_reasons(run),
            *witnesses.journal_reasons(run, self.spec.max_batch),
            *witnesses.file_reasons(run),
            *witnesses.clock_reasons(run),
            *witness.reasons(run, self.loaded),
        ]
        if run is self.performance:
            self._contradictions = (run, reasons)
        return reasons

    @property
    def _wait_ns(self) -> int:
        """Longest time that a sample waits for other samples to fill its batch. With --dispatch deadline, the SLO
        limits this time.
        """
        wait_ns = self.config.batch_wait_ns
        if self.config.dispatch == "deadline" and self.slo and self.calibration:
            waited_ns = int(WAITED_SHARE * self.slo.bound_ns)
            wait_ns = min(wait_ns, waited_ns - self.calibration.slowest_batch_ns)
        return max(0, wait_ns)
