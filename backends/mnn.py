"""Runs .mnn files on MNN."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.native import mnn_file
from harness.backends.parts.native.arithmetic import check_differs
from harness.backends.parts.native.mnn_kernels import MnnProfiler
from harness.backends.parts.native.printed import stdout_to_stderr
from harness.core.number_types import number_type, precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import Array, Backend, Batch, Network, Outputs, TensorSpec, declared_shape

with stdout_to_stderr():  # because the import prints what the processor supports
    import MNN

_PRECISIONS = {"f32": "high", "f16": "low", "bf16": "lowBF"}
"""Maps a number type to MNN's name. MNN computes in float32 if the processor does not support the type."""

_TYPES: Mapping[str, Any] = {
    "float32": MNN.Halide_Type_Float,
    "float64": MNN.Halide_Type_Double,
    "int32": MNN.Halide_Type_Int,
    "int64": MNN.Halide_Type_Int64,
    "uint8": MNN.Halide_Type_Uint8,
}

_ERRORS = {
    1: "out of memory",
    2: "an operation is not supported",
    3: "the shapes do not fit the operations",
    4: "an operation has no kernel",
    5: "an invalid value",
}
"""Maps MNN's error codes to their meanings."""

_PRODUCTS = ("Convolution", "ConvolutionDepthwise")
"""Types of operations whose multiplications MNN counts, in millions."""

_HIDDEN = (
    "While",
    "If",
    "MatMul",
    "BatchMatMul",
    "Attention",
    "LSTM",
    "LSTMBlockCell",
    "RNN",
    "RNNSequenceGRU",
)
"""Types of operations whose multiplications MNN does not count. MNN converts matrix products without weights to a loop
(`While`).
"""

_MILLION = 1_000_000

_OPEN_SIZE = 8
"""Until the first batch arrives, a dimension that the file leaves open gets this size."""


class _Port(NamedTuple):
    """An input or output of the session."""

    name: str
    tensor: Any
    dtype: str
    kind: Any
    """MNN's object for the number type of the values."""
    layout: Any
    """Memory order of a NumPy array that holds the values. MNN itself may pack four channels together."""


