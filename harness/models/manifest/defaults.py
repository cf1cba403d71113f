"""Takes a run's dataset, metric and SLO from the manifest if the user does not set them."""

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.scenario import Scenario
from harness.models.manifest.model import Model


def default_dataset(model: Model) -> str:
    return model.dataset


def default_metric(model: Model) -> str | None:
    return model.accuracy.metric if model.accuracy else None


def slos_of(scenario: Scenario, config: RunConfig, model: Model) -> tuple[Slo, ...]:
    """Returns the user's SLOs. If the user sets none and the scenario needs an SLO, returns the manifest's SLO or the
    default SLO.

    With --streams, each frame must be finished before the next frame of the same stream is due.
    """
    if config.slo or scenario.default_slo is None:
        return config.slo
    if config.streams is not None and model.frame_period_ns is not None:
        return (Slo(scenario.percentile, model.frame_period_ns),)
    return (model.slo or scenario.default_slo,)
