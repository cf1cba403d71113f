"""Measures the cost of loading each storage format of a model, in fresh processes, in turns.

inline: one ONNX file. external: weights in a second file beside it. ort: ONNX Runtime's own format,
already optimised for this machine's settings. The page cache is warm, because every file was just written.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.child import call
from harness.errors import HarnessError, one_line
from harness.explain.advise.layers.settings import Setting
from harness.explain.advise.subject import Job
from harness.models.manifest.files import files_of
from harness.models.opened.ort_session import open_session

MOST_BYTES = 1 << 30
"""Largest model that is written twice more for this comparison."""

_PROBE = "harness.explain.advise.checks.storage_probe:probe"
_ROUNDS = 3
_TIMEOUT_S = 300


def check(job: Job, folder: Path) -> list[dict[str, Any]]:
    """One row for each format, with every round's numbers or the reason why there are none."""
    if sum(path.stat().st_size for path in files_of(job.path).values()) > MOST_BYTES:
        why = f"the model is larger than {MOST_BYTES >> 20} MiB"
        return [{"format": name, "failed": why} for name in _MAKERS]
    inputs = folder / "feeds.npz"
    np.savez(inputs, allow_pickle=False, **dict(job.feeds))
    rows: list[dict[str, Any]] = []
    for name, make in _MAKERS.items():
        format_folder = folder / name
        format_folder.mkdir()
        try:
            file = make(job.path, format_folder, job.now)
            size = sum(f.stat().st_size for f in format_folder.iterdir())
            rows.append({"format": name, "file": file, "size_bytes": size, "rounds": []})
        except Exception as e:  # noqa: BLE001 - onnx's and onnxruntime's own classes
            rows.append({"format": name, "failed": one_line(e) or type(e).__name__})
    for _ in range(_ROUNDS):
        for row in rows:
            if "failed" in row:
                continue
            request = {
                "model": str(row["file"]),
                "feeds": str(inputs),
                "setting": str(job.now),
            }
            try:
                row["rounds"].append(call(_PROBE, request, None, limit_s=_TIMEOUT_S))
            except HarnessError as e:
                row["failed"] = one_line(e)
    for row in rows:
        row.pop("file", None)
    return rows


def _inline(path: Path, folder: Path, _setting: Setting, **how: Any) -> Path:
    import onnx

    onnx.save(onnx.load(path), folder / "model.onnx", format="protobuf", **how)
    return folder / "model.onnx"


def _ort(path: Path, folder: Path, setting: Setting) -> Path:
    file = folder / "model.ort"
    open_session(path, setting.session, optimised=file, config={"session.save_model_format": "ORT"})
    return file


_MAKERS: Mapping[str, Callable[[Path, Path, Setting], Path]] = {
    "inline": _inline,
    "external": partial(
        _inline, save_as_external_data=True, location="weights", size_threshold=1024
    ),
    "ort": _ort,
}
