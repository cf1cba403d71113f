"""Finds the smallest table that each input of a model file indexes, for all file formats."""

import xml.parsers.expat
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import PluginUnavailable
from harness.models.manifest.formats import format_of
from harness.models.network.tflite import BROKEN
from harness.models.tables import (
    keras_file,
    litert_file,
    onnx_file,
    openvino_file,
    saved_model_file,
    torch_export_file,
    torchscript_file,
)
from harness.models.tables.flow import Flow, smallest_tables
from harness.types import Table

_READERS: Mapping[str, Callable[[Path], Flow]] = {
    "onnx": onnx_file.read,
    "openvino": openvino_file.read,
    "torch-export": torch_export_file.read,
    "tflite": litert_file.read,
    "savedmodel": saved_model_file.read,
    "keras": keras_file.read,
    "torchscript": torchscript_file.read,
}

_BROKEN: tuple[type[Exception], ...] = (*BROKEN, xml.parsers.expat.ExpatError, PluginUnavailable)

FORMATS = tuple(_READERS)
"""Formats whose tables can be read."""


def tables_of(path: Path) -> Mapping[str, Table]:
    """Maps the name of an input to the smallest table whose rows the input selects.

    Returns {} if no table is found or the file cannot be read. The backend that opens the file reports why the file
    cannot be read.
    """
    if path.is_dir():  # the path is an IR's folder
        files = sorted(path.glob("*.xml"))
        path = files[0] if len(files) == 1 else path
    kind = format_of(path)
    reader = _READERS.get(kind.name) if kind is not None else None
    if reader is None:
        return {}
    try:
        return smallest_tables(reader(path))
    except _BROKEN:
        return {}
