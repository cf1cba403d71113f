"""Writes an ONNX model in other storage formats, whose loading times are then measured."""

from pathlib import Path
from typing import Any

from harness.models.opened.ort_session import SessionSetup, open_session

MOST_BYTES = 1 << 30
"""Models larger than this are not written in several formats for comparison."""

EXTERNAL_FROM_BYTES = 1024
"""Tensors smaller than this stay in the ONNX file, because they are shapes and scalars."""

_WEIGHTS = "weights"


def inline(path: Path, folder: Path, **how: Any) -> Path:
    """Writes one file with graph and weights. how: arguments for onnx.save."""
    import onnx

    onnx.save(onnx.load(path), folder / "model.onnx", format="protobuf", **how)
    return folder / "model.onnx"


def external(path: Path, folder: Path) -> Path:
    """Writes the weights to a second file next to the graph."""
    return inline(
        path,
        folder,
        save_as_external_data=True,
        location=_WEIGHTS,
        size_threshold=EXTERNAL_FROM_BYTES,
    )


def ort_format(path: Path, folder: Path, setup: SessionSetup) -> Path:
    """Writes ONNX Runtime's own format, optimised for this machine's settings."""
    file = folder / "model.ort"
    open_session(path, setup, optimised=file, config={"session.save_model_format": "ORT"})
    return file


def mapped(path: Path, folder: Path, setup: SessionSetup) -> Path:
    """Writes the optimised graph.

    The weights are in a second file, in the layout that the graph reads. A session without optimisation and prepacking
    maps the second file directly and shares its pages with all processes.
    """
    file = folder / "model.onnx"
    config = {
        "session.optimized_model_external_initializers_file_name": _WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(EXTERNAL_FROM_BYTES),
        "session.disable_prepacking": "1",
    }
    open_session(path, setup, optimised=file, config=config)
    return file
