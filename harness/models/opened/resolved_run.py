"""Holds one run with every name looked up and every default filled in."""

from dataclasses import dataclass

from harness.core.config.parse import Slo, leading
from harness.core.config.run_config import RunConfig
from harness.loadgen.arrivals import Arrivals
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import Scenario
from harness.models.manifest.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRun:
    """Made once, before the run or from the files of a finished one, and handed on."""

    config: RunConfig
    """The run as the user asked for it."""
    model: Model
    scenario: Scenario
    dataset: str
    """The name that the configuration or the manifest gives."""
    metric: str | None
    """The name that the configuration or the manifest gives; None where neither gives one."""
    slos: tuple[Slo, ...]
    """The SLOs that the verdict is judged by; under --mlperf LoadGen's, once the plan is made."""
    instances: InstanceGroup
    """The instance group; its batch is the model file's where that fixes one."""
    arrivals: Arrivals | None = None
    """The file of --arrivals; None without one, and for a finished run."""

    @property
    def slo(self) -> Slo | None:
        """Query latency SLO that the run is quoted by."""
        return leading(self.slos)

    @property
    def generates(self) -> bool:
        """Whether a language model of this machine answers, token by token."""
        return not self.config.servers and self.model.generation is not None
