"""Runs TorchScript files and exported programs on PyTorch."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

# torch.export.load falls back to a full unpickling, which runs code from the file; this forbids it.
os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

import torch

from harness.backends.parts.exported import check_is_data
from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.torch_network import recording, weights_of
from harness.core.number_types import precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import (
    OTHER_NAMES,
    Array,
    Backend,
    Batch,
    Network,
    Outputs,
    TensorSpec,
    declared_shape,
)

_EXPECTED_WARNINGS = (
    "The given NumPy array is not writable",  # a dataset's view; nothing here writes to its input
    r"`torch\.jit\.",  # TorchScript is deprecated, but many models are published in it
)

_PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
"""The default, f32, leaves a model unchanged."""

_QUANTISED = "quantized::"
"""Prefix of TorchScript's int8 operators, whose weights are not in the module's state."""

_FILE_OPERATORS = ("aten::from_file", "aten::save")
"""TorchScript's operators that read or write files."""


class TorchBackend(FrameworkBackend):
    """A TorchScript file (.pt), or a program of torch.export (.pt2).

    compile: `on` freezes and fuses TorchScript with its own compiler, and an exported program with
    Inductor (torch.compile), which needs a C++ compiler.
    precision: the type that weights and activations are converted to; inputs and outputs keep theirs.
    torch.set_num_threads holds for the process: each instance computes with that many threads, its own
    included. Neither format names a single output; of several outputs the n-th is called `output_n`,
    unless the model returns a dict.
    """

    name = "torch"
    title = "PyTorch"
    formats = ("torchscript", "torch-export")
    options: ClassVar[Choices] = {"compile": ("off", "on"), "precision": tuple(_PRECISIONS)}
    tunable: ClassVar[Choices] = {"compile": ("on",)}
    devices = ("cpu", "cuda")

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._device = _device(self._setup.device)
        for text in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", text)
        torch.set_num_threads(self._setup.threads)
        self._compiler = "none"
        self._quantised = False
        self._dtype = _PRECISIONS[self._option["precision"]]
        exported = self._path.suffix == ".pt2"
        inputs, outputs = self._load_exported() if exported else (self._load_script(), ())
        self._feeds = [spec.name for spec in inputs]
        return inputs, outputs

    def _load_script(self) -> tuple[TensorSpec, ...]:
        module = torch.jit.load(self._path, map_location=self._device).eval()
        operators = str(module.inlined_graph)
        files = [op for op in _FILE_OPERATORS if op in operators]
        if files:
            raise ConfigError(
                f"{self._path}: it calls {files[0]}, which reads or writes files: a model file may only "
                "compute, so this file is not loaded"
            )
        arguments = [a.name for a in module.forward.schema.arguments[1:]]
        names = self._setup.names
        declared = {names.get(spec.name, spec.name): spec for spec in self._setup.inputs}
        if not declared:
            raise ConfigError(
                f"{self._path}: a TorchScript file does not record the shapes of its inputs: name a "
                f"manifest that declares {', '.join(arguments)}, or export the model as .pt2"
            )
        if set(arguments) != set(declared):
            raise ConfigError(
                f"model {self._setup.model_name!r}: the manifest's inputs are {sorted(declared)}, "
                f"the file's are {sorted(arguments)}: {OTHER_NAMES}"
            )
        self._read(module)
        self._quantised = _QUANTISED in operators
        module = self._converted(module)
        if self._option["compile"] == "on":
            module = torch.jit.optimize_for_inference(torch.jit.freeze(module))
            self._compiler = "TorchScript"
        self._module = module
        return tuple(declared[name]._replace(name=name) for name in arguments)

    def _load_exported(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        check_is_data(self._path)
        program = torch.export.load(self._path)
        names = program.graph_signature.user_inputs
        tensors = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
        returned = program.call_spec.out_spec
        self._read(program)
        module = self._converted(program.module().to(self._device))
        if self._option["compile"] == "on":
            module = torch.compile(module, dynamic=True)
            self._compiler = "Inductor"
        self._module = module
        outputs = tuple(returned.context) if returned.type is dict else ()
        return tuple(_spec(name, tensors[name]) for name in names), outputs

    def _read(self, model: Any) -> None:
        """Called with the file's module or exported program, which the profiled twin keeps."""

    def profiler(self) -> Profiler:
        from harness.backends.parts.torch_kernels import TorchProfiler

        if self._option["compile"] == "on":
            raise ConfigError(
                "PyTorch's profiler does not record the kernels that its compilers generate: drop "
                "--backend-option compile=on"
            )
        if self._device.type != "cpu":
            raise ConfigError("only kernels of the CPU can be profiled: drop --device cuda")
        return TorchProfiler(_Recorded(self._setup))

    def _converted(self, module: Any) -> Any:
        """The module in the requested precision; records the weights' shapes and types in the file."""
        self._weights = weights_of(module)
        return module if self._dtype is torch.float32 else module.to(self._dtype)

    def network(self, batch: Batch) -> Network:
        """A compiled module hides its operators, so only its weights are known."""
        if self._compiler != "none":
            return Network(self._weights, None, None)
        with recording() as recorder:
            inputs = self._in_file(batch.inputs)
            self._module(*[self._to_tensor(inputs[name]) for name in self._feeds])
        return Network([*self._weights, *recorder.weights], recorder.strides, recorder.macs)

    def __exit__(self, *exc: object) -> None:
        del self._module

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        with torch.inference_mode():
            outputs = self._module(*[self._to_tensor(inputs[name]) for name in self._feeds])
        if isinstance(outputs, torch.Tensor):
            return self._to_array(outputs)
        if isinstance(outputs, Mapping):
            return {name: self._to_array(_tensor(one)) for name, one in outputs.items()}
        tensors = list(_tensors([outputs]))
        names = [f"output_{n}" for n in range(len(tensors))]
        return named(names, [self._to_array(tensor) for tensor in tensors])

    def _to_tensor(self, rows: Array) -> torch.Tensor:
        tensor = torch.from_numpy(rows).to(self._device)
        converts = self._dtype is not torch.float32 and tensor.is_floating_point()
        return tensor.to(self._dtype) if converts else tensor

    def _to_array(self, tensor: torch.Tensor) -> Array:
        """A converted type becomes float32 again: NumPy has no bfloat16."""
        narrowed = self._dtype is not torch.float32 and tensor.dtype == self._dtype
        array: Array = (tensor.float() if narrowed else tensor).cpu().numpy()
        return array

    def _precision(self) -> str:
        if self._quantised:
            return "int8"
        converted = None if self._dtype is torch.float32 else str(self._dtype)
        return precision(self._weights, [spec.dtype for spec in self._inputs], converted)

    def describe(self) -> Mapping[str, object]:
        cuda = self._device.type == "cuda"
        return {
            "framework": f"torch {torch.__version__}",
            "device": torch.cuda.get_device_name(self._device) if cuda else "cpu",
            "precision": self._precision(),
            "compile": self._compiler,
            "threads": torch.get_num_threads(),
            "threads_of": "the process",
            "math_library": "oneDNN, MKL" if torch.backends.mkl.is_available() else "oneDNN",
        }


class _Recorded(TorchBackend):
    """A profiled twin: keeps the file's module, and can wrap the module that it calls."""

    def _read(self, model: Any) -> None:
        self.file = model
        self.dtype = self._dtype

    def mark(self, around: Callable[[Any], Any]) -> None:
        self._module = around(self._module)


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested tuples, lists and dicts in their order, e.g. of an LSTM's (output, (h, c))."""
    for one in outputs.values() if isinstance(outputs, Mapping) else outputs:
        if isinstance(one, Mapping | list | tuple):
            yield from _tensors(one)
        else:
            yield _tensor(one)


def _tensor(output: Any) -> torch.Tensor:
    if not isinstance(output, torch.Tensor):
        raise ConfigError(
            f"an output is a {type(output).__name__}: export the model with tensors alone"
        )
    return output


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device cuda: PyTorch {torch.__version__} sees no CUDA device: is the driver installed, "
            "and PyTorch a CUDA build?"
        )
    return torch.device(name)


def _spec(name: str, tensor: Any) -> TensorSpec:
    """tensor: the fake tensor of torch.export, whose free sizes are symbols."""
    shape = declared_shape(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape)


_: type[Backend] = TorchBackend
