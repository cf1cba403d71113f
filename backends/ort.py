"""Runs ONNX files on ONNX Runtime."""

import hashlib
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import ClassVar, NamedTuple

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoImplementation

from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.onnx_weights import SharedWeights, shared_weights, weight_types
from harness.core.extras import how_to_install
from harness.core.files import cache_dir, sha256
from harness.core.formats.onnx_tensors import external_data
from harness.core.formats.protobuf import mapped, onnx_opset, onnx_origin
from harness.core.number_types import ORT_ARRAYS, precision
from harness.errors import ConfigError, one_line
from harness.types import Array, Backend, Outputs, TensorSpec, declared_shape

_ERROR_LEVEL = 3
_UNREGISTERED = "is not a registered function/op"
"""ONNX Runtime's message about an unknown operator contains these words."""

_OLDEST_OPSET = 7
"""The oldest opset that ONNX Runtime guarantees to run."""

_CUDA, _TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": _CUDA}
_OF_GPUS = (_CUDA, _TENSORRT, "NvTensorRTRTXExecutionProvider")
_TENSORRT_TYPES = {
    "trt_int8_enable": "int8",
    "trt_fp16_enable": "float16",
    "trt_bf16_enable": "bfloat16",
}
"""Maps an option of TensorRT to the number type that the option permits."""

