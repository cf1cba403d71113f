"""An ONNX model in int8 or fp16, made by ONNX Runtime's own tools and kept by what it is made from.

Runs in a process of its own (harness/apart.py). int8 is post-training quantisation: QuantizeLinear
and DequantizeLinear around each operator (QDQ), which runtimes turn into integer kernels.
"""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import results
from harness.analysis.calibration import Calibration, calibration
from harness.cache import appearing, cache_dir
from harness.config import RunConfig, from_plain
from harness.console import say
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.layout import Instances
from harness.loading import batch_in_file, inputs_of, open_backends
from harness.manifest import Model, load_model
from harness.modelfiles import sha256_alone

_BATCH = 8
_FAST = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Without one of these, x86 adds products of bytes in 16 bits, which overflow unless weights have 7."""

_PER_CHANNEL = 13
"""From this opset on DequantizeLinear has an axis."""

_UPCAST = "InsertedPrecisionFreeCast_"
"""Begins the names that ONNX Runtime gives to what it converts because a kernel lacks the type."""

_QUIET = 3
"""ONNX Runtime's errors only."""


def make(request: Mapping[str, Any]) -> dict[str, Any]:
    """request: `config` of a run, `precision` (int8 or fp16), `synthetic` (nothing is scored) and
    `calibration_dir` (may be null).

    -> `file`, its `sha256`, the `source_sha256`, what it was made with (`recipe`), the operators that
    ONNX Runtime executes (`kernels`) and, in words, `about`.
    """
    precision = request["precision"]
    if find_spec("onnx") is None:
        raise PluginUnavailable(
            f"{precision} is made with the module 'onnx': pip install 'mlperf-harness[light]'"
        )
    config = replace(from_plain(request["config"]), backend="ort", backend_option=())
    model = load_model(config.model)
    model.obtain(("onnx",), say)
    source = model.path(("onnx",))
    assert source is not None
    found = _calibration(config, model, source, request) if precision == "int8" else None
    recipe = _recipe(precision, source, model.sha256(source), found)
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_dir() / "precisions" / key / f"{source.stem}-{precision}.onnx"
    record = path.with_suffix(".json")
    if path.is_file() and record.is_file():
        kept = dict(results.read_json(record))
        if kept.get("sha256") == sha256_alone(path):
            return {**kept, "file": str(path)}
    with appearing(path) as temporary:
        _write(source, temporary, found, recipe)
    content = {
        "precision": precision,
        "sha256": sha256_alone(path),
        "source_sha256": recipe["source_sha256"],
        "recipe": recipe,
        "kernels": _kernels(path),
        "about": _about(path, recipe),
    }
    results.write_json(record, content)
    return {**content, "file": str(path)}


def _calibration(
    config: RunConfig, model: Model, source: Path, request: Mapping[str, Any]
) -> Calibration:
    with ExitStack() as stack:
        (backend,) = open_backends(config, model, source, Instances(1, 1, _BATCH), stack)
        inputs = inputs_of(model, backend)
        batch = batch_in_file(backend, inputs) or _BATCH
    folder = request["calibration_dir"]
    there = Path(folder) if folder is not None else None
    return calibration(config, model, inputs, batch, there, synthetic=request["synthetic"])


def _recipe(
    precision: str, source: Path, source_sha256: str, found: Calibration | None
) -> dict[str, Any]:
    """Everything that decides what the file will be."""
    import onnx
    import onnxruntime as ort

    recipe: dict[str, Any] = {
        "precision": precision,
        "source_sha256": source_sha256,
        "onnxruntime": ort.__version__,
        "onnx": onnx.__version__,
    }
    if found is not None:
        recipe |= {
            "format": "QDQ",
            "weights": f"int8 per {'channel' if _opset(source) >= _PER_CHANNEL else 'tensor'}",
            "activations": "uint8",
            "ranges": "smallest and largest value",
            "samples": found.about,
            "samples_sha256": found.sha256,
            "reduce_range": _reduces_range(),
        }
    return recipe


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


def _write(source: Path, path: Path, found: Calibration | None, recipe: Mapping[str, Any]) -> None:
    """A ConfigError where ONNX Runtime's tools cannot make it, or leave the model as it is."""
    import onnx

    try:
        if found is None:
            _write_fp16(source, path)
        else:
            _write_int8(source, path, found, recipe)
    except (ConfigError, MemoryError, OSError):
        raise
    except Exception as e:  # the tools' errors share no base class
        why = one_line(e) or type(e).__name__
        raise ConfigError(f"{source}: ONNX Runtime's tools cannot convert it: {why}") from e
    if found is not None:
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
