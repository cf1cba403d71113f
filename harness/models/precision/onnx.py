"""Converts an ONNX model to int8 or fp16 with ONNX Runtime's tools. All verbs use this recipe.

The int8 conversion inserts QuantizeLinear and DequantizeLinear around each operator (QDQ), and runtimes replace the
group with an integer kernel. Activations are unsigned and have one scale per tensor. Weights are signed and have one
scale per output channel. The CPU's dot-product instructions (VNNI) require these types.
"""

import contextlib
import io
import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable
from harness.machine import host
from harness.models.opened.ort_session import SessionSetup, open_session
from harness.models.precision.samples import Feed, QuantisationSamples

SOURCE = "onnx"
BACKEND = "ort"
TITLE = "ONNX Runtime's tools"
SUFFIX = ".onnx"

_FAST = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Instruction sets that accumulate products of bytes in 32 bits. Without these instructions, x86 accumulates in 16
bits, and the sums overflow unless weights have 7 bits.
"""

_PER_CHANNEL_OPSET = 13
"""The first opset in which DequantizeLinear supports the attribute `axis`."""

_FLOAT_OPERATORS = ("Softmax",)
"""Operators that stay in float32. A Softmax in int8 has only 256 steps between 0 and 1, which is too coarse for
unlikely classes.
"""

_QUANTISED_PREFIXES = ("Quantize", "Dequantize", "DynamicQuantize", "QLinear")
_QUANTISED = frozenset(
    ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "QAttention", "MatMulNBits")
)

_UPCAST = "InsertedPrecisionFreeCast_"
"""Prefix of the tensors that ONNX Runtime converts because a kernel does not support their type."""


def require(precision: str) -> None:
    # Both packages are checked, because neither installs the other.
    for module, extra in (("onnx", "onnx"), ("onnxruntime", "ort")):
        if find_spec(module) is None:
            raise PluginUnavailable(
                f"{precision} is made with the module {module!r}: {how_to_install(extra)}"
            )


def check(precision: str, source: Path) -> None:
    if precision == "int8" and (kinds := already_quantised(source)):
        raise ConfigError(
            f"{source} is quantised already ({kinds}): name its float32 original, or drop int8 from "
            "--precision"
        )


def already_quantised(source: Path) -> str:
    """Returns the counts of integer operators in the file, such as `12 QLinearConv, 1 QuantizeLinear`, or "" if it
    contains none.
    """
    import onnx

    counts = Counter(
        kind
        for kind in _operators(onnx.load(source, load_external_data=False).graph)
        if kind in _QUANTISED or kind.startswith(_QUANTISED_PREFIXES)
    )
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common(3))


def _operators(graph: Any) -> Iterator[str]:
    """Yields the operators of a graph and of its subgraphs."""
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _operators(inner)


def recipe(precision: str, source: Path) -> dict[str, Any]:
    import onnx
    import onnxruntime as ort

    versions = {"onnxruntime": ort.__version__, "onnx": onnx.__version__}
    if precision != "int8":
        return versions
    model = onnx.load(source, load_external_data=False)
    per_channel = _opset(model) >= _PER_CHANNEL_OPSET or _raised(onnx.load(source)) is not None
    return {
        **versions,
        "format": "QDQ",
        "weights": f"int8 per {'channel' if per_channel else 'tensor'}",
        "activations": "uint8",
        "ranges": "smallest and largest value",
        "float_operators": list(_FLOAT_OPERATORS),
        "reduce_range": _reduces_range(),
    }


def _opset(model: Any) -> int:
    imported = model.opset_import
    return max((int(o.version) for o in imported if o.domain in ("", "ai.onnx")), default=0)


def _raised(model: Any) -> Any:
    """Returns the model converted to the first opset with scales per channel, or None if onnx cannot convert it."""
    import onnx

    try:
        return onnx.version_converter.convert_version(model, _PER_CHANNEL_OPSET)
    except Exception:  # noqa: BLE001 - RuntimeError or its own; then scales are per tensor
        return None


def _reduces_range() -> bool:
    flags = host.cpu_flags()
    return "sse2" in flags and not any(flag in flags for flag in _FAST)


def write(
    source: Path, path: Path, samples: QuantisationSamples | None, recipe: Mapping[str, Any]
) -> None:
    """Writes the file. fp16 stores the values as float16, and int8 quantises every operator that has integer kernels."""
    if samples is not None:
        quantise(source, path, samples.feeds, recipe)
        if not already_quantised(path):
            raise ConfigError(f"{source}: nothing in it can be quantised")
        return
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(source), keep_io_types=True)
    onnx.save(model, path, format="protobuf")


class _Reader:
    """Implements ONNX Runtime's CalibrationDataReader: get_next() returns the next feeds, or None at the end."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def quantise(source: Path, path: Path, feeds: Sequence[Feed], recipe: Mapping[str, Any]) -> None:
    """Converts the ONNX file `source` to int8 and writes it to `path`. Operators without integer kernels stay in
    float32.

    feeds: quantisation samples, in batches. recipe: the result of `recipe("int8", source)`. Raises PluginUnavailable if
    a module is missing, and passes on the errors of ONNX Runtime's tools.
    """
    with _without_advice(), tempfile.TemporaryDirectory(prefix="harness-int8-") as folder:
        try:
            from onnxruntime import quantization as q
            from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
        except ModuleNotFoundError as e:
            raise PluginUnavailable(
                f"int8 needs the module {e.name!r}: {how_to_install('onnx')}"
            ) from e
        prepared = Path(folder) / "prepared.onnx"
        _prepare(source, prepared, recipe)
        q.quantize_static(
            prepared,
            path,
            _Reader(feeds),
            quant_format=q.QuantFormat.QDQ,
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            per_channel=recipe["weights"] == "int8 per channel",
            reduce_range=recipe["reduce_range"],
            op_types_to_quantize=sorted(
                {*QDQRegistry, *QLinearOpsRegistry} - {*recipe["float_operators"]}
            ),
        )