_GRAPH_LEVELS = {
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


class _Provider(NamedTuple):
    """An execution provider with its options."""

    name: str
    options: Mapping[str, str]

    def has(self, option: str) -> bool:
        return self.options.get(option, "0").lower() in ("1", "true")


class OrtBackend(FrameworkBackend):
    """One ONNX Runtime session.

    spinning: idle threads busy-wait, which lowers latency. With auto, they busy-wait only if no other thread uses the
    instance's cores (streams, --pin). With other threads on these cores, spinning takes five times the CPU between
    sparse queries and starves other instances.
    graph: the level of graph optimisation.
    arena: memory is kept between batches.
    io_binding: outputs stay in ONNX Runtime's memory, on a GPU in the GPU's memory, until they are copied out. With
    auto, this is done on a GPU.
    share_weights: the instances in this process share one copy of the weights. Kernels then read the weights in the
    file's layout, which can cost speed. Each instance still keeps a separate copy of the weights that the graph
    optimiser rewrites (Conv + BatchNormalization).

    Outputs that are not arrays (maps, sequences, bfloat16) are omitted; `describe` lists them.

    On a GPU, float32 is IEEE float32 also in matrix products, unless --provider-option use_tf32=1 is set. TensorRT has
    no such option and computes in TF32. The engines that TensorRT builds are kept in the cache folder, by model, version
    and options. Loading and the first batch of each new largest size include the time of a build.
    """

    name = "ort"
    title = "ONNX Runtime"
    formats = ("onnx",)
    options: ClassVar[Choices] = {
        "spinning": ("auto", "off", "on"),
        "graph": tuple(_GRAPH_LEVELS),
        "arena": ("on", "off"),
        "io_binding": ("auto", "off", "on"),
        "share_weights": ("off", "on"),
    }
    of_one_process = ("share_weights",)
    elastic = True
    devices = tuple(_PROVIDERS)
    has_providers = True

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._provider, *others = self._providers()
        provider = self._provider.name
        ort.set_default_logger_severity(_ERROR_LEVEL)
        self._weights: SharedWeights | None = None
        if self._option["share_weights"] == "on":
            self._weights = shared_weights(self._path)
        if provider != _PROVIDERS["cpu"]:
            # The framework prints the names of missing libraries.
            with redirect_stdout(sys.stderr):
                # This call loads CUDA and cuDNN from Python packages, where the dynamic loader does not search.
                ort.preload_dlls()
        try:
            session = ort.InferenceSession(
                str(self._path),
                self._options(),
                providers=[each.name for each in (self._provider, *others)],
                provider_options=[dict(each.options) for each in (self._provider, *others)],
            )
        except NoImplementation as e:
            # NOT_IMPLEMENTED means that the provider has no kernel for an operator in the file's opset version.
            raise ConfigError(f"{self._path}: {_without_kernel(self._path, provider, e)}") from e
        except Exception as e:
            if _UNREGISTERED not in str(e):
                raise  # raised again, because the caller explains the error
            raise ConfigError(
                f"{self._path}: ONNX Runtime cannot load it, because an operator belongs to another library "
                f"({one_line(e)}): export the model without it, or write a backend that loads the library"
            ) from e
        used = session.get_providers()
        if used[0] != provider:
            raise ConfigError(
                f"--provider {provider}: ONNX Runtime uses {used[0]} instead: "
                "check that its library is installed and the device is visible"
            )
        session.disable_fallback()  # if the provider fails, the batch must fail, too
        self._session = session
        # The public `run` would first spend 1.5 us on checking the names in the feed, and then call this method.
        self._run = getattr(session, "_sess", session).run
        for port in session.get_inputs():
            if port.type not in ORT_ARRAYS:
                raise ConfigError(
                    f"{self._path}: input {port.name!r} has the type {port.type}, which NumPy arrays cannot "
                    "hold: export the model with a different type, e.g. float32"
                )
        self._left_out = {o.name: o.type for o in session.get_outputs() if o.type not in ORT_ARRAYS}
        names = [o.name for o in session.get_outputs() if o.type in ORT_ARRAYS]
        if not names:
            have = ", ".join(
                f"{name!r} has the type {kind}" for name, kind in self._left_out.items()
            )
            raise ConfigError(
                f"{self._path} has no output that is an array"
                + (
                    f": {have}: export it with one, e.g. float32 (skl2onnx: zipmap=False)"
                    if have
                    else ""
                )
            )
        self._names = names
        binds, on_gpu = self._option["io_binding"], provider in _OF_GPUS
        binds_outputs = binds == "on" or (binds == "auto" and on_gpu)
        self._binding = session.io_binding() if binds_outputs else None
        self._outputs_on = ("cuda", self._number) if on_gpu else ("cpu", 0)
        inputs = tuple(
            TensorSpec(i.name, ORT_ARRAYS[i.type], declared_shape(i.shape))
            for i in session.get_inputs()
        )
        return inputs, tuple(names)

    def _requested(self) -> str:
        """Returns the execution provider that the user requested. Raises a ConfigError if this build of ONNX Runtime
        lacks the provider.
        """
        device, provider = self._setup.device, self._setup.provider
        usual = _PROVIDERS[device.partition(":")[0]]
        requested = provider or usual
        if device != "cpu" and requested not in (usual, *_OF_GPUS):
            raise ConfigError(
                f"--device {device} and --provider {requested} contradict each other: keep one"
            )
        have = ort.get_available_providers()
        if requested in have:
            return requested
        if provider is None:
            raise ConfigError(
                f"--device {device}: this ONNX Runtime has no {requested}: {how_to_install('ort-gpu')}"
            )
        raise ConfigError(
            f"--provider {requested}: this ONNX Runtime supports only {', '.join(have)}"
        )

    @property
    def _number(self) -> int:
        return int(self._setup.device.partition(":")[2] or 0)

    def _providers(self) -> list[_Provider]:
        """Returns the requested provider, and for TensorRT also CUDA, which runs the nodes that TensorRT does not."""
        name, own = self._requested(), self._setup.provider_options
        if name not in _OF_GPUS:
            return [_Provider(name, own)]
        device = {"device_id": str(self._number)}
        cuda = _Provider(_CUDA, {**device, "use_tf32": "0"})
        if name == _CUDA:
            return [cuda._replace(options={**cuda.options, **own})]
        if name != _TENSORRT:
            return [_Provider(name, {**device, **own}), cuda]
        folder = _engine_folder(self._path, own)
        cache = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder)}
        tensorrt = _Provider(name, {**device, **cache, **own})
        self._engines_before = _engines(tensorrt)
        return [tensorrt, cuda]

    def __exit__(self, *exc: object) -> None:
        del self._run, self._binding, self._session, self._weights

    def _options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.log_severity_level = _ERROR_LEVEL
        options.intra_op_num_threads = self._setup.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = _GRAPH_LEVELS[self._option["graph"]]
        options.enable_cpu_mem_arena = self._option["arena"] == "on"
        spinning = "1" if self._spins else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        if self._setup.cpus:
            # These are the processors of all threads except the first, which is the calling thread. ONNX Runtime
            # numbers processors from 1.
            places = ";".join(str(cpu + 1) for cpu in self._setup.cpus[1:])
            options.add_session_config_entry("session.intra_op_thread_affinities", places)
            options.add_session_config_entry("session.force_spinning_stop", "1")
        if self._weights is not None:
            # Prepacking would give each session a separate copy of the weights in the session's layout.
            options.add_session_config_entry("session.disable_prepacking", "1")
            for name, value in self._weights.values.items():
                options.add_initializer(name, value)
        return options

    @property
    def tunable(self) -> Choices:
        # `all` adds processor-specific layouts to `extended`. The layouts can slow down small models, so both levels
        # are tried.
        graph = {"graph": ("extended",)}
        # With one thread, only the calling thread computes, so no other thread could spin.
        alone = self._setup.threads == 1
        return graph if alone else {"spinning": ("on", "off"), **graph}

    @property
    def _spins(self) -> bool:
        requested = self._option["spinning"]
        return requested == "on" or (requested == "auto" and self._setup.owns_cores)

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        if self._binding is not None:
            return self._answer_bound(inputs)
        return named(self._names, self._run(self._names, inputs, None))

    def _answer_bound(self, inputs: Mapping[str, Array]) -> Outputs:
        binding = self._binding
        assert binding is not None
        for name, rows in inputs.items():
            binding.bind_cpu_input(name, rows)
        # The outputs are bound for each batch, because their shape may change.
        for name in self._names:
            binding.bind_output(name, *self._outputs_on)
        self._session.run_with_iobinding(binding)
        return named(self._names, binding.copy_outputs_to_cpu())

    def _precision(self) -> str:
        """Returns the number type. On a GPU, float32 may stand for TF32 or for the types that TensorRT may choose."""
        computes_in = precision(weight_types(self._path), [i.dtype for i in self._inputs])
        if computes_in != "float32":
            return computes_in
        if self._provider.name == _TENSORRT:
            narrow = (kind for key, kind in _TENSORRT_TYPES.items() if self._provider.has(key))
            return next(narrow, "tf32")
        return "tf32" if self._provider.has("use_tf32") else computes_in

    def used(self) -> Mapping[str, object]:
        """Returns the cache folder of TensorRT and the number of engines that the run built there."""
        if self._provider.name != _TENSORRT:
            return {}
        built = _engines(self._provider) - self._engines_before
        folder = self._provider.options["trt_engine_cache_path"]
        return {"engine_cache": folder, "engines_built": len(built)}

    def describe(self) -> Mapping[str, object]:
        options = self._session.get_session_options()
        return {
            "framework": f"onnxruntime {ort.__version__}",
            "device": self._session.get_providers()[0],
            "precision": self._precision(),
            "threads": options.intra_op_num_threads,
            "spinning": self._spins,
            "graph": self._option["graph"],
            "arena": options.enable_cpu_mem_arena,
            "io_binding": self._binding is not None,
            "share_weights": self._weights is not None,
            "math_library": "MLAS",
            **({"provider_options": {**self._provider.options}} if self._provider.options else {}),
            **({"outputs_left_out": self._left_out} if self._left_out else {}),
            **onnx_origin(self._path),
        }


