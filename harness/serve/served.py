"""Opens a model for serving: one warmed-up instance, with descriptions of its inputs and outputs in the protocol's
form.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.formats.kserve_tensors import datatype_of, datatype_of_array
from harness.core.registry import load, plugin
from harness.errors import ConfigError
from harness.machine.cores import available
from harness.models.generation.backend import GeneratingBackend
from harness.models.generation.prompts import Prompts
from harness.models.manifest.hook import postprocessor_of
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
from harness.models.steps.postprocess import NOT_FINITE, Postprocess
from harness.models.steps.steps import OF_ANY_LENGTH
from harness.serve.answers import Refusal
from harness.types import Array, Backend, Batch, HasOutputs, Outputs, TensorSpec

ANY = -1
"""Stands for a variable size in the protocol's metadata."""

ANSWER = "answer"
"""Name of the output if the server postprocesses the outputs."""

_NOT_FOUND = 404

WARM_UP_CALLS = 3
"""Number of warm-up calls for each of two batch sizes."""


class TensorInfo(NamedTuple):
    """A tensor in the protocol's metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Sizes of the tensor. The first size is the batch size; ANY stands for a variable size."""


class Served(Protocol):
    """A model that the protocol can describe and call."""

    name: str
    backend_name: str
    max_batch: int
    """Maximum number of samples in a batch."""
    inputs: Sequence[TensorInfo]
    """The declared inputs, or () if neither the manifest nor the file declares any; all inputs are then passed on.
    """
    outputs: Sequence[TensorInfo]
    """The outputs, which are known only after the model has run."""
    properties: Mapping[str, str]

    def infer(self, batch: Batch, /) -> Mapping[str, Array]:
        """Returns the answers by output name. Each answer has one row per sample."""


class ServedModel:
    """A model that runs on the calling thread."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        backend_name: str,
        max_batch: int,
        postprocess: Postprocess | None = None,
    ) -> None:
        """postprocess: the manifest's steps if the server replies with answers, or None if it replies with outputs."""
        self.name = model.name
        self.backend_name = backend_name
        self.max_batch = max_batch
        self.inputs: Sequence[TensorInfo] = tensors_of(inputs_of(model, backend))
        self.outputs: Sequence[TensorInfo] = ()
        with plugin(f"backend {backend_name!r}: describe()"):
            self.properties: Mapping[str, str] = {
                key: str(value) for key, value in backend.describe().items()
            }
        self._backend = backend
        self._postprocess = postprocess
        self._names = backend.outputs() if isinstance(backend, HasOutputs) else ()
        if not self._names:
            self._names = (model.output.name,) if model.output else ("output",)
        self._sizes_vary = any(ANY in tensor.shape[1:] for tensor in self.inputs)

    def infer(self, batch: Batch) -> Mapping[str, Array]:
        """Returns the answers by output name, with one row per sample.

        Raises ConfigError if an output does not contain one row per sample.
        """
        answers = self._by_name(self._answered(batch))
        for name, rows in answers.items():
            if rows.shape[:1] != (batch.size,):
                raise ConfigError(
                    f"the model's output {name!r} has the shape {[*rows.shape]} for a batch of {batch.size}, but "
                    "replies need one row per sample: export the model without it, or with the batch first"
                )
        if not self.outputs:
            self.outputs = tuple(self._output(name, rows) for name, rows in answers.items())
        return answers

    def _answered(self, batch: Batch) -> Outputs:
        outputs = self._backend.infer(batch)
        if self._postprocess is None:
            return outputs
        rows = self._postprocess.answers(outputs, range(batch.size))
        if self._postprocess.not_finite(outputs, rows):
            raise ValueError(NOT_FINITE)
        return {ANSWER: np.asarray(rows)}

    def _by_name(self, outputs: Outputs) -> Mapping[str, Array]:
        if isinstance(outputs, Mapping):
            return {name: np.asarray(rows) for name, rows in outputs.items()}
        rows = outputs if isinstance(outputs, np.ndarray) else np.stack(list(outputs))
        return {self._names[0]: rows}

    def _output(self, name: str, rows: Array) -> TensorInfo:
        strange = _not_text(rows)
        if strange is not None:
            raise ConfigError(
                f"the model's output {name!r} has values of the type {type(strange).__name__}, but the protocol has "
                "only numbers and strings: export the model without it (skl2onnx: zipmap=False)"
            )
        sizes = (ANY,) * (rows.ndim - 1) if self._sizes_vary else rows.shape[1:]
        return TensorInfo(name, datatype_of_array(rows) or rows.dtype.name, (ANY, *sizes))


def _not_text(rows: Array) -> object | None:
    """Returns the first value that is not a string in an array of objects, or None if all values are strings."""
    if rows.dtype.kind != "O":
        return None
    return next((value for value in rows.flat if not isinstance(value, str | bytes)), None)