def _prepare(source: Path, prepared: Path, recipe: Mapping[str, Any]) -> None:
    """Folds normalisations into the preceding convolutions, as ONNX Runtime's tools recommend."""
    import onnx

    model = onnx.load(source)
    if recipe["weights"] == "int8 per channel" and _opset(model) < _PER_CHANNEL_OPSET:
        model = _raised(model)
    onnx.save(model, prepared, format="protobuf")
    del model
    open_session(prepared, SessionSetup(graph="basic"), optimised=prepared)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Suppresses the tools' logs and output, which give advice on manual quantisation."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _executed(path: Path, level: str) -> Sequence[Any]:
    """Returns the nodes that ONNX Runtime executes for the file at this graph optimisation level."""
    import onnx

    with tempfile.TemporaryDirectory(prefix="harness-executed-") as folder:
        optimised = Path(folder) / "optimised.onnx"
        open_session(path, SessionSetup(graph=level), optimised=optimised)
        nodes: Sequence[Any] = onnx.load(optimised, load_external_data=False).graph.node
    return nodes


def describe(path: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `kernels`, which counts the operators that ONNX Runtime executes, and `about`."""
    kernels = Counter(node.op_type for node in _executed(path, "extended"))
    return {"kernels": dict(sorted(kernels.items())), "about": _about(path, recipe)}


def _about(path: Path, recipe: Mapping[str, Any]) -> str:
    """Describes the recipe, and lists the operators that ONNX Runtime computes in float32 on this CPU."""
    if "samples" in recipe:
        return (
            f"QDQ, weights {recipe['weights']}, activations uint8; ranges from {recipe['samples']}"
        )
    upcast = {
        node.op_type
        for node in _executed(path, "off")
        if node.op_type != "Cast"
        and any(name.startswith(_UPCAST) for name in (*node.input, *node.output))
    }
    if not upcast:
        return "stored and computed in float16"
    return f"stored in float16; ONNX Runtime's CPU kernels compute {', '.join(sorted(upcast))} in float32"
