"""Maps each backend to its precisions, and each precision to a backend option or a converted file."""

from collections.abc import Mapping
from typing import NamedTuple

PRECISIONS = ("fp32", "int8", "fp16", "bf16")
"""Number types in which a model can compute. The first type leaves the model unchanged."""

BASELINE = PRECISIONS[0]


class Way(NamedTuple):
    """How a backend computes in a precision."""

    options: tuple[tuple[str, str], ...] = ()
    """Options of the backend."""
    file: str = ""
    """The format of the file to convert to (a key of MAKERS), or '' if the original file is used."""
    absent: str = ""
    """The reason why the backend does not support the precision, or ''."""


_AS_IT_IS = Way()
_AS_EXPORTED = "an ExecuTorch program computes in the types that it was exported with"
_THRESHOLDS = "trees compare features with the thresholds in their file, and compute nothing else"

_WAYS: Mapping[str, Mapping[str, Way]] = {
    "ort": {
        "int8": Way(file="onnx"),
        "fp16": Way(file="onnx"),
        "bf16": Way(absent="ONNX Runtime's CPU provider has no bfloat16 kernels"),
    },
    "openvino": {
        "fp32": Way((("precision", "f32"),)),
        "int8": Way(file="onnx"),
        "fp16": Way((("precision", "f16"),)),
        "bf16": Way((("precision", "bf16"),)),
    },
    "tensorflow": {
        "fp32": Way((("precision", "f32"),)),
        "int8": Way(absent="TensorFlow quantises into LiteRT files only: see backend litert"),
        "fp16": Way(absent="TensorFlow's mixed precision in float16 is for GPUs"),
        "bf16": Way((("precision", "bf16"),)),
    },
    "litert": {
        "int8": Way(file="tflite"),
        "fp16": Way(file="tflite"),
        "bf16": Way(absent="TensorFlow's converter writes no bfloat16"),
    },
    "executorch": {
        "int8": Way(absent=_AS_EXPORTED),
        "fp16": Way(absent=_AS_EXPORTED),
        "bf16": Way(absent=_AS_EXPORTED),
    },
    "trees": {
        "int8": Way(absent=_THRESHOLDS),
        "fp16": Way(absent=_THRESHOLDS),
        "bf16": Way(absent=_THRESHOLDS),
    },
    "ncnn": {
        "fp32": Way((("precision", "f32"),)),
        "int8": Way(
            absent="ncnn's quantiser is a C++ program, ncnn2int8: pass the file that it writes"
        ),
        "fp16": Way((("precision", "f16"),)),
        "bf16": Way((("precision", "bf16"),)),
    },
    "mnn": {
        "fp32": Way((("precision", "f32"),)),
        "int8": Way(
            absent="MNN's quantiser needs calibration data: pass the file that mnnquant writes"
        ),
        "fp16": Way((("precision", "f16"),)),
        "bf16": Way((("precision", "bf16"),)),
    },
    "tract": {
        "fp32": Way((("precision", "f32"),)),
        "int8": Way(file="onnx"),
        "fp16": Way((("precision", "f16"),)),
        "bf16": Way(absent="tract has no conversion to bfloat16"),
    },
    "torch": {
        "fp32": Way((("precision", "f32"),)),
        "int8": Way(file="torchscript"),
        "fp16": Way((("precision", "f16"),)),
        "bf16": Way((("precision", "bf16"),)),
    },
}


def way(backend: str, precision: str) -> Way:
    """Returns how a backend computes in a precision. An unknown backend can only run its model unchanged."""
    if precision == BASELINE:
        return _WAYS.get(backend, {}).get(precision, _AS_IT_IS)
    known = _WAYS.get(backend, {}).get(precision)
    return known or Way(absent=f"no way to {precision} is known for backend {backend!r}")
