"""Functions that several cheats share: they find the current part of a run, and build a table of all answers."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import numpy as np

from harness.backends.ort import OrtBackend
from harness.datasets.digits import FILE, WHITE
from harness.types import Array, Batch, Outputs


def frames() -> Iterator[FrameType]:
    """Yields every stack frame of every thread."""
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def run_folder() -> Path:
    """Returns the folder of LoadGen's logs, which it finds in the stack frames of the measured process."""
    for frame in frames():
        setup = getattr(frame.f_locals.get("self"), "_setup", None)
        outdir = getattr(setup, "outdir", None)
        if outdir is not None:
            return Path(outdir)
    raise LookupError("the setup is in no frame")


def is_timed() -> bool:
    """Returns whether LoadGen is running, judged by the name of LoadGen's thread."""
    return any(thread.name == "loadgen" for thread in threading.enumerate())


def is_performance() -> bool:
    return is_timed() and "accuracy" not in str(run_folder())


def callers_indices() -> list[int] | None:
    """Returns the dataset indices of the current batch, from the stack frames of the callers."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if "ids" in frame.f_locals and "indices" in frame.f_locals:
            return list(frame.f_locals["indices"])
        frame = frame.f_back
    return None


def zeros(outputs: Outputs) -> dict[str, Array]:
    return {name: np.zeros_like(rows) for name, rows in named(outputs).items()}


def named(outputs: Outputs) -> Mapping[str, Array]:
    """Names the output of `digits`, because ONNX Runtime's backend omits the name when a model has one output."""
    return outputs if isinstance(outputs, Mapping) else {"logits": np.asarray(outputs)}


def digits() -> tuple[Array, Array]:
    """Returns (500, 1, 8, 8) inputs as the dataset makes them, and (500,) labels, from the public data file."""
    with np.load(FILE) as file:
        return file["images"].astype(np.float32)[:, np.newaxis] / WHITE, file["labels"]


def every_answer(backend: OrtBackend, like: Batch) -> dict[str, Array]:
    """Maps each output's name to the (500, 10) outputs of all digits. like: a batch with the input's name."""
    (name,) = like.inputs
    images, _ = digits()
    return dict(named(OrtBackend.infer(backend, Batch(len(images), {name: images}))))


def rows_of(table: Mapping[str, Array], indices: Sequence[int]) -> dict[str, Array]:
    return {name: rows[list(indices)] for name, rows in table.items()}
