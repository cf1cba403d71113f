"""Runs ncnn's files: a .param with the layers and a .bin with the weights."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import ncnn
import numpy as np

from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.native import ncnn_file
from harness.backends.parts.native.arithmetic import check_differs
from harness.backends.parts.native.ncnn_kernels import NcnnProfiler, Step, kernels_of, shape_of
from harness.core.number_types import number_type, precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import Array, Backend, Batch, Network, Outputs, TensorSpec, show_shape

_SWITCHES: Mapping[str, frozenset[str]] = {
    "f32": frozenset(),
    "f16": frozenset({"use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"}),
    "bf16": frozenset({"use_bf16_packed", "use_bf16_storage"}),
}
"""Maps a precision to the ncnn switches that it turns on. ncnn defaults to f16, unlike every other framework that the
harness supports.
"""

_REAL, _INTEGER = np.dtype(np.float32), np.dtype(np.int32)
"""Number types of ncnn's arrays. Inputs of other integer types are converted."""


_NOTHING = np.empty(0, _REAL)


class NcnnBackend(FrameworkBackend):
    """One ncnn net. The file has no batch dimension, so the samples of a batch are computed one after another.

    ncnn's arrays support a batch dimension, but some layers, such as one in SqueezeNet, then return an error.

    precision: the type of weights and activations. A file with int8 weights is always computed in int8. Inputs and
    outputs are named after their blobs. The types of inputs and outputs, and any shape that the file does not record,
    come from the manifest.
    """

    name = "ncnn"
    title = "ncnn"
    formats = ("ncnn",)
    options: ClassVar[Choices] = {"precision": tuple(_SWITCHES)}

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        if any(axis != 0 for axis in (self._setup.batch_axes or {}).values()):
            raise ConfigError(
                f"{self._path}: an ncnn file has no batch, so every input must have the batch as its first axis: use "
                "backend ort, tract or mnn"
            )
        param = ncnn_file.param_of(self._path)
        self._layers = ncnn_file.read_layers(param)
        weights = ncnn_file.weights_of(param)
        self._check_kinds()
        inputs = self._specs()
        requested = self._option["precision"]
        self._files = (str(param), str(weights))
        self._open(requested)
        self._feeds = [
            (spec.name, self._blobs[spec.name], _array_type(spec.dtype)) for spec in inputs
        ]
        names = ncnn_file.outputs_of(self._layers)
        self._names = names
        self._fetches = [self._blobs[name] for name in names]
        if requested != "f32":
            self._check_precision(requested, inputs)
        return inputs, names

    def _open(self, precision: str) -> None:
        """Loads the net. If ncnn refuses the file, ncnn returns only a number and prints the reason to stderr."""
        net = ncnn.Net()
        net.opt.num_threads = self._setup.threads
        net.opt.use_vulkan_compute = False
        for name in frozenset().union(*_SWITCHES.values()):
            setattr(net.opt, name, name in _SWITCHES[precision])
        param, weights = self._files
        if net.load_param(param) != 0:
            raise ValueError("ncnn refuses a layer's parameters: convert the model again")
        if net.load_model(weights) != 0:
            raise ValueError(
                "its weights file is truncated or belongs to a different .param: convert the model again"
            )
        self._net = net
        self._given: dict[int, tuple[Any, Array]] = {}
        """Maps the blob of each input to ncnn's array and to the array's memory as a NumPy array."""
        self._blobs = {blob.name: index for index, blob in enumerate(net.blobs())}

    def _check_kinds(self) -> None:
        for layer in self._layers:
            if ncnn.layer_to_index(layer.kind) < 0:
                raise ValueError(
                    f"it has a layer of type {layer.kind}, which ncnn {ncnn.__version__} does not support"
                )

    def _specs(self) -> tuple[TensorSpec, ...]:
        """Returns the inputs with the manifest's types, and with the shapes from the file or the manifest."""
        names = self._setup.names
        declared = {names.get(spec.name, spec.name): spec for spec in self._setup.inputs}
        found = []
        for name, shape in ncnn_file.inputs_of(self._layers).items():
            own = declared.get(name)
            if shape is None and own is None:
                have = f", and the manifest declares {', '.join(declared)}" if declared else ""
                raise ConfigError(
                    f"{self._path}: the file does not record the shape of input {name!r}{have}: name a "
                    f"manifest that declares {name}"
                )
            sizes = shape if shape is not None else own.shape[1:] if own else ()
            spec = TensorSpec(name, self._given_type(name, own), (None, *sizes))
            if why := ncnn_file.misfit(self._layers, name, sizes):
                raise ValueError(f"input {name!r} is declared as {show_shape(sizes)}, but {why}")
            found.append(spec)
        return tuple(found)

    def _given_type(self, name: str, declared: TensorSpec | None) -> str:
        """Returns the number type of the input rows. The file does not record the type, but the indices of a table must
        be integers.
        """
        is_integer = ncnn_file.selects_rows(self._layers, name)
        if declared is None:
            return _INTEGER.name if is_integer else _REAL.name
        if is_integer and _array_type(declared.dtype) != _INTEGER:
            raise ValueError(
                f"input {name!r} selects rows of a table, but is declared as {declared.dtype}: declare it as int64"
            )
        _array_type(declared.dtype)
        return declared.dtype

    def _check_precision(self, requested: str, inputs: Sequence[TensorSpec]) -> None:
        reduced = self._net
        self._open("f32")
        exact = self._net

        def answer(net: Any, batch: Mapping[str, Array]) -> Outputs:
            self._net = net
            return self._answer(batch)

        check_differs(
            f"precision={requested}",
            self.title,
            inputs,
            lambda batch: answer(exact, batch),
            lambda batch: answer(reduced, batch),
        )

    def profiler(self) -> Profiler:
        return NcnnProfiler(NcnnBackend(self._setup))

    def __exit__(self, *exc: object) -> None:
        del self._given, self._net

    def _arrays(self, inputs: Mapping[str, Array]) -> list[tuple[int, Array]]:
        """Returns the number of each input's blob, and the samples in ncnn's number type."""
        return [
            (blob, np.ascontiguousarray(inputs[name], dtype)) for name, blob, dtype in self._feeds
        ]

    def _extractor(self, arrays: Sequence[tuple[int, Array]], sample: int) -> Any:
        """Returns the ncnn object that computes the answer to one sample."""
        extractor = self._net.create_extractor()
        for blob, rows in arrays:
            row = rows[sample]
            mat, view = self._given.get(blob, (None, _NOTHING))
            if view.shape != row.shape:
                mat, view = self._given[blob] = _array_for(row)
            view[...] = row
            extractor.input(blob, mat)
        return extractor

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        arrays = self._arrays(inputs)
        count = len(arrays[0][1])
        if count == 1:
            alone = self._rows(self._extractor(arrays, 0))
            return named(self._names, [row[np.newaxis] for row in alone])
        return self._joined([self._rows(self._extractor(arrays, i)) for i in range(count)])

    def _rows(self, extractor: Any) -> list[Array]:
        """Returns one sample's answers."""
        rows = []
        for blob in self._fetches:
            code, mat = extractor.extract(blob)
            if code != 0 or mat.empty():
                raise ValueError(f"ncnn returned error {code}")
            rows.append(np.array(mat))  # takes a fifth of the time of mat.numpy().copy()
        return rows

    def _joined(self, answers: Sequence[Sequence[Array]]) -> Outputs:
        return named(self._names, [np.stack(rows) for rows in zip(*answers, strict=True)])

    def infer_by_layers(self, batch: Batch, step: Step) -> Outputs:
        """Runs a batch and returns the answers. Calls `step` for each layer that computes, once per sample."""
        arrays, answers = self._arrays(self._in_file(batch.inputs)), []
        for sample in range(batch.size):
            extractor = self._extractor(arrays, sample)
            # Light mode would free blobs that are read later.
            extractor.set_light_mode(False)
            for index, tops in enumerate(kernels_of(self._layers, self._blobs)):
                step(extractor, index, tops)
            answers.append(self._rows(extractor))
        return self._joined(answers)

    def network(self, batch: Batch) -> Network:
        shapes: dict[str, tuple[int, ...]] = {}

        def step(extractor: Any, _index: int, tops: Sequence[tuple[str, int]]) -> None:
            for name, blob in tops:
                shapes[name] = shape_of(extractor.extract(blob)[1])

        self.infer_by_layers(batch, step)
        macs = ncnn_file.multiplications(self._layers, shapes)
        weights = list(ncnn_file.weight_types(self._layers))
        strides = ncnn_file.strides_of(self._layers)
        return Network(weights, strides, None if macs is None else macs * batch.size)

    @property
    def layers(self) -> Sequence[ncnn_file.Layer]:
        return self._layers

    @property
    def output_names(self) -> tuple[str, ...]:
        return self._names

    def describe(self) -> Mapping[str, object]:
        requested = self._option["precision"]
        return {
            "framework": f"ncnn {ncnn.__version__}",
            "device": "cpu",
            "precision": precision(
                ncnn_file.weight_types(self._layers),
                [spec.dtype for spec in self._inputs],
                number_type(requested),
            ),
            "threads": self._net.opt.num_threads,
            "math_library": "ncnn",
        }


def _array_for(row: Array) -> tuple[Any, Array]:
    """Returns an ncnn array in the shape of the row, and the memory of this array as a NumPy array.

    The row is copied, because layers that work in place read a reference counter, which the memory of a NumPy array
    lacks.
    """
    mat = ncnn.Mat(row).clone()
    return mat, np.asarray(mat).view(row.dtype)


def _array_type(dtype: str) -> "np.dtype[np.float32] | np.dtype[np.int32]":
    """Returns the type of ncnn's array for an input in the manifest. Raises a ValueError if ncnn has no such type."""
    kind = np.dtype(dtype)
    if kind == _REAL:
        return _REAL
    if kind.kind in "iu" and kind.itemsize >= _INTEGER.itemsize:
        return _INTEGER
    raise ValueError(
        f"ncnn takes float32, int32 and int64 inputs, not {dtype}: declare one of these types"
    )


_: type[Backend] = NcnnBackend