class MnnBackend(FrameworkBackend):
    """One interpreter with one session, which is resized when the shapes of a batch change.

    precision: the number type of the computation. MNN always computes in int8 if the file quantises both weights and
    activations; it expands other packed weights when it loads the model. MNN's converter writes 1 for an open batch. If
    the file has a batch of 1 but the network also accepts a batch of 2, the batch counts as open.
    """

    name = "mnn"
    title = "MNN"
    formats = ("mnn",)
    options: ClassVar[Choices] = {"precision": tuple(_PRECISIONS)}

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._file = mnn_file.read(self._path)
        with stdout_to_stderr():
            self._interpreter = MNN.Interpreter(str(self._path))
            inputs = self._open("f32")
            if (requested := self._option["precision"]) != "f32":
                self._check_precision(requested, inputs)
        return inputs, self._names

    def _open(self, precision: str) -> tuple[TensorSpec, ...]:
        """Creates the session. Returns the inputs of the session."""
        config = {
            "backend": "CPU",
            "numThread": self._setup.threads,
            "precision": _PRECISIONS[precision],
        }
        session = create_session(self._interpreter, config)
        self._session = session
        feeds = {p.name: p for p in _ports(self._interpreter.getSessionInputAll(session))}
        self._feeds = [feeds.pop(name) for name in self._file.inputs if name in feeds]
        self._feeds += feeds.values()
        fetches = {p.name: p for p in _ports(self._interpreter.getSessionOutputAll(session))}
        # If the file lists outputs, any other tensors that no operation reads are leftovers of the converter.
        names = [name for name in self._file.outputs if name in fetches] or list(fetches)
        self._fetches = [fetches[name] for name in names]
        self._names = tuple(names)
        self._shapes: list[tuple[int, ...]] = []
        self._hosts: list[Any] = []
        return self._specs()

    def _specs(self) -> tuple[TensorSpec, ...]:
        sizes = {port.name: self._sizes(port) for port in self._feeds}
        is_open = self._takes_two(sizes)
        return tuple(
            TensorSpec(
                port.name,
                self._given_type(port),
                declared_shape([None, *sizes[port.name][1:]] if is_open else sizes[port.name]),
            )
            for port in self._feeds
        )

    def _sizes(self, port: _Port) -> tuple[int, ...]:
        """Returns the sizes in the file, with -1 for an open size. If the file does not record the sizes, returns the
        session's sizes.
        """
        return self._file.inputs.get(port.name) or tuple(map(int, port.tensor.getShape()))

    def _given_type(self, port: _Port) -> str:
        """Returns the number type of the input rows. The type may be int64, because MNN's converter stores int64 as
        int32.
        """
        names = self._setup.names
        declared = {names.get(spec.name, spec.name): spec.dtype for spec in self._setup.inputs}
        wide = declared.get(port.name) == "int64" and port.dtype == "int32"
        return "int64" if wide else port.dtype

    def _takes_two(self, sizes: Mapping[str, tuple[int, ...]]) -> bool:
        """Returns whether the batch is open, that is, whether two samples get two answers. Resizes the session but does
        not compute.
        """
        if any(not shape or shape[0] > 1 for shape in sizes.values()):
            return False
        if all(shape[0] < 1 for shape in sizes.values()):
            return True
        self._resize([(2, *map(_some, shape[1:])) for shape in sizes.values()])
        return all(tuple(port.tensor.getShape())[:1] == (2,) for port in self._fetches)

    def _check_precision(self, requested: str, inputs: tuple[TensorSpec, ...]) -> None:
        exact, reduced = self._state(), self._reopened(requested)

        def answer(state: Mapping[str, Any], batch: Mapping[str, Array]) -> Outputs:
            vars(self).update(state)
            return self._answer(batch)

        check_differs(
            f"precision={requested}",
            self.title,
            inputs,
            lambda batch: answer(exact, batch),
            lambda batch: answer(reduced, batch),
        )

    def _state(self) -> dict[str, Any]:
        """Returns the attributes that belong to the session."""
        keys = ("_session", "_feeds", "_fetches", "_shapes", "_hosts")
        return {key: vars(self)[key] for key in keys}

    def _reopened(self, precision: str) -> dict[str, Any]:
        self._open(precision)
        return self._state()

    def profiler(self) -> Profiler:
        return MnnProfiler(MnnBackend(self._setup), MNN.version())

    def __exit__(self, *exc: object) -> None:
        del self._feeds, self._fetches, self._hosts, self._session, self._interpreter

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        # `_shapes` stays empty if a call below fails, so that the next batch resizes again.
        self._shapes = []
        for port, shape in zip(self._feeds, shapes, strict=True):
            self._interpreter.resizeTensor(port.tensor, shape)
        self._interpreter.resizeSession(self._session)
        self._hosts = [_host(port) for port in self._fetches]
        self._shapes = shapes

    def feed(self, inputs: Mapping[str, Array]) -> None:
        """Copies the rows into the session, and resizes the session if the shapes have changed."""
        shapes = [inputs[port.name].shape for port in self._feeds]
        if shapes != self._shapes:
            self._resize(shapes)
        for name, tensor, dtype, kind, layout in self._feeds:
            rows = np.ascontiguousarray(inputs[name], dtype)
            tensor.copyFrom(MNN.Tensor(rows.shape, kind, rows, layout))

    def fetch(self) -> Outputs:
        """Returns copies of the session's answers."""
        rows = []
        for port, host in zip(self._fetches, self._hosts, strict=True):
            port.tensor.copyToHostTensor(host)
            rows.append(np.array(host.getNumpyData()))
        return named(self._names, rows)

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        self.feed(inputs)
        check(self._interpreter.runSession(self._session))
        return self.fetch()

    def infer_with(self, batch: Batch, before: Any, after: Any) -> Outputs:
        """Runs a batch and returns the answers. MNN calls `before` and `after` around each operation, with the
        operation's tensors and description.
        """
        self.feed(self._in_file(batch.inputs))
        check(self._interpreter.runSessionWithCallBackInfo(self._session, before, after))
        return self.fetch()

    def network(self, batch: Batch) -> Network:
        if any(one.is_external for one in self._file.operations):
            raise ConfigError(
                f"the weights of {self._path.name} are in a second file, which this backend does not read"
            )
        counts: dict[str, list[float]] = {}

        def after(_tensors: Any, info: Any) -> bool:
            counts.setdefault(info.getType(), []).append(info.getFlops())
            return True

        self.infer_with(batch, lambda _tensors, _info: True, after)
        weights = [one.weights for one in self._file.operations if one.weights]
        strides = [one.strides for one in self._file.operations if one.strides]
        known = [count for kind in _PRODUCTS for count in counts.get(kind, ())]
        macs = None if counts.keys() & set(_HIDDEN) else round(sum(known) * _MILLION)
        return Network(weights, strides, macs)

    @property
    def file(self) -> mnn_file.MnnFile:
        return self._file

    @property
    def output_names(self) -> tuple[str, ...]:
        return self._outputs

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": f"MNN {MNN.version()}",
            "device": "cpu",
            "precision": precision(
                (one.weights for one in self._file.operations if one.weights),
                [spec.dtype for spec in self._inputs],
                number_type(self._option["precision"]),
            ),
            "threads": self._setup.threads,
            "math_library": "MNN",
        }


def create_session(interpreter: Any, config: Mapping[str, object]) -> Any:
    """Creates a session. `cold` replaces this function to time it, because MNN's own classes cannot be changed."""
    return interpreter.createSession(dict(config))


def check(code: int) -> None:
    """Raises a ValueError if the code of a run is an error."""
    if code != 0:
        raise ValueError(f"MNN's error {code}: {_ERRORS.get(code, 'unknown')}")


def _ports(tensors: Mapping[str, Any]) -> Iterable[_Port]:
    for name, tensor in tensors.items():
        kind = tensor.getDataType()
        dtype = next((name for name, one in _TYPES.items() if one == kind), "")
        if not dtype:
            raise ValueError(
                f"tensor {name!r} has a number type that MNN's Python interface does not name"
            )
        yield _Port(name, tensor, dtype, kind, _layout(tensor))


def _some(size: int) -> int:
    return size if size > 0 else _OPEN_SIZE


def _layout(tensor: Any) -> Any:
    """Returns the memory order of a NumPy array for the tensor. NumPy has no equivalent for MNN's packing of four
    channels.
    """
    kind = tensor.getDimensionType()
    packed = kind == MNN.Tensor_DimensionType_Caffe_C4
    return MNN.Tensor_DimensionType_Caffe if packed else kind


def _host(port: _Port) -> Any:
    """Returns a tensor in memory that NumPy can read, with the output's current shape."""
    shape = tuple(map(int, port.tensor.getShape()))
    zeros = np.zeros(shape, port.dtype)
    return MNN.Tensor(shape, port.kind, zeros, port.layout)


_: type[Backend] = MnnBackend
