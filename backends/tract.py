"""Runs ONNX and NNEF files on tract."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import tract

from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.native import tract_file
from harness.backends.parts.native.tract_calls import Network, network_of
from harness.backends.parts.native.tract_kernels import TractProfiler
from harness.core.formats.onnx_tensors import initializers
from harness.core.formats.protobuf import onnx_origin
from harness.core.number_types import number_type, precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import Array, Backend, Batch, Outputs, TensorSpec, declared_shape

_TYPES = {
    "BOOL": "bool",
    **{f"{kind}{bits}": f"{name}{bits}"
       for kind, name in {"U": "uint", "I": "int", "F": "float"}.items()
       for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Maps tract's name for a number type to NumPy's."""


_BATCH = "batch"
"""Name given to a batch that has no name in the file."""


class TractBackend(FrameworkBackend):
    """Three networks, all prepared from the same file. One network serves batches of one sample, one serves batches of
    the largest size, and one, with an open size, serves all other batches.

    tract chooses better kernels if it knows the batch size. With a known size, a batch of one digit image is computed
    twice as fast as with an open size. Each network except the largest is prepared when its first batch arrives.
    tract's Python package always computes on one thread.

    precision: f16 converts weights and activations; inputs and outputs keep their types.
    """

    name = "tract"
    title = "tract"
    formats = ("onnx", "nnef")
    options: ClassVar[Choices] = {"precision": ("f32", "f16")}

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._plans: dict[int | None, Network] = {}
        self._symbol = ""
        own_names = tract_file.output_names(self._path)
        model = self._model(None)
        facts = model.input_facts()
        inputs = tuple(_spec(model.input_name(i), fact) for i, fact in enumerate(facts))
        is_half = self._option["precision"] == "f16"
        self._widens = is_half
        self._takes = [(s.name, np.dtype(_computed(s.dtype, is_half=is_half))) for s in inputs]
        self._symbol = _batch_symbol(inputs)
        names = tuple(model.output_name(i) for i in range(model.output_count()))
        self._names = own_names if len(own_names) == len(names) else names
        self._plan(self._setup.max_batch)
        return inputs, self._names

    def _model(self, size: int | None) -> Any:
        """Reads the file again, because tract modifies a network while preparing it, and cannot copy it. size: the
        batch size.
        """
        try:
            if tract_file.is_nnef(self._path):
                return self._sized(_nnef().load(self._path), size)
            return self._of_onnx(self._path, size)
        except tract.TractError as e:
            model = self._with_declared_sizes(size)
            if model is None:
                raise ValueError(_words(e)) from None
            return model

    def _of_onnx(self, path: Path, size: int | None, *, declared: bool = False) -> Any:
        model = tract.onnx().load(path)
        self._complete(model, size, declared=declared)
        return self._sized(model.into_model(), size)

    def _with_declared_sizes(self, size: int | None) -> Any | None:
        """Reads the file with the manifest's sizes in place of open sizes; returns None if tract still cannot read it.

        The inner shapes in the file are omitted, because they may contradict these sizes; tract computes them again.
        """
        if tract_file.is_nnef(self._path):
            return None
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            try:
                tract_file.write_without_shapes(self._path, path)
                return self._of_onnx(path, size, declared=True)
            except (OSError, ValueError, tract.TractError):
                return None

    def _sized(self, model: Any, size: int | None) -> Any:
        """Sets the batch size wherever the batch's name remains."""
        if size is not None and self._symbol:
            model.transform(tract.SetSymbols({self._symbol: size}))
        return model

    def _complete(self, model: Any, batch: int | None, *, declared: bool) -> None:
        """Gives a unique name to each open size that has no real name, because tract would treat 0 as a size of 0, and
        equal names as equal sizes.

        declared: the manifest's sizes replace open ones.
        """
        specs = {self._setup.names.get(s.name, s.name): s for s in self._setup.inputs}
        for index in range(model.input_count()):
            name = model.input_name(index)
            *sizes, dtype = str(model.input_fact(index)).split(",")
            own = specs.get(name)
            shape = [] if own is None else [s if isinstance(s, int) else None for s in own.shape]
            if ".." in sizes:
                if own is None:
                    raise ValueError(
                        f"input {name!r} has no shape: export the model with one, or name a manifest"
                    )
                sizes = [str(size or "?") for size in shape]
            if declared and len(shape) == len(sizes):
                sizes = [
                    str(size) if size and not of_file.isdecimal() else of_file
                    for size, of_file in zip(shape, sizes, strict=True)
                ]
            named = [
                _named_size(size, index, axis, self._symbol, batch)
                for axis, size in enumerate(_shape(sizes))
            ]
            if named != sizes or declared:
                model.set_input_fact(index, ",".join([*named, dtype]))

    def _plan(self, size: int) -> Network:
        """Returns the network for a batch, and prepares it first if necessary."""
        key = size if self._symbol and size in (1, self._setup.max_batch) else None
        if key not in self._plans:
            self._plans[key] = self._made(key)
        return self._plans[key]

    def _made(self, size: int | None) -> Network:
        model = self._model(size)
        try:
            if self._option["precision"] == "f16":
                wide, narrow = tract.DatumType.F32, tract.DatumType.F16
                model.transform(tract.FloatPrecision(wide, narrow))
            return network_of(model.into_runnable())
        except tract.TractError as e:
            raise ValueError(_words(e)) from None

    def profiler(self) -> Profiler:
        if tract_file.is_nnef(self._path):
            raise ConfigError(
                "tract names operations after nodes only for an ONNX file: pass --backend-option format=onnx"
            )
        return TractProfiler(TractBackend(self._setup), tract.version())

    def __exit__(self, *exc: object) -> None:
        del self._plans

    def _arrays(self, inputs: Mapping[str, Array]) -> list[Array]:
        return [np.asarray(inputs[name], dtype, "C") for name, dtype in self._takes]

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        arrays = self._arrays(inputs)
        try:
            rows = self._plan(len(arrays[0])).run(arrays)
        except tract.TractError as e:
            raise ValueError(_words(e)) from None
        return named(self._names, [*map(_widened, rows)] if self._widens else rows)

    @property
    def path(self) -> Path:
        return self._path

    def profile_json(self, batch: Batch) -> str:
        """Returns the report of tract's own profiler, which repeats the network for several seconds."""
        arrays = self._arrays(self._in_file(batch.inputs))
        return str(self._plan(batch.size).runnable.profile_json(arrays))

    def describe(self) -> Mapping[str, object]:
        weights = () if tract_file.is_nnef(self._path) else initializers(self._path)
        computes_in = number_type(self._option["precision"])
        return {
            "framework": f"tract {tract.version()}",
            "device": "cpu",
            "precision": precision(
                [(tensor.shape, tensor.dtype) for tensor in weights if tensor.dtype],
                [spec.dtype for spec in self._inputs],
                computes_in,
            ),
            "threads": 1,
            "math_library": "tract-linalg",
            **onnx_origin(self._path),
        }


