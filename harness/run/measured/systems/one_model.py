"""Opens one model with its dataset and steps, in this process or behind connections."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.models.manifest.files import size_bytes
from harness.models.manifest.hook import load_hook, postprocessor_of
from harness.models.opened.loading import (
    batch_in_file,
    check_tables,
    inputs_of,
    model_file,
    open_backends,
    open_dataset,
    samples_held,
)
from harness.models.opened.separate_instance import SeparateInstance
from harness.models.steps.postprocess import check, identified, in_frames
from harness.run.measured.answerer import Answerer, batch_of
from harness.run.measured.systems.system import Progress, System
from harness.types import Backend, Dataset, HasOwnOrder, TensorSpec


class OneModel(System):
    """Several instances of one model, or several connections to one model."""

    _path: Path | None = None
    """The model file."""
    _stack: ExitStack
    """Closes everything that `open` opened; set by `open`."""
    _instances: ExitStack
    """Closes the backends; set by `open`."""

    def open(self, stack: ExitStack, progress: Progress) -> Mapping[str, Any]:
        setup, model = self._setup, self._setup.model
        self._stack = stack
        self._instances = stack.enter_context(ExitStack())
        backends = self._backends(self._instances)
        self.separate = [each for each in backends if isinstance(each, SeparateInstance)]
        inputs = self._inputs(backends[0])
        self.fixed_batch = batch_in_file(backends[0], inputs)
        if self.fixed_batch is not None:
            self.max_batch = min(self.max_batch, self.fixed_batch)
        self.dataset = self._data(open_dataset(self.config, model, setup.dataset, inputs, progress))
        count = self.config.performance_count or model.performance_count
        self.held = samples_held(self.dataset, setup.dataset, count)
        takes_steps = self._takes_steps
        self._output = output = model.output if takes_steps else None
        self._hook = load_hook(model, self.config.hook) if takes_steps else None
        postprocess = postprocessor_of(output, self._hook, has_states=model.has_states)
        if isinstance(self.dataset, HasOwnOrder):
            postprocess = identified(postprocess, self.dataset)
        cpus = self._group.pinned or [()] * len(backends)
        self.answerers = [
            Answerer(backend, self.dataset, postprocess, cpus[i])
            for i, backend in enumerate(backends)
        ]
        self.may_vary = any(not isinstance(d, int) for spec in inputs for d in spec.shape[1:])
        return self._about(backends[0], inputs)

    @property
    def _takes_steps(self) -> bool:
        """Returns whether the manifest's steps and hook convert the backend's outputs to answers."""
        return True

    def _backends(self, stack: ExitStack) -> Sequence[Backend]:
        model = self._setup.model
        self._path = model_file(self.config, model)
        return open_backends(self.config, model, self._path, self._group, stack, self.load_s)

    def _inputs(self, backend: Backend) -> Sequence[TensorSpec]:
        return inputs_of(self._setup.model, backend, qdl=self.config.qdl)

    def _data(self, dataset: Dataset) -> Dataset:
        return dataset

    def _about(self, backend: Backend, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
        path = self._path
        sha256 = self._setup.model.sha256(path) if path is not None else None
        return self._loaded_message(
            backend, inputs, sha256, size_bytes(path) if path is not None else 0
        )

    def check_steps(self, backend: Backend, dataset: Dataset, first: list[int]) -> None:
        output = self._output
        if output is not None and output.postprocess:
            batch = batch_of(dataset, first)
            outputs = backend.infer(batch)
            samples: Sequence[int] = first
            if self._setup.model.has_states:
                outputs, samples = in_frames(outputs, first)
            self.classes = check(
                output.postprocess, output.name, self._hook, outputs, batch, samples
            )

    def check_numbers(self, dataset: Dataset, loaded: list[int]) -> None:
        check_tables(self.config, self._setup.model, batch_of(dataset, loaded))
