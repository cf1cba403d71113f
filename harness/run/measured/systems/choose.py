"""Chooses the system under test of a run."""

from harness.models.cache.model_set import ModelSet
from harness.run.measured.systems.generating import GeneratingModel
from harness.run.measured.systems.local import LocalModel
from harness.run.measured.systems.model_set import SetOfModels
from harness.run.measured.systems.nodes import ModelOnNodes
from harness.run.measured.systems.real_time import RealTimeModel
from harness.run.measured.systems.server import RemoteModel
from harness.run.measured.systems.system import System
from harness.run.setup import Setup


def system_for(setup: Setup) -> System:
    """Returns the system under test of a run, before it is opened."""
    if setup.config.node_urls:
        return ModelOnNodes(setup)
    if isinstance(setup.model, ModelSet):
        return SetOfModels(setup)
    if setup.config.url:
        return RemoteModel(setup)
    if setup.model.generates:
        return GeneratingModel(setup)
    if setup.config.streams is not None:
        return RealTimeModel(setup)
    return LocalModel(setup)
