"""Fills in the dataset, metric and SLO of a run from the manifest."""

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.scenario import Scenario
from harness.models.manifest.model import Model


def default_dataset(model: Model) -> str:
    return model.manifest.dataset if model.manifest else "synthetic"


def default_metric(model: Model) -> str | None:
    return model.accuracy.metric if model.accuracy else None


def slo_of(scenario: Scenario, config: RunConfig, model: Model) -> Slo | None:
    """The user's, else, where the scenario cannot do without, the manifest's or its default."""
    if config.slo is not None or scenario.default_slo is None:
        return config.slo
    return model.slo or scenario.default_slo
