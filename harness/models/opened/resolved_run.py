"""A run with every name looked up and every default filled in."""

from dataclasses import dataclass

from harness.core.config.parse import Slo, leading
from harness.core.config.run_config import RunConfig
from harness.loadgen.arrivals import Arrivals
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import Scenario
from harness.models.manifest.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRun:
    """A run whose names and defaults are resolved once, either before the run starts or from the files of a finished
    run.
    """

    config: RunConfig
    """The configuration that the user requested."""
    model: Model
    scenario: Scenario
    dataset: str
    """The dataset's name from the configuration or the manifest."""
    metric: str | None
    """The metric's name from the configuration or the manifest, or None if neither sets it."""
    slos: tuple[Slo, ...]
    """The SLOs that decide the verdict. Under --mlperf, LoadGen's SLOs replace these SLOs when the plan is made."""
    instances: InstanceGroup
    """The instance group. If the model file fixes the batch size, the group uses that size."""
    arrivals: Arrivals | None = None
    """The arrivals from the file of --arrivals; None without --arrivals and for a finished run."""

    @property
    def slo(self) -> Slo | None:
        """The query-latency SLO with the highest percentile, or None if no SLO limits the query latency."""
        return leading(self.slos)

    @property
    def generates(self) -> bool:
        """Whether a model on this machine generates token by token."""
        return not self.config.servers and self.model.generates
