"""Runs TorchScript files and exported programs on PyTorch."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

# Without this setting, torch.export.load may fall back to full unpickling, which runs code from the file.
os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

import torch
from torch.utils._pytree import tree_map_only

from harness.backends.parts.exported import check_is_data
from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.torch_cuda import (
    CudaModule,
    capturing,
    move,
    opened_device,
    reason,
    take_rows,
)
from harness.backends.parts.torch_network import recording, weights_of
from harness.core.number_types import precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import (
    OTHER_NAMES,
    Array,
    Backend,
    BackendSetup,
    Batch,
    Network,
    Outputs,
    TensorSpec,
    declared_shape,
    fixed_batch,
)

_EXPECTED_WARNINGS = (
    "The given buffer is not writable",  # a warning that torch.export.load prints
    # The array is a read-only view of the dataset, but this code does not write to its input.
    "The given NumPy array is not writable",
    r"`torch\.jit\.",  # TorchScript is deprecated, but many models are published in it
    "TensorFloat32 tensor cores",  # the user chooses TensorFloat32 with precision=tf32
    # This mode is used before a capture, to find modules that wait for the GPU.
    "Synchronization debug mode is a prototype",
)

_PRECISIONS = {
    "f32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}
"""The default, f32, leaves a model unchanged."""

_OF_GPUS: Choices = {
    "cuda_graph": ("auto", "off", "on"),
    "spinning": ("auto", "off", "on"),
    "autotune": ("off", "on"),
}

_LAYOUTS = {"default": None, "channels-last": torch.channels_last}
_IMAGE_DIMS = 4

_QUANTISED = "quantized::"
"""Prefix of TorchScript's int8 operators, whose weights are not in the module's state."""

_FILE_OPERATORS = ("aten::from_file", "aten::save")
"""TorchScript operators that read or write files."""


@dataclass(frozen=True, weakref_slot=True, slots=True)
class _Loaded:
    """A model file loaded into the memory of a device."""

    module: Any
    weights: Sequence[tuple[tuple[int, ...], str]]
    quantised: bool
    compiler: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]


_shared: WeakValueDictionary[tuple[object, ...], _Loaded] = WeakValueDictionary()
"""The models that several instances share on a GPU to save memory."""


class TorchBackend(FrameworkBackend):
    """A TorchScript file (.pt) or a torch.export program (.pt2).

    compile: `on` freezes TorchScript and fuses it with TorchScript's compiler. For an exported program, `on` compiles
    with Inductor (torch.compile), which needs a C++ compiler.
    precision: the type to which weights and activations are converted. Inputs and outputs keep their types. On a GPU,
    tf32 rounds float32 numbers in matrix products to a mantissa of 10 bits, as PyTorch does in convolutions by default,
    and f32 does not round.
    layout: channels-last stores images as NHWC, the layout that a GPU's matrix units use.
    autotune: on a GPU, cuDNN tries its kernels for each shape of a convolution during the warm-up.
    cuda_graph: whether each batch shape is launched as one graph. With auto, graphs are used if only the batch has an
    open size.
    spinning: whether the thread that waits for the GPU polls. With auto, the thread polls if the instance has a spare
    core.

    On a GPU, the instances of a process share their weights, and each instance uses a separate stream.
    torch.set_num_threads applies to the whole process. Each instance computes with the number of threads that
    torch.set_num_threads has set, including the calling thread. In both formats, a single output has no name. If the
    method returns several outputs but no dict, they are named `output_0`, `output_1` and so on.
    """

    name = "torch"
    title = "PyTorch"
    formats = ("torchscript", "torch-export")
    options: ClassVar[Choices] = {
        "compile": ("off", "on"),
        "precision": tuple(_PRECISIONS),
        "layout": ("default", "channels-last"),
        **_OF_GPUS,
    }
    devices = ("cpu", "cuda")

    _module: Any
    _weights: Sequence[tuple[tuple[int, ...], str]]

    def _problems(self, setup: BackendSetup) -> Iterator[str]:
        yield from super()._problems(setup)
        if setup.device != "cpu":
            if setup.batch_axes is not None:
                yield (
                    f"--device {setup.device}: backend {self.name!r} supports states and other "
                    "batch axes only on the CPU: drop --device"
                )
            return
        for name in _OF_GPUS:
            if name in setup.options:
                yield f"--backend-option {name} is for GPUs: drop it, or add --device cuda"
        if setup.options.get("precision") == "tf32":
            yield "--backend-option precision=tf32 is for GPUs: drop it, or add --device cuda"

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._device = opened_device(self._setup.device)
        if self._device.type == "cpu":
            return self._load_on_device()
        try:
            with capturing:
                return self._load_on_device()
        except RuntimeError as e:
            raise RuntimeError(reason(e, self._device)) from e

    def _load_on_device(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        for text in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", text)
        torch.set_num_threads(self._setup.threads)
        self._dtype = _PRECISIONS[self._option["precision"]]
        self._format = _LAYOUTS[self._option["layout"]]
        names = tuple(self._setup.names.items())
        key = (
            type(self),
            self._device,
            self._path,
            self._setup.inputs,
            names,
            *self._option.items(),
        )
        shared = None if self._device.type == "cpu" else _shared.get(key)
        if shared is None:
            self._compiler = "none"
            self._quantised = self._changes_itself = False
            exported = self._path.suffix == ".pt2"
            inputs, outputs = self._load_exported() if exported else (self._load_script(), ())
            shared = _Loaded(
                self._module, self._weights, self._quantised, self._compiler, inputs, outputs
            )
            if self._device.type != "cpu":
                torch.cuda.synchronize(
                    self._device
                )  # waits, because the instances' streams would not wait for the conversions
                if not self._changes_itself:
                    _shared[key] = shared
        self._loaded = shared
        self._module, self._weights = shared.module, shared.weights
        self._quantised, self._compiler = shared.quantised, shared.compiler
        self._feeds = [spec.name for spec in shared.inputs]
        self._on_gpu = None if self._device.type == "cpu" else self._gpu(shared.inputs)
        if self._on_gpu is not None:
            self.buffers, self.take = self._buffers, take_rows  # set only on a GPU, see HasBuffers
        return shared.inputs, shared.outputs

    def _gpu(self, inputs: Sequence[TensorSpec]) -> CudaModule:
        tf32 = self._option["precision"] == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = self._option["autotune"] == "on"
        closed = all(isinstance(size, int) for spec in inputs for size in spec.shape[1:])
        graphs, spinning = self._option["cuda_graph"], self._option["spinning"]
        return CudaModule(
            self._call,
            self._device,
            largest=max(self._setup.max_batch, fixed_batch(inputs) or 1),
            graphs=graphs == "on" or (graphs == "auto" and closed),
            spins=spinning == "on" or (spinning == "auto" and self._setup.threads > 1),
        )

    def _load_script(self) -> tuple[TensorSpec, ...]:
        module = torch.jit.load(self._path, map_location=self._device).eval()
        operators = str(module.inlined_graph)
        files = [op for op in _FILE_OPERATORS if op in operators]
        if files:
            raise ConfigError(
                f"{self._path} calls {files[0]}, which reads or writes files: a model file may only "
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
                f"but the file's are {sorted(arguments)}: {OTHER_NAMES}"
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
        if self._device.type != "cpu":
            program = move(program, self._device)
        names = program.graph_signature.user_inputs
        tensors = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
        returned = program.call_spec.out_spec
        self._changes_itself = bool(program.graph_signature.buffers_to_mutate)
        self._read(program)
        module = self._converted(program.module().to(self._device))
        if self._option["compile"] == "on":
            module = torch.compile(module, dynamic=True)
            self._compiler = "Inductor"
        self._module = module
        outputs = tuple(returned.context) if returned.type is dict else ()
        return tuple(_spec(name, tensors[name]) for name in names), outputs

    def _read(self, model: Any) -> None:
        """Does nothing; the profiling twin overrides this method to keep the file's module or exported program."""

    def profiler(self) -> Profiler:
        from harness.backends.parts.torch_kernels import TorchProfiler

        if self._option["compile"] == "on":
            raise ConfigError(
                "PyTorch's profiler does not record the kernels that its compilers generate: drop "
                "--backend-option compile=on"
            )
        setup = self._setup
        if setup.device != "cpu":  # on a GPU, a CUDA graph would hide the operators
            setup = replace(setup, options={**setup.options, "cuda_graph": "off"})
        return TorchProfiler(_Recorded(setup))

    def _converted(self, module: Any) -> Any:
        """Returns the module in the requested precision. Records the shapes and types of the file's weights."""
        self._weights = weights_of(module)
        if self._dtype is not torch.float32:
            module = module.to(self._dtype)
        return module if self._format is None else module.to(memory_format=self._format)

    def network(self, batch: Batch) -> Network:
        """Returns the network. For a compiled module, which hides its operators, only the weights are known."""
        if self._compiler != "none":
            return Network(self._weights, None, None)
        with recording() as recorder:
            inputs = self._in_file(batch.inputs)
            self._call(*[torch.from_numpy(inputs[n]).to(self._device) for n in self._feeds])
        return Network([*self._weights, *recorder.weights], recorder.strides, recorder.macs)

    def __exit__(self, *exc: object) -> None:
        del self._module, self._loaded, self._on_gpu

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        rows = [inputs[name] for name in self._feeds]
        if self._on_gpu is not None:
            try:
                outputs = self._on_gpu.answer(rows)
            except RuntimeError as e:
                raise RuntimeError(reason(e, self._device)) from e
        else:
            with torch.inference_mode():
                outputs = self._call(*map(torch.from_numpy, rows))
        if isinstance(outputs, torch.Tensor):
            return _array(outputs)
        if isinstance(outputs, Mapping):
            return {name: _array(_tensor(one)) for name, one in outputs.items()}
        arrays = [_array(tensor) for tensor in _tensors([outputs])]
        return named([f"output_{n}" for n in range(len(arrays))], arrays)

    def _buffers(self, size: int) -> Mapping[str, Array] | None:
        views = self._on_gpu.buffers(size) if self._on_gpu is not None else None
        if views is None or self._fixed not in (None, size):
            return None
        of_file = self._of_file(are_inputs=True)
        return {of_file.get(n, n): view for n, view in zip(self._feeds, views, strict=True)}

    def _call(self, *tensors: torch.Tensor) -> Any:
        """Calls the module. Types and layout are converted within the call, so that inputs and outputs keep the file's
        types.
        """
        if self._dtype is torch.float32 and self._format is None:
            return self._module(*tensors)
        return tree_map_only(torch.Tensor, self._widened, self._module(*map(self._fed, tensors)))

    def _fed(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        images = self._format is not None and tensor.dim() == _IMAGE_DIMS
        return tensor.to(dtype, memory_format=self._format if images else torch.preserve_format)

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a converted tensor as float32 (NumPy lacks bfloat16), with rows in the usual order."""
        narrowed = self._dtype is not torch.float32 and tensor.dtype == self._dtype
        return (tensor.float() if narrowed else tensor).contiguous()

    def _precision(self) -> str:
        if self._quantised:
            return "int8"
        converted = None if self._dtype is torch.float32 else str(self._dtype)
        computes_in = precision(self._weights, [spec.dtype for spec in self._inputs], converted)
        is_tf32 = self._option["precision"] == "tf32" and computes_in == "float32"
        return "tf32" if is_tf32 else computes_in

    @property
    def tunable(self) -> Choices:
        images = any(len(spec.shape) == _IMAGE_DIMS for spec in self._inputs)
        return {"compile": ("on",), **({"layout": ("channels-last",)} if images else {})}

    def describe(self) -> Mapping[str, object]:
        gpu = self._on_gpu
        return {
            "framework": f"torch {torch.__version__}",
            "device": "cpu" if gpu is None else torch.cuda.get_device_name(self._device),
            "precision": self._precision(),
            "compile": self._compiler,
            "layout": self._option["layout"],
            "threads": torch.get_num_threads(),
            "threads_of": "the process",
            "math_library": "oneDNN, MKL" if torch.backends.mkl.is_available() else "oneDNN",
            **({} if gpu is None else {**gpu.describe(), "autotune": self._option["autotune"]}),
        }

    def used(self) -> Mapping[str, object]:
        return {} if self._on_gpu is None else self._on_gpu.used()


class _Recorded(TorchBackend):
    """A second instance for profiling, which keeps the file's module and can wrap the module that it calls."""

    def _read(self, model: Any) -> None:
        self.file = model
        self.dtype = self._dtype
        self.on_gpu = self._device.type != "cpu"

    def mark(self, around: Callable[[Any], Any]) -> None:
        self._module = around(self._module)


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested tuples, lists and dicts in order, e.g. in an LSTM's (output, (h, c))."""
    for one in outputs.values() if isinstance(outputs, Mapping) else outputs:
        if isinstance(one, Mapping | list | tuple):
            yield from _tensors(one)
        else:
            yield _tensor(one)


def _tensor(output: Any) -> torch.Tensor:
    if not isinstance(output, torch.Tensor):
        raise ConfigError(
            f"an output is a {type(output).__name__}: export the model with tensors only"
        )
    return output


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.numpy()
    return array


def _spec(name: str, tensor: Any) -> TensorSpec:
    """Returns a specification. tensor: the fake tensor of torch.export; its open sizes are symbols."""
    shape = declared_shape(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape)


_: type[Backend] = TorchBackend