def _nnef() -> Any:
    """Returns tract's NNEF reader with every operator that tract can write."""
    reader = tract.nnef().with_tract_extra().with_tract_transformers()
    return reader.with_onnx().with_pulse().with_extended_identifier_syntax()


def _spec(name: str, fact: Any) -> TensorSpec:
    try:
        kind = tract.DatumType(fact.datum_type()).name
    except ValueError:
        kind = ""
    if kind not in _TYPES:
        raise ConfigError(
            f"input {name!r} has a number type that tract's Python package cannot fill: export it as float32"
        )
    return TensorSpec(name, _TYPES[kind], _shape(map(str, fact.dims())))


def _shape(sizes: Iterable[str]) -> tuple[int | str | None, ...]:
    """Returns a shape that tract reports as strings."""
    return declared_shape(int(size) if size.isdecimal() else size for size in sizes)


def _named_size(
    size: int | str | None, index: int, axis: int, symbol: str, batch: int | None
) -> str:
    """Returns an input's size for tract, as a number or a name. batch: the size that replaces `symbol`; None keeps the
    symbol.
    """
    if batch is not None and not axis and size in (symbol, None):
        return str(batch)
    if size is None:
        return f"size_{index}_{axis}" if axis else _BATCH
    return str(size)


def _computed(dtype: str, *, is_half: bool) -> str:
    return "float16" if dtype == "float32" and is_half else dtype


def _widened(rows: Array) -> Array:
    """Returns the rows in the number type that the file uses."""
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _batch_symbol(inputs: tuple[TensorSpec, ...]) -> str:
    """Returns the name of the open batch; '' if the file fixes the batch, or if the inputs use different names."""
    names = {spec.shape[0] for spec in inputs if spec.shape}
    only = names.pop() if len(names) == 1 else None
    return only if isinstance(only, str) and only.isidentifier() else ""


def _words(error: Exception) -> str:
    """Returns the message without the addresses of tract's functions."""
    return str(error).partition("Stack backtrace:")[0].strip()


_: type[Backend] = TractBackend
