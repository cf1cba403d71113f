"""Measures the cost of loading a model from each storage format. Every load runs in a new process, and the formats
alternate.

inline: one ONNX file. external: an ONNX file with the weights in a second file. ort: ONNX Runtime's format, already
optimised for this machine's settings. The page cache is warm, because every file was just written.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.child import call
from harness.errors import HarnessError, one_line
from harness.explain import stored
from harness.explain.advise.layers.settings import Setting
from harness.explain.advise.subject import Job
from harness.models.manifest.files import size_bytes

_PROBE = "harness.explain.advise.checks.storage_probe:probe"
_ROUNDS = 3
_TIMEOUT_S = 300


def check(job: Job, folder: Path) -> list[dict[str, Any]]:
    """Returns a row per format, with the numbers of every round or the reason why they are missing."""
    if size_bytes(job.path) > stored.MOST_BYTES:
        why = f"the model is larger than {stored.MOST_BYTES >> 20} MiB"
        return [{"format": name, "failed": why} for name in _MAKERS]
    inputs = folder / "feeds.npz"
    np.savez(inputs, allow_pickle=False, **dict(job.feeds))
    rows: list[dict[str, Any]] = []
    for name, make in _MAKERS.items():
        format_folder = folder / name
        format_folder.mkdir()
        try:
            file = make(job.path, format_folder, job.now)
            size = size_bytes(format_folder)
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


_MAKERS: Mapping[str, Callable[[Path, Path, Setting], Path]] = {
    "inline": lambda path, folder, _setting: stored.inline(path, folder),
    "external": lambda path, folder, _setting: stored.external(path, folder),
    "ort": lambda path, folder, setting: stored.ort_format(path, folder, setting.session),
}