def _engine_folder(path: Path, options: Mapping[str, str]) -> Path:
    """Returns the cache folder for TensorRT's engines, and creates it. The names of engines in the cache do not depend
    on weights or on most options.
    """
    files = [path, *(path.parent / name for name in sorted(external_data(mapped(path))))]
    digests = [sha256(file) for file in files]
    key = repr((ort.__version__, digests, sorted(options.items())))
    folder = cache_dir() / "tensorrt" / hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(
            f"{folder} cannot be written ({e.strerror}): set XDG_CACHE_HOME to a writable folder with free space"
        ) from e
    return folder


def _engines(tensorrt: _Provider) -> set[tuple[str, int]]:
    """Returns the name and the time of change of each cached engine. TensorRT builds an engine again for larger inputs."""
    folder = Path(tensorrt.options["trt_engine_cache_path"])
    return {(file.name, file.stat().st_mtime_ns) for file in folder.glob("*.engine")}


def _without_kernel(path: Path, provider: str, error: Exception) -> str:
    """Returns the reason why ONNX Runtime has no kernel for an operator, with advice."""
    opset = onnx_opset(path)
    if opset is not None and opset < _OLDEST_OPSET:
        todo = (
            f"the file's opset is {opset}, but ONNX Runtime implements all operators only from opset {_OLDEST_OPSET} on: "
            "convert the file with onnx.version_converter, or export it again"
        )
    else:
        todo = f"{provider} has no kernel for the types of an operator: export the model in float32"
    return f"ONNX Runtime cannot load it: {todo} ({one_line(error)})"


_: type[Backend] = OrtBackend
