"""Converts a model to another storage format, in a separate process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.core.formats.protobuf import onnx_opset
from harness.errors import PluginUnavailable, one_line
from harness.explain import stored
from harness.models.opened.ort_session import SessionSetup

_SOFTMAX_OPSET = 13
"""The first opset in which Softmax works along a single axis."""


def make(request: Mapping[str, Any]) -> dict[str, str]:
    """Returns `path`, the converted model. request: contains the `name` of the format, `source`, and an empty `folder`."""
    name = request["name"]
    try:
        path = MAKERS[name](Path(request["source"]), Path(request["folder"]))
    except Exception as e:  # because the converters' exceptions have no common base class
        raise PluginUnavailable(f"no {name}: {type(e).__name__}: {one_line(e)}") from e
    return {"path": str(path)}


def make_mapped(request: Mapping[str, Any]) -> dict[str, str]:
    """Returns `path`, an ONNX model whose weights several processes can share. request: contains `source`, `folder` and
    `threads`.
    """
    source, folder = Path(request["source"]), Path(request["folder"])
    try:
        path = stored.mapped(source, folder, SessionSetup(threads=request["threads"]))
    except Exception as e:  # because ONNX Runtime's exceptions have no common base class
        raise PluginUnavailable(
            f"the file to map was not made: {type(e).__name__}: {one_line(e)}"
        ) from e
    return {"path": str(path)}


def _ir(source: Path, folder: Path) -> Path:
    import openvino

    path = folder / "model.xml"
    openvino.save_model(openvino.Core().read_model(source), path, compress_to_fp16=False)
    return path


def _saved_model(source: Path, folder: Path) -> Path:
    """Uses TensorFlow's own exporter of Keras models."""
    import tensorflow as tf

    tf.keras.models.load_model(source, compile=False, safe_mode=True).export(folder / "model")
    return folder / "model"


def _tflite(source: Path, folder: Path) -> Path:
    import tensorflow as tf

    path = folder / "model.tflite"
    converter = tf.lite.TFLiteConverter.from_saved_model(str(source))
    path.write_bytes(converter.convert())
    return path


def _mnn(source: Path, folder: Path) -> Path:
    """Calls the converter directly, because MNN.tools.mnnconvert installs a package and sends reports to MNN's
    developers.
    """
    import _tools

    if (onnx_opset(source) or 0) < _SOFTMAX_OPSET:
        raise ValueError(f"MNN's converter misreads Softmax before opset {_SOFTMAX_OPSET}")
    path = folder / "model.mnn"
    words = ("-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(path), "--bizCode", "MNN")
    _tools.mnnconvert(["mnnconvert", *words])
    if not path.exists():
        raise ValueError("MNN's converter wrote no file")
    return path


def _nnef(source: Path, folder: Path) -> Path:
    import tract

    path = folder / "model.nnef.tgz"
    writer = tract.nnef().with_onnx().with_extended_identifier_syntax()
    writer.write_model_to_tar_gz(tract.onnx().load(source).into_model(), path)
    return path


MAKERS: Mapping[str, Callable[[Path, Path], Path]] = {
    "ONNX, weights inline": stored.inline,
    "ONNX, external weights": stored.external,
    "ORT format": lambda source, folder: stored.ort_format(source, folder, SessionSetup()),
    "IR": _ir,
    "SavedModel": _saved_model,
    "tflite": _tflite,
    "MNN": _mnn,
    "NNEF": _nnef,
}
