"""Makes ncnn, MNN and NNEF files with each runtime's own converter, as docs/backends.md describes."""

import fcntl
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PNNX = "pnnx==20261020"

_MNN = """
import sys, _tools
_tools.mnnconvert(["", "-f", "ONNX", "--modelFile", sys.argv[1], "--MNNModel", sys.argv[2], "--bizCode", "MNN"])
"""


def mnn_file(onnx: Path, path: Path) -> Path:
    """Runs the converter in a separate process, because it prints to stdout from C++."""
    command = [sys.executable, "-c", _MNN, str(onnx), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert path.is_file(), done.stdout + done.stderr
    return path


def pnnx(cache: Path) -> Path:
    """Returns the path of the `pnnx` program. Installs the package once, without PyTorch, which the program does not
    need.
    """
    folder = cache / PNNX
    program = folder / "pnnx/pnnx"
    if find_spec("pip") is None:
        pytest.skip(f"{PNNX} is not here, and neither is pip")
    with (cache / f"{PNNX}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one process of pytest-xdist may install at a time
        if not program.is_file():
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), PNNX]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"cannot install {PNNX}: {done.stderr.splitlines()[-1:]}")
    return program


def ncnn_files(program: Path, onnx: Path, shapes: str, folder: Path) -> Path:
    """Returns the path of the model's .param; its .bin lies next to it. shapes: the inputs' shapes, such as
    [1,3,224,224].
    """
    source = folder / onnx.name
    source.write_bytes(onnx.read_bytes())
    command = [str(program), source.name, f"inputshape={shapes}", "fp16=0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    path = folder / f"{onnx.stem.replace('-', '_')}.ncnn.param"
    assert path.is_file(), done.stdout + done.stderr
    return path


def nnef_file(onnx: Path, path: Path) -> Path:
    """Returns a packed archive if the name ends in .tgz, otherwise a folder."""
    import tract

    writer = tract.nnef().with_onnx()
    model = tract.onnx().load(onnx).into_model()
    ends = {".tgz": writer.write_model_to_tar_gz, ".tar": writer.write_model_to_tar}
    ends.get(path.suffix, writer.write_model_to_dir)(model, path)
    return path
