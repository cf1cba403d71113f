"""Converts a model to another storage format, in a separate process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import PluginUnavailable, one_line
from harness.explain import stored
from harness.models.opened.ort_session import SessionSetup


def make(request: Mapping[str, Any]) -> dict[str, str]:
    """Returns `path`. request: `name` of the format, `source`, and `folder`, which is empty."""
    name = request["name"]
    try:
        path = MAKERS[name](Path(request["source"]), Path(request["folder"]))
    except Exception as e:  # the converters' own classes share no base
        raise PluginUnavailable(f"no {name}: {type(e).__name__}: {one_line(e)}") from e
    return {"path": str(path)}


def make_mapped(request: Mapping[str, Any]) -> dict[str, str]:
    """Returns `path`, of an ONNX model whose weights processes share. request: `source`, `folder`, `threads`."""
    source, folder = Path(request["source"]), Path(request["folder"])
    try:
        path = stored.mapped(source, folder, SessionSetup(threads=request["threads"]))
    except Exception as e:  # ONNX Runtime's own classes share no base
        raise PluginUnavailable(f"no file to map: {type(e).__name__}: {one_line(e)}") from e
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


MAKERS: Mapping[str, Callable[[Path, Path], Path]] = {
    "ONNX, weights inline": stored.inline,
    "ONNX, external weights": stored.external,
    "ORT format": lambda source, folder: stored.ort_format(source, folder, SessionSetup()),
    "IR": _ir,
    "SavedModel": _saved_model,
    "tflite": _tflite,
}
