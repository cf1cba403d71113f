"""A model on several nodes. Each node runs the harness and holds the samples."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.nodes.opened import OpenNodes, as_client, open_nodes
from harness.run.measured.nodes.session import NodeSession
from harness.run.measured.preparation import Preparation
from harness.run.measured.systems.server import RemoteModel
from harness.run.measured.systems.system import Progress
from harness.run.setup import NODE_ROWS, Setup
from harness.types import Backend, Dataset, TensorSpec


class ModelOnNodes(RemoteModel):
    """The nodes of --nodes, which receive requests as servers do."""

    _nodes: OpenNodes
    _session: NodeSession

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.config = as_client(setup.config)
        self._on_wire = setup.config.inputs_on_wire
        if not self._on_wire:
            self.no_probe = "the nodes have the samples, so the driver cannot change the inputs"

    def open(self, stack: ExitStack, progress: Progress) -> Mapping[str, Any]:
        start = time.monotonic()
        self._nodes = open_nodes(self._setup.config, stack)
        self.import_s = time.monotonic() - start
        self.max_batch = min(self.max_batch, self._nodes.max_batch)
        return super().open(stack, progress)

    @property
    def _takes_steps(self) -> bool:
        # If the requests contain no inputs, the nodes run the steps.
        return self._on_wire and super()._takes_steps

    def _backends(self, stack: ExitStack) -> Sequence[Backend]:
        return self._nodes.backends(self._setup.model, stack)

    def _inputs(self, _backend: Backend) -> Sequence[TensorSpec]:
        return self._nodes.inputs

    def _data(self, dataset: Dataset) -> Dataset:
        return self._nodes.data(dataset)

    def _about(self, backend: Backend, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
        first = self._nodes.first
        return {
            **self._loaded_message(backend, inputs, first.model_sha256, first.model_bytes),
            "backend": {**first.backend_description, "nodes": len(self._nodes.facts)},
        }

    def _new_session(self, preparation: Preparation) -> NodeSession:
        first, slowest_ns = preparation.answerers[0], preparation.slowest_ns
        return NodeSession(self.config, self._nodes, first, self.max_batch, slowest_ns)

    def summary(self, failures: Failures) -> Mapping[str, Any]:
        rows = self._session.rows()
        np.savez(self._setup.outdir / NODE_ROWS, **rows)  # type: ignore[arg-type] # numpy's stubs
        return super().summary(failures)
