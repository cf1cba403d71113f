"""An ONNX model in int8 or fp16, made by ONNX Runtime's own tools.

int8: QuantizeLinear and DequantizeLinear around each operator (QDQ), which runtimes turn into integer
kernels.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable
from harness.models.precision.samples import Calibration

SOURCE = "onnx"
BACKEND = "ort"
TITLE = "ONNX Runtime's tools"
SUFFIX = ".onnx"

_FAST = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Without one of these, x86 adds products of bytes in 16 bits, which overflow unless weights have 7."""

_PER_CHANNEL = 13
"""From this opset on DequantizeLinear has an axis."""

_UPCAST = "InsertedPrecisionFreeCast_"
"""Begins the names that ONNX Runtime gives to what it converts because a kernel lacks the type."""

_QUIET = 3
"""ONNX Runtime's errors only."""


def check(precision: str, _source: Path) -> None:
    """`onnx` is no dependency of ONNX Runtime."""
    if find_spec("onnx") is None:
        raise PluginUnavailable(
            f"{precision} is made with the module 'onnx': {how_to_install('light')}"
        )


def recipe(precision: str, source: Path) -> dict[str, Any]:
    """See precision_files.Maker, as everywhere below."""
    import onnx
    import onnxruntime as ort

    versions = {"onnxruntime": ort.__version__, "onnx": onnx.__version__}
    if precision != "int8":
        return versions
    return {
        **versions,
        "format": "QDQ",
        "weights": f"int8 per {'channel' if _opset(source) >= _PER_CHANNEL else 'tensor'}",
        "activations": "uint8",
        "ranges": "smallest and largest value",
        "reduce_range": _reduces_range(),
    }


def _opset(source: Path) -> int:
    import onnx

    imported = onnx.load(source, load_external_data=False).opset_import
    return max((int(o.version) for o in imported if o.domain in ("", "ai.onnx")), default=0)


def _reduces_range() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return "sse2" in flags and not any(flag in flags for flag in _FAST)


def write(source: Path, path: Path, found: Calibration | None, recipe: Mapping[str, Any]) -> None:
    """Stored in float16; or with quantisation around every operator that has integer kernels."""
    import onnx

    if found is None:
        _write_fp16(source, path)
        return
    _write_int8(source, path, found, recipe)
    kinds = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    if "QuantizeLinear" not in kinds:
        raise ConfigError(f"{source}: nothing in it can be quantised")


def _write_fp16(source: Path, path: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(
        convert_float_to_float16(onnx.load(source), keep_io_types=True), path, format="protobuf"
    )


def _write_int8(source: Path, path: Path, found: Calibration, recipe: Mapping[str, Any]) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc] # the package has no types
        def __init__(self) -> None:
            self._feeds: Iterator[Any] = iter(found.feeds)

        def get_next(self) -> Any:
            return next(self._feeds, None)

    with tempfile.TemporaryDirectory(prefix="harness-int8-") as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=recipe["weights"] == "int8 per channel",
            reduce_range=recipe["reduce_range"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def _executed(path: Path, level: str) -> Sequence[Any]:
    """The nodes that ONNX Runtime makes of a file's at that level of optimisation."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    with tempfile.TemporaryDirectory(prefix="harness-executed-") as folder:
        optimised = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(optimised)
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        nodes: Sequence[Any] = onnx.load(optimised, load_external_data=False).graph.node
    return nodes


def told(path: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """kernels: the operators that ONNX Runtime executes."""
    return {"kernels": _kernels(path), "about": _about(path, recipe)}


def _kernels(path: Path) -> dict[str, int]:
    counted = Counter(node.op_type for node in _executed(path, "ORT_ENABLE_EXTENDED"))
    return dict(sorted(counted.items()))


def _about(path: Path, recipe: Mapping[str, Any]) -> str:
    """How it was made, and what ONNX Runtime on this CPU does not compute in that precision."""
    if "samples" in recipe:
        return (
            f"QDQ, weights {recipe['weights']}, activations uint8; ranges from {recipe['samples']}"
        )
    upcast = {
        node.op_type
        for node in _executed(path, "ORT_DISABLE_ALL")
        if node.op_type != "Cast"
        and any(name.startswith(_UPCAST) for name in (*node.input, *node.output))
    }
    if not upcast:
        return "stored and computed in float16"
    return f"stored in float16; ONNX Runtime's CPU kernels compute {', '.join(sorted(upcast))} in float32"
