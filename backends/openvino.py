"""Runs ONNX files and OpenVINO's IR on OpenVINO."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import openvino

from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.openvino_kernels import OpenVinoProfiler
from harness.core import signal_stack
from harness.core.formats.protobuf import onnx_origin
from harness.core.number_types import precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import Array, Backend, Outputs, TensorSpec, declared_shape


class OpenVinoBackend(FrameworkBackend):
    """One compiled model with one stream and one infer request.

    precision: the number type of the computation. OpenVINO defaults to bf16 on CPUs that support it, unlike every other
    framework that the harness supports. hint: the goal for which OpenVINO chooses kernels and threads.
    """

    name = "openvino"
    title = "OpenVINO"
    formats = ("openvino", "onnx")
    options: ClassVar[Choices] = {
        "precision": ("f32", "bf16", "f16"),
        "hint": ("latency", "throughput"),
    }
    elastic = True
    _counts = False
    """If true, OpenVINO times each kernel, which slows the kernels down."""

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        core = openvino.Core()
        model = core.read_model(_readable(self._path))
        inputs = tuple(map(_spec, model.inputs))
        self._weights = list(_weights(model))
        if self._setup.max_batch == 1:
            # The size is fixed, because every batch has one sample, and an open size costs 3 % in SqueezeNet.
            model.reshape({port: self._of_one(port) for port in model.inputs})
        settings = {
            "PERFORMANCE_HINT": self._option["hint"].upper(),
            "INFERENCE_PRECISION_HINT": self._option["precision"],
            "INFERENCE_NUM_THREADS": self._setup.threads,
            "NUM_STREAMS": 1,
            # Otherwise OpenVINO would pin every instance to the same cores.
            "ENABLE_CPU_PINNING": False,
            "PERF_COUNT": self._counts,
        }
        with signal_stack.kept():
            self._compiled = core.compile_model(model, "CPU", settings)
        self._check_precision()
        self._request = self._compiled.create_infer_request()
        return inputs, tuple(port.get_any_name() for port in self._compiled.outputs)

    def _of_one(self, port: openvino.Output) -> openvino.PartialShape:
        """Returns the input's shape, with 1 in place of an open batch."""
        shape, axis = port.get_partial_shape(), self._batch_axis(port.get_any_name())
        if axis is None or axis >= len(shape) or shape[axis].is_static:
            return shape
        sizes = list(shape)
        sizes[axis] = openvino.Dimension(1)
        return openvino.PartialShape(sizes)

    def profiler(self) -> Profiler:
        twin = OpenVinoBackend(self._setup)
        twin._counts = True
        batch = self._setup.max_batch
        return OpenVinoProfiler(twin, lambda: twin._request, _readable(self._path), batch)

    def _precision(self) -> str:
        return str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())

    def _check_precision(self) -> None:
        requested, used = self._option["precision"], self._precision()
        if used != requested:
            raise ConfigError(
                f"--backend-option precision={requested}: OpenVINO computes in {used} on this CPU: drop the option"
            )

    def __exit__(self, *exc: object) -> None:
        del self._request, self._compiled

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        # OpenVINO reads the inputs in place, and copies only read-only inputs.
        results = self._request.infer(inputs, share_inputs=True, share_outputs=True)
        # The rows are copied, because the next `infer` overwrites the same memory.
        return named(self._outputs, [rows.copy() for rows in results.to_tuple()])

    @property
    def tunable(self) -> Choices:
        return {"hint": ("throughput",)}

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": f"openvino {openvino.__version__}",
            "device": ", ".join(self._compiled.get_property("EXECUTION_DEVICES")),
            "precision": precision(
                self._weights, [i.dtype for i in self._inputs], self._precision()
            ),
            "threads": self._compiled.get_property("INFERENCE_NUM_THREADS"),
            "streams": self._compiled.get_property("NUM_STREAMS"),
            "hint": str(self._compiled.get_property("PERFORMANCE_HINT")),
            "math_library": "oneDNN",
            **onnx_origin(self._path),
        }


def _readable(path: Path) -> Path:
    """Returns the model file, or the only .xml in the folder of an IR."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.xml"))
    if len(files) != 1:
        raise ConfigError(f"{path} must contain exactly one .xml, but contains {len(files)}")
    return files[0]


def _spec(port: openvino.Output) -> TensorSpec:
    sizes = port.get_partial_shape()
    shape = declared_shape(d.get_length() if d.is_static else None for d in sizes)
    return TensorSpec(port.get_any_name(), _dtype(port.get_element_type()), shape)


def _weights(model: openvino.Model) -> Iterator[tuple[Sequence[int], str]]:
    """Yields the shape and number type of each constant."""
    for node in model.get_ops():
        if node.get_type_name() == "Constant":
            yield tuple(node.get_output_shape(0)), node.get_element_type().get_type_name()


def _dtype(kind: openvino.Type) -> str:
    if kind == openvino.Type.string:
        return "string"
    return "bool" if kind == openvino.Type.boolean else np.dtype(kind.to_dtype()).name


_: type[Backend] = OpenVinoBackend