def tensors_of(specs: Sequence[TensorSpec]) -> tuple[TensorInfo, ...]:
    """Returns the inputs' descriptions in the protocol's format."""
    return tuple(_info(spec) for spec in specs)


def _info(spec: TensorSpec) -> TensorInfo:
    """Returns a tensor's description in the protocol's format. Raises ConfigError if the protocol lacks the tensor's
    number type.
    """
    datatype = datatype_of(spec.dtype)
    if datatype is None:
        raise ConfigError(
            f"input {spec.name!r} is {spec.dtype}, for which the protocol has no datatype: it cannot be served"
        )
    return TensorInfo(
        spec.name, datatype, tuple(size if isinstance(size, int) else ANY for size in spec.shape)
    )


class ServedGeneration:
    """A warmed-up language model, whose generator only one thread may use."""

    def __init__(
        self,
        model: Model,
        backend: GeneratingBackend,
        backend_name: str,
        names: Sequence[str] = (),
    ) -> None:
        """names: names that clients may use to request the model, or () if clients may use only `model.name`."""
        about = model.generation
        assert about is not None
        self.names = tuple(names) or (model.name,)
        self.name = self.names[0]
        self.backend_name = backend_name
        self.context = about.context
        """Maximum total number of tokens in a prompt and its answer."""
        self.prompts = Prompts(about)
        with plugin(f"backend {backend_name!r}: describe()"):
            self.properties = {key: str(value) for key, value in backend.describe().items()}
        self.generator = backend.generator
        with plugin(f"backend {backend_name!r}, answering noise,"):
            for size in dict.fromkeys((1, backend.max_batch)):
                for _ in range(WARM_UP_CALLS):
                    backend.rehearse(size)

    def known(self, name: object) -> str:
        """Returns the name of the requested model. Raises Refusal if the name is unknown."""
        if name is None:
            return self.name
        if name not in self.names:
            have = ", ".join(map(repr, self.names))
            text = f"this server has no model {name!r:.80}, only {have}"
            raise Refusal(_NOT_FOUND, text, param="model")
        return str(name)


def open_served(
    config: RunConfig,
    stack: ExitStack,
    *,
    postprocess: bool = False,
    names: Sequence[str] = (),
) -> ServedModel | ServedGeneration:
    """Opens and warms up one instance of the configured model, which `stack` closes.

    postprocess: whether to reply with answers instead of outputs. names: names that clients may use to request a
    language model.
    """
    model = load_model(config.model)
    if model.transcription is not None:
        raise ConfigError(
            f"model {model.name!r} transcribes speech, which `serve` does not support: measure it in this process, or "
            "serve it with vLLM"
        )
    steps = _steps(model) if postprocess else None
    if model.may_have_to_be_obtained:
        model.obtain(declared(config).formats, say)
    group = instances.plan(config, load("scenario", config.scenario), model, available())
    (backend,) = open_backends(config, model, model_file(config, model), group, stack)
    if isinstance(backend, GeneratingBackend):
        return ServedGeneration(model, backend, config.backend, names)
    fixed = batch_in_file(backend, inputs_of(model, backend))
    max_batch = group.max_batch if fixed is None else min(fixed, group.max_batch)
    served = ServedModel(model, backend, config.backend, max_batch, steps)
    _warm_up(served, config, model, backend)
    return served


def _steps(model: Model) -> Postprocess:
    """Returns the manifest's steps.

    Raises ConfigError if the answers do not fit into a tensor, or if a step runs the user's code.
    """
    for step in model.postprocess:
        if step.name in _NOT_HERE:
            raise ConfigError(
                f"--postprocess: the step {step.name!r} of model {model.name!r} {_NOT_HERE[step.name]}: drop "
                "--postprocess, or serve a file that returns the answers itself"
            )
    return postprocessor_of(model.output, has_states=model.has_states)


_NOT_HERE = {
    **dict.fromkeys(OF_ANY_LENGTH, "gives answers of different lengths"),
    "hook": "runs a file of yours",
}
"""Maps a step to the reason why `serve` does not support it."""


def _warm_up(served: ServedModel, config: RunConfig, model: Model, backend: Backend) -> None:
    """Runs the model on noise: first on one sample, then on a full batch."""
    inputs = inputs_of(model, backend)
    if texts := [spec.name for spec in inputs if spec.dtype == "string"]:
        say(f"not warmed up: {', '.join(texts)} takes strings, but noise has only numbers")
        return
    try:
        noise = open_dataset(config, model, "synthetic", inputs)
    except ConfigError:
        if config.input_shape:
            raise
        say("not warmed up: the sizes of its inputs are unknown (--input-shape sets them)")
        return
    for size in dict.fromkeys((1, served.max_batch)):
        indices = [i % len(noise) for i in range(size)]
        noise.load(indices)
        with plugin(f"backend {config.backend!r}, answering noise,"):
            for _ in range(WARM_UP_CALLS):
                served.infer(noise.batch(indices))
