"""Opens a model for serving: one instance, its inputs and outputs as the protocol tells them, warmed up."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.formats.kserve_tensors import datatype_of, datatype_of_array
from harness.core.registry import load, plugin
from harness.errors import ConfigError
from harness.machine.cores import available
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened import instances
from harness.models.opened.loading import (
    batch_in_file,
    declared,
    inputs_of,
    model_file,
    open_backends,
    open_dataset,
)
from harness.types import Array, Backend, Batch, HasOutputs, Outputs, TensorSpec

ANY = -1
"""A size that varies, in the protocol's metadata."""

WARM_UP_CALLS = 3
"""For each of two sizes of the batch."""


class TensorInfo(NamedTuple):
    """One tensor of the metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """The first size is the batch; ANY where a size varies."""


class ServedModel:
    """A model that answers, on the thread that calls."""

    def __init__(self, model: Model, backend: Backend, backend_name: str, max_batch: int) -> None:
        self.name = model.name
        self.backend_name = backend_name
        self.max_batch = max_batch
        """Samples in the largest batch that is answered."""
        self.inputs = tuple(_info(spec) for spec in inputs_of(model, backend))
        """() where neither manifest nor file tells them: any are then passed on."""
        self.outputs: tuple[TensorInfo, ...] = ()
        """Known once the model has answered."""
        with plugin(f"backend {backend_name!r}: describe()"):
            self.properties = {key: str(value) for key, value in backend.describe().items()}
        self._backend = backend
        self._names = backend.outputs() if isinstance(backend, HasOutputs) else ()
        if not self._names:
            self._names = (model.output.name,) if model.output else ("output",)
        self._sizes_vary = any(ANY in tensor.shape[1:] for tensor in self.inputs)

    def infer(self, batch: Batch) -> Mapping[str, Array]:
        """Answers by output, each with one row a sample. Raises a ValueError where the rows are not so many."""
        answers = self._by_name(self._backend.infer(batch))
        for name, rows in answers.items():
            if rows.shape[:1] != (batch.size,):
                raise ValueError(
                    f"output {name!r} has the shape {[*rows.shape]} for a batch of {batch.size}"
                )
        if not self.outputs:
            self.outputs = tuple(self._output(name, rows) for name, rows in answers.items())
        return answers

    def _by_name(self, outputs: Outputs) -> Mapping[str, Array]:
        if isinstance(outputs, Mapping):
            return {name: np.asarray(rows) for name, rows in outputs.items()}
        rows = outputs if isinstance(outputs, np.ndarray) else np.stack(list(outputs))
        return {self._names[0]: rows}

    def _output(self, name: str, rows: Array) -> TensorInfo:
        sizes = (ANY,) * (rows.ndim - 1) if self._sizes_vary else rows.shape[1:]
        return TensorInfo(name, datatype_of_array(rows) or rows.dtype.name, (ANY, *sizes))


def _info(spec: TensorSpec) -> TensorInfo:
    """A ConfigError for a number type that the protocol has no name for."""
    datatype = datatype_of(spec.dtype)
    if datatype is None:
        raise ConfigError(
            f"input {spec.name!r} is {spec.dtype}, for which the protocol has no datatype: it cannot be served"
        )
    return TensorInfo(
        spec.name, datatype, tuple(size if isinstance(size, int) else ANY for size in spec.shape)
    )


def open_served(config: RunConfig, stack: ExitStack) -> ServedModel:
    """The model of a configuration with one instance, warmed up; `stack` closes it."""
    model = load_model(config.model)
    if model.may_have_to_be_obtained:
        model.obtain(declared(config).formats, say)
    group = instances.plan(config, load("scenario", config.scenario), model, available())
    (backend,) = open_backends(config, model, model_file(config, model), group, stack)
    fixed = batch_in_file(backend, inputs_of(model, backend))
    max_batch = group.max_batch if fixed is None else min(fixed, group.max_batch)
    served = ServedModel(model, backend, config.backend, max_batch)
    _warm_up(served, config, model, backend)
    return served


def _warm_up(served: ServedModel, config: RunConfig, model: Model, backend: Backend) -> None:
    """Answers noise, at first of one sample, then of a whole batch."""
    try:
        noise = open_dataset(config, model, "synthetic", inputs_of(model, backend))
    except ConfigError:
        if config.input_shape:
            raise
        say("not warmed up: sizes of its inputs are not known (--input-shape sets them)")
        return
    for size in dict.fromkeys((1, served.max_batch)):
        indices = [i % len(noise) for i in range(size)]
        noise.load(indices)
        with plugin(f"backend {config.backend!r}, answering noise,"):
            for _ in range(WARM_UP_CALLS):
                served.infer(noise.batch(indices))
