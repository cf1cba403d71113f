"""Runs LiteRT (formerly TensorFlow Lite) files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from harness.backends.parts.framework import FrameworkBackend, named
from harness.core.number_types import precision
from harness.errors import ConfigError
from harness.types import Array, Backend, Outputs, TensorSpec, declared_shape

_UNRESOLVED = re.compile(r"unresolved custom op: ([^\s.]+)")


class LiteRtBackend(FrameworkBackend):
    """One interpreter, which is resized when the shapes of a batch change.

    If the file has exactly one signature, inputs and outputs use the names in the signature. Otherwise, inputs and
    outputs use the names of their tensors.
    """

    name = "litert"
    title = "LiteRT"
    formats = ("tflite",)

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._interpreter = Interpreter(str(self._path), num_threads=self._setup.threads)
        self._weights = list(_weights(self._interpreter))
        # This call must come first: LiteRT refuses to allocate once a signature runner exists.
        self._allocate()
        signatures = list(self._interpreter.get_signature_list())
        if len(signatures) == 1:
            runner = self._interpreter.get_signature_runner(signatures[0])
            inputs, outputs = runner.get_input_details(), runner.get_output_details()
        else:
            inputs = {d["name"]: d for d in self._interpreter.get_input_details()}
            outputs = {d["name"]: d for d in self._interpreter.get_output_details()}
        self._shapes = {name: tuple(map(int, d["shape"])) for name, d in inputs.items()}
        self._feeds = [(name, d["index"]) for name, d in inputs.items()]
        self._fetches = [d["index"] for d in outputs.values()]
        return tuple(_spec(name, detail) for name, detail in inputs.items()), tuple(outputs)

    def _allocate(self) -> None:
        try:
            self._interpreter.allocate_tensors()
        except RuntimeError as e:
            found = _UNRESOLVED.search(str(e))
            if found is None:
                raise
            raise ConfigError(
                f"{self._path}: LiteRT cannot load it, because its operator {found[1]} belongs to another library: convert the "
                "model without it, or write a backend that registers it"
            ) from e

    def __exit__(self, *exc: object) -> None:
        del self._interpreter

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        interpreter = self._interpreter
        if any(inputs[name].shape != shape for name, shape in self._shapes.items()):
            self._resize(inputs)
        for name, index in self._feeds:
            interpreter.set_tensor(index, inputs[name])
        interpreter.invoke()
        return named(self._outputs, [interpreter.get_tensor(index) for index in self._fetches])

    def _resize(self, inputs: Mapping[str, Array]) -> None:
        # `_shapes` stays empty if a call below fails, so that the next batch resizes again.
        self._shapes = {}
        for name, index in self._feeds:
            self._interpreter.resize_tensor_input(index, inputs[name].shape, strict=True)
        self._interpreter.allocate_tensors()
        self._shapes = {name: inputs[name].shape for name, _ in self._feeds}

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": f"ai-edge-litert {version('ai-edge-litert')}",
            "device": "cpu",
            "precision": precision(self._weights, [i.dtype for i in self._inputs]),
            "threads": self._setup.threads,
            "math_library": "XNNPACK",
        }


def _weights(interpreter: Interpreter) -> Iterator[tuple[Sequence[int], str]]:
    """Yields the shape and number type of each constant. Before tensors are allocated, only constants have data."""
    for detail in interpreter.get_tensor_details():
        try:
            interpreter.tensor(detail["index"])()
        except ValueError:
            continue
        yield tuple(map(int, detail["shape"])), np.dtype(detail["dtype"]).name


def _spec(name: str, detail: Mapping[str, object]) -> TensorSpec:
    """Returns an input's specification. shape_signature contains -1 for each open size, and is empty if no size is
    open.
    """
    shape = np.asarray(detail["shape_signature"])
    sizes = shape if shape.size else np.asarray(detail["shape"])
    dtype = np.dtype(detail["dtype"]).name  # type: ignore[call-overload] # a numpy scalar type
    return TensorSpec(name, dtype, declared_shape(map(int, sizes)))


_: type[Backend] = LiteRtBackend
