"""A run in which every name is looked up and every default is filled in."""

from dataclasses import dataclass

from harness.core.config.parse import Slo, leading
from harness.core.config.run_config import RunConfig
from harness.loadgen.arrivals import Arrivals
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import Scenario
from harness.models.manifest.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRun:
    """A run that is resolved once, either before it starts or from the files of a finished run."""

    config: RunConfig
    """The configuration that the user requested."""
    model: Model
    scenario: Scenario
    dataset: str
    """The name that the configuration or the manifest gives."""
    metric: str | None
    """The name from the configuration or the manifest, or None if neither has it."""
    slos: tuple[Slo, ...]
    """The SLOs that decide the verdict. Under --mlperf, LoadGen's SLOs replace them once the plan is made."""
    instances: InstanceGroup
    """The instance group. If the model file fixes the batch, the group has that batch."""
    arrivals: Arrivals | None = None
    """The file of --arrivals. None without --arrivals and for a finished run."""

    @property
    def slo(self) -> Slo | None:
        """The SLO on the query latency that represents the run."""
        return leading(self.slos)

    @property
    def generates(self) -> bool:
        """Whether a model on this machine answers token by token."""
        return not self.config.servers and self.model.generates
