"""Runs SavedModel folders and Keras files on TensorFlow."""

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

# TensorFlow reads these variables when it is first imported. Without them, its log messages would fill the log of every
# run.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf

from harness.backends.parts import saved_model
from harness.backends.parts.framework import Choices, FrameworkBackend, named
from harness.backends.parts.tensorflow_network import network_of, weights_of
from harness.core.extras import how_to_install
from harness.core.number_types import precision
from harness.core.units import counted
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import Array, Backend, Batch, Network, Outputs, TensorSpec, declared_shape

_MIXED = "auto_mixed_precision_onednn_bfloat16"
"""Option of TensorFlow's graph rewriter for bfloat16. The option silently has no effect if oneDNN does not support
bfloat16.
"""


class TensorFlowBackend(FrameworkBackend):
    """A Keras model, or a signature of a SavedModel: `serving_default`, or the only signature.

    The thread counts apply to the whole process, and cannot change once TensorFlow has executed an op. Up to
    `instances` ops run at a time, each on `threads` threads. Inputs and outputs keep their types.

    compile: `on` traces a Keras model into a tf.function; `off` runs it op by op (eagerly). A SavedModel contains only
    traced functions.
    precision: `bf16` lets TensorFlow's graph rewriter choose ops for bfloat16 (mixed precision). The backend refuses
    `bf16` if the CPU does not support bfloat16.
    """

    name = "tensorflow"
    title = "TensorFlow"
    formats = ("savedmodel", "keras")
    options: ClassVar[Choices] = {"compile": ("on", "off"), "precision": ("f32", "bf16")}
    devices = ("cpu", "cuda")

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        _choose_device(self._setup.device)
        _set_threads(self._setup.threads, self._setup.instances)
        self._compiled = self._option["compile"] == "on"
        if self._option["precision"] == "bf16":
            self._narrow()
        if self._path.suffix == ".keras":
            inputs, outputs = self._load_keras(self._path)
        else:
            inputs, outputs = self._load_saved_model(self._path)
        self._feeds = [spec.name for spec in inputs]
        return inputs, outputs

    def _narrow(self) -> None:
        """Turns on mixed precision for all graphs that the process traces or loads afterwards."""
        option = "--backend-option precision=bf16"
        if not self._compiled or self._setup.device != "cpu":
            raise ConfigError(
                f"{option}: TensorFlow converts only compiled functions on CPUs: drop compile=off and --device"
            )
        tf.config.optimizer.set_experimental_options({_MIXED: True})
        if not _multiplies_in_bfloat16():
            raise ConfigError(
                f"{option}: TensorFlow computes in float32 on this CPU: drop the option"
            )

    def _load_saved_model(self, path: Path) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        if not self._compiled:
            raise ConfigError(
                "--backend-option compile=off: a SavedModel has only compiled functions: "
                "add --backend-option format=keras, or pass a .keras file as --model"
            )
        self._model: Any
        self._model, function = saved_model.load(path)
        self._weights = weights_of(function)
        specs = function.structured_input_signature[1]
        # The names are in the order of the flat arguments.
        names = list(function.function_type.parameters)
        self._read(function)
        self._call = self._traceable = _flat_call(function)
        outputs = tuple(
            sorted(function.structured_outputs)
        )  # sorted, because TensorFlow flattens arguments in this order
        return tuple(_spec(name, specs[name]) for name in names), outputs

    def _load_keras(self, path: Path) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        """Loads weights and layers; refuses code in the file (Lambda layers)."""
        # The check is made before loading, because Keras would report a file of another type as missing.
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ConfigError(f"{path}: not a Keras file: expected a zip archive")
        model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
        self._model = model
        self._weights = [(tuple(w.shape), str(w.dtype)) for w in model.weights]
        inputs = tuple(_spec(tensor.name, tensor) for tensor in model.inputs)

        def call(*tensors: Any) -> Sequence[Any]:
            inputs = tf.nest.pack_sequence_as(model.input, tensors)
            return list(tf.nest.flatten(model(inputs, training=False)))

        self._traceable = call
        if self._compiled:
            specs = [tf.TensorSpec(s.shape, s.dtype) for s in inputs]
            function = tf.function(call).get_concrete_function(*specs)
            self._read(function)
            self._call = _flat_call(function)
        else:
            self._call = call
        return inputs, tuple(model.output_names)

    def _read(self, function: Any) -> None:
        """Does nothing; the profiling twin overrides this method to keep the file's function."""

    def profiler(self) -> Profiler:
        from harness.backends.parts.tensorflow_kernels import TensorFlowProfiler

        if not self._compiled:
            raise ConfigError(
                "with compile=off TensorFlow has no graph to profile: drop --backend-option compile=off"
            )
        if self._setup.device != "cpu":
            raise ConfigError("only kernels of the CPU can be profiled: drop --device cuda")
        return TensorFlowProfiler(_Recorded(self._setup))

    def __exit__(self, *exc: object) -> None:
        del self._call, self._traceable, self._model

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        outputs = self._call(*[tf.constant(inputs[name]) for name in self._feeds])
        return named(self._outputs, [tensor.numpy() for tensor in outputs])

    def network(self, batch: Batch) -> Network:
        inputs = self._in_file(batch.inputs)
        return network_of(self._traceable, [inputs[name] for name in self._feeds])

    def describe(self) -> Mapping[str, object]:
        threading = tf.config.threading
        narrowed = self._option["precision"] == "bf16"
        return {
            "framework": f"tensorflow {tf.__version__}",
            "device": "cpu"
            if self._setup.device == "cpu"
            else tf.config.get_visible_devices("GPU")[0].name,
            "precision": precision(
                self._weights, [i.dtype for i in self._inputs], "bfloat16" if narrowed else None
            ),
            "mixed_precision": narrowed,
            "compile": "tf.function" if self._compiled else "eager",
            "threads": threading.get_intra_op_parallelism_threads(),
            "threads_between_ops": threading.get_inter_op_parallelism_threads(),
            "threads_of": "the process",
            "math_library": "oneDNN, Eigen",
        }


