"""Writes the files of the token engines again from tinylm.onnx, and compares them byte by byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.models import build_token_engines as script
from harness.models.manifest.files import files_of
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR

ROOT = MODELS_DIR.parents[2]
GENAI, OPENVINO, GGUF = script.FILES


def same(made: Path, shipped: Path) -> bool:
    """Returns whether both folders contain the same files with the same bytes."""
    one, other = files_of(made), files_of(shipped)
    return one.keys() == other.keys() and all(
        one[name].read_bytes() == other[name].read_bytes() for name in one
    )


def test_the_folder_of_onnx_runtime_genai_is_written_again(tmp_path: Path) -> None:
    source = load_model("tinylm").path(("onnx",))
    assert source is not None
    script.write_genai(tmp_path / "again", source)
    assert same(tmp_path / "again", ROOT / GENAI)


def test_the_files_of_all_engines_are_written_again(tmp_path: Path) -> None:
    """Runs in a separate process, because OpenVINO numbers operations throughout a process."""
    for name in ("onnx", "openvino", "gguf"):
        pytest.importorskip(name)
    command = [sys.executable, "-m", script.__name__, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in script.FILES:
        assert same(tmp_path / name, ROOT / name), name
        assert name in done.stdout
