"""A float model in integers of eight bits: QDQ, calibrated on samples, by ONNX Runtime's own tools.

Activations are unsigned and per tensor, weights signed and per output channel: what the CPU's dot
products (VNNI) take.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.explain.advise.layers.settings import Setting, session_options
from harness.types import Array

_LEAST_OPSET = 13
"""Of the default domain: with it came scales per channel."""

_ERRORS = 3

_KEPT = {"Softmax"}
"""Its 256 steps from 0 to 1 lose what is unlikely: of many classes, or of long attention, all."""

Feeds = Mapping[str, Array]


class _Samples:
    """What ONNX Runtime's calibrator reads: `get_next` gives the feeds, then None."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def quantise_file(path: Path, made: Path, feeds: Sequence[Feeds]) -> None:
    """feeds: to calibrate with. Every operator that ONNX Runtime has an integer kernel for is
    quantised, except _KEPT. A PluginUnavailable where a module is missing; whatever ONNX Runtime raises where it
    cannot.
    """
    with _quietly():
        try:
            from onnxruntime import quantization as q
            from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
        except ModuleNotFoundError as e:
            raise PluginUnavailable(
                f"int8 needs the module {e.name!r}: {how_to_install('ort', 'analysis')}"
            ) from e
        prepared = made.with_name(f"{made.stem}-prepared.onnx")
        _prepare(path, prepared)
        q.quantize_static(
            prepared,
            made,
            _Samples(feeds),
            quant_format=q.QuantFormat.QDQ,
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=sorted({*QDQRegistry, *QLinearOpsRegistry} - _KEPT),
        )
        prepared.unlink()


def _prepare(path: Path, prepared: Path) -> None:
    """Normalisations are folded into the convolutions before them, as ONNX Runtime's tools advise."""
    import onnx
    import onnxruntime as ort

    onnx.save(_raised(onnx.load(path)), prepared)
    options = session_options(Setting(graph="basic"))
    options.optimized_model_filepath = str(prepared)
    ort.InferenceSession(str(prepared), options, providers=["CPUExecutionProvider"])


def _raised(model: Any) -> Any:
    """In the first opset that has scales per channel, or as it is."""
    import onnx

    versions = {opset.domain: opset.version for opset in model.opset_import}
    if versions.get("", versions.get("ai.onnx", 0)) < _LEAST_OPSET:
        return onnx.version_converter.convert_version(model, _LEAST_OPSET)
    return model


@contextmanager
def _quietly() -> Iterator[None]:
    """Its advice is for people who quantise by hand."""
    import onnxruntime as ort

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    ort.set_default_logger_severity(_ERRORS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