class _Recorded(TensorFlowBackend):
    """A second instance for profiling, which keeps the function that it calls and can wrap it."""

    def _read(self, function: Any) -> None:
        self.function = function
        self.batch = self._setup.max_batch

    def mark(self, around: Callable[[Any], Any]) -> None:
        self._call = around(self._call)


def _flat_call(function: Any) -> Callable[..., Sequence[Any]]:
    """Returns a function that calls a concrete function without checking names and shapes, because the checks take half
    of the time.
    """
    call, captured = function.inference_fn.call_flat, function.captured_inputs
    return lambda *tensors: call(*tensors, *captured)


def _multiplies_in_bfloat16() -> bool:
    """Returns whether matrix products are computed in bfloat16, in which 1 + 2^-12 rounds to 1."""
    product = tf.function(tf.matmul)
    result = product(tf.fill((16, 16), 1 + 2.0**-12), tf.eye(16))
    return bool((result.numpy() == 1).all())


def _gpus() -> list[Any]:
    return list(tf.config.list_physical_devices("GPU"))


def _choose_device(device: str) -> None:
    """Chooses the device. TensorFlow fixes the devices of a process once any device has computed."""
    kind, _, number = device.partition(":")
    gpus = _gpus()
    if kind == "cuda" and len(gpus) <= int(number or 0):
        raise ConfigError(
            f"--device {device}: TensorFlow {tf.__version__} sees {counted(len(gpus), 'CUDA device')}: if "
            f"the driver is installed, {how_to_install('tensorflow-gpu')}"
        )
    chosen = [] if kind == "cpu" else [gpus[int(number or 0)]]
    if chosen:
        # By default, TensorFlow rounds float32 to TF32 in matrix products and convolutions on GPUs.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    if tf.config.get_visible_devices("GPU") == chosen:
        return
    try:
        tf.config.set_visible_devices(chosen, "GPU")
    except RuntimeError as e:
        raise ConfigError(
            f"--device {device}: TensorFlow keeps the devices that a process used first, which are different: "
            "add --backend-option processes=on"
        ) from e


def _set_threads(within: int, between: int) -> None:
    """Sets the numbers of threads within and between ops. Raises a ConfigError if an op has already run with different
    numbers, because the numbers are then fixed.
    """
    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(within)
        threading.set_inter_op_parallelism_threads(between)
    except RuntimeError as e:
        have = threading.get_intra_op_parallelism_threads()
        raise ConfigError(
            f"--threads {within} --instances {between}: TensorFlow already started with {have} and "
            f"{threading.get_inter_op_parallelism_threads()} in this process: use a new process"
        ) from e


def _spec(name: str, tensor: Any) -> TensorSpec:
    """Returns a specification. tensor: a tf.TensorSpec or a Keras input."""
    dtype = tensor.dtype if isinstance(tensor.dtype, str) else tensor.dtype.name
    return TensorSpec(name, dtype, declared_shape(tensor.shape))


_: type[Backend] = TensorFlowBackend
