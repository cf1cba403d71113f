"""Lists the storage formats of a model, including the formats to which it can be converted. Each format is a separate
start.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.child import call
from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.units import show_bytes
from harness.errors import HarnessError, one_line
from harness.explain.cold.trials.turns import Start
from harness.explain.stored import MOST_BYTES
from harness.models.manifest.files import size_bytes
from harness.models.manifest.model import Model

_MAKE = "harness.explain.cold.formats.make:make"
_LIMIT_S = 900.0


IR = "IR"
"""Name of OpenVINO's own format."""

MNN, NNEF = "MNN", "NNEF"
"""Names of MNN's own format, and of the format that tract writes."""


class Stored(NamedTuple):
    """A storage format. file_format: the format's name in a manifest, or "" if a manifest cannot name it. sources:
    formats that can be converted to this format, the best first.
    """

    name: str
    backend: str
    file_format: str
    sources: Sequence[str]


FORMATS = (
    Stored("ONNX, weights inline", "ort", "", ("onnx",)),
    Stored("ONNX, external weights", "ort", "", ("onnx",)),
    Stored("ORT format", "ort", "", ("onnx",)),
    Stored("ONNX", "openvino", "onnx", ()),
    Stored(IR, "openvino", "openvino", ("onnx",)),
    Stored("SavedModel", "tensorflow", "savedmodel", ("keras",)),
    Stored("Keras", "tensorflow", "keras", ()),
    Stored("tflite", "litert", "tflite", ("savedmodel",)),
    Stored("TorchScript", "torch", "torchscript", ()),
    Stored("torch.export", "torch", "torch-export", ()),
    Stored("ExecuTorch", "executorch", "executorch", ()),
    Stored("XGBoost", "trees", "xgboost", ()),
    Stored("LightGBM", "trees", "lightgbm", ()),
    Stored("treelite", "trees", "treelite", ()),
    Stored("ncnn", "ncnn", "ncnn", ()),
    Stored(MNN, "mnn", "mnn", ("onnx",)),
    Stored("ONNX", "tract", "onnx", ()),
    Stored(NNEF, "tract", "nnef", ("onnx",)),
)


class Absent(NamedTuple):
    """A format that is not possible for the model on this machine, with the reason."""

    name: str
    backend: str
    reason: str


def find(config: RunConfig, model: Model, folder: Path, log: Path) -> list[Start | Absent]:
    """Finds each format or converts the model to it. folder: place for converted files. log: file for the converters'
    output.
    """
    return [_find(stored, config, model, folder, log) for stored in FORMATS]


def _find(
    stored: Stored, config: RunConfig, model: Model, folder: Path, log: Path
) -> Start | Absent:
    on = replace(config, backend=stored.backend, backend_option=())
    try:
        if not registry.BACKENDS[stored.backend].installed:
            entry = registry.BACKENDS[stored.backend]
            raise registry.missing_extra("backend", stored.backend, entry)
        path = _own(stored.file_format, model)
        if path is not None:
            return Start(stored.name, on, path, "the model's own file")
        source = next(filter(None, (_own(name, model) for name in stored.sources)), None)
        if source is None:
            return Absent(stored.name, stored.backend, _why_not(stored, model))
        return Start(stored.name, on, _made(stored, source, folder, log), "made for this")
    except HarnessError as e:
        return Absent(stored.name, stored.backend, one_line(e))


def _own(file_format: str, model: Model) -> Path | None:
    """Returns the model's file in this format; None if no such file exists."""
    if not file_format or not model.may_have(file_format):
        return None
    with suppress(HarnessError):  # because the manifest may declare a file that is missing
        model.obtain((file_format,), say)
        return model.path((file_format,))
    return None


def _why_not(stored: Stored, model: Model) -> str:
    have = ", ".join(model.manifest.files) if model.manifest else "one file"
    made = f", or be made from {', '.join(stored.sources)}" if stored.sources else ""
    return f"its file must be in a manifest{made}; the model has only {have}"


def _made(stored: Stored, source: Path, folder: Path, log: Path) -> Path:
    if size_bytes(source) > MOST_BYTES:
        raise HarnessError(
            f"the model is larger than {show_bytes(MOST_BYTES)}, so it is not converted"
        )
    place = folder / f"{stored.backend}-{stored.name}".replace(" ", "_").replace(",", "")
    place.mkdir()
    request = {"name": stored.name, "source": str(source), "folder": str(place)}
    made: Mapping[str, Any] = call(_MAKE, request, log, limit_s=_LIMIT_S)
    return Path(made["path"])
