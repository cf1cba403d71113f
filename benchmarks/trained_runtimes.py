"""Compares runtimes on trained models from packages: python benchmarks/trained_runtimes.py FOLDER [--models NAME,...]

For runtimes that cannot read any of a model's files, the script converts the model's ONNX file as docs/backends.md
describes: with MNN's converter, and with pnnx. pnnx writes ncnn's files and a PyTorch module, which the script exports
for PyTorch and ExecuTorch. FOLDER keeps the files, a manifest per model, and the results of one `sweep --backend all`,
whose duration the script prints.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import environment
from benchmarks.framework_models import with_new_softmax
from harness.core.console import say
from harness.core.formats.strict_yaml import parse_yaml, yaml_of
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR

MODELS = "ppocr-rec,basic-pitch,silero-vad"
TIME_LIMIT = "4min"
_CONVERTED = ("mnn", "ncnn", "torch-export", "executorch")

_BY_MNN = """
import sys, _tools
_tools.mnnconvert(["", "-f", "ONNX", "--modelFile", sys.argv[1], "--MNNModel", sys.argv[2], "--bizCode", "MNN"])
"""

_BY_TORCH = """
import importlib.util, json, sys
import torch

def module_of(path):
    spec = importlib.util.spec_from_file_location("net", path)
    module = importlib.util.module_from_spec(spec)
    module.inf = float("inf")  # pnnx writes it without an import
    spec.loader.exec_module(module)
    return module.Model().eval()

class Named(torch.nn.Module):
    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names

    def forward(self, rows):
        found = self.net(rows)
        return dict(zip(self.names, found if isinstance(found, tuple) else (found,)))

source, target, names, shape, dtype = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
example = (torch.zeros(shape, dtype=getattr(torch, dtype)),)
program = torch.export.export(Named(module_of(source), names), example)
if target.endswith(".pt2"):
    torch.export.save(program, target)
else:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    open(target, "wb").write(lowered.to_executorch().buffer)
"""
"""Reads the module that pnnx wrote, and exports it with the manifest's output names."""

_TYPES = {"float32": "f32", "int32": "i32", "int64": "i64"}
"""Maps each number type to its name in pnnx's shapes."""


class Source(NamedTuple):
    """The model's ONNX file in the folder of converted files, with the manifest's names in the file's order."""

    path: Path
    inputs: Sequence[str]
    outputs: Sequence[str]
    in_file: Mapping[str, str]
    """Maps a name in the manifest to the name in the ONNX file, if the two names differ."""
    shapes: Mapping[str, Sequence[int]]
    """Maps a name in the manifest to the shape of one sample, with a batch of 1."""
    dtypes: Mapping[str, str]


File = tuple[Path, Mapping[str, str]]
"""A converted file, and a map from the manifest's names to the names in this file."""


def of_mnn(source: Source) -> File:
    target = source.path.with_suffix(".mnn")
    _run([sys.executable, "-P", "-c", _BY_MNN, str(source.path), str(target)], source, target)
    return target, source.in_file


def of_ncnn(source: Source) -> File:
    target = _by_pnnx(source, f"{source.path.stem}.ncnn.param")
    return target, {source.inputs[0]: "in0"} | {
        name: f"out{at}" for at, name in enumerate(source.outputs)
    }


def of_torch(source: Source) -> File:
    return _exported(source, ".pt2"), {source.inputs[0]: "rows"}


def of_executorch(source: Source) -> File:
    return _exported(source, ".pte"), {}


CONVERTERS: Mapping[str, Callable[[Source], File]] = {
    "mnn": of_mnn,
    "ncnn": of_ncnn,
    "torch-export": of_torch,
    "executorch": of_executorch,
}


def _by_pnnx(source: Source, wanted: str) -> Path:
    """Returns one of the files that pnnx writes. The files' weights are in the same folder."""
    target = source.path.with_name(wanted)
    found = find_spec("pnnx")
    if found is None or found.origin is None:
        raise RuntimeError("the package pnnx is not installed")
    if len(source.inputs) > 1:
        raise RuntimeError("it has a state")
    (name,) = source.inputs
    if not source.path.with_suffix(".pnnx.param").is_file():
        shape = f"[{','.join(map(str, source.shapes[name]))}]{_TYPES[source.dtypes[name]]}"
        program = Path(found.origin).with_name("pnnx")
        _run([str(program), source.path.name, f"inputshape={shape}", "fp16=0"], source, target)
    if not target.is_file():
        raise RuntimeError(f"pnnx ended before it wrote {target.name}")
    return target


def _exported(source: Source, suffix: str) -> Path:
    module = _by_pnnx(source, f"{source.path.stem}_pnnx.py")
    (name,) = source.inputs
    target = source.path.with_suffix(suffix)
    words = map(json.dumps, (source.outputs, source.shapes[name], source.dtypes[name]))
    _run([sys.executable, "-P", "-c", _BY_TORCH, str(module), str(target), *words], source, target)
    return target


def _run(command: Sequence[str], source: Source, target: Path) -> None:
    """Runs a converter in the file's folder. If the converter writes no file, raises a RuntimeError that contains its
    last line.
    """
    done = subprocess.run(
        command, cwd=source.path.parent, capture_output=True, text=True, check=False
    )
    if done.returncode or not target.is_file():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")


def source_of(name: str, folder: Path) -> Source:
    """Downloads the model's files, and copies its ONNX file into the folder, with the opset that the converters read."""
    import onnxruntime as ort

    model = load_model(name)
    model.obtain(("onnx",), say)
    original = model.path(("onnx",))
    assert original is not None
    path = folder / f"{name.replace('-', '_')}.onnx"
    with_new_softmax(original, path)
    in_file = model.names_in(original)
    ours = {theirs: own for own, theirs in in_file.items()}
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [ours.get(port.name, port.name) for port in session.get_inputs()]
    outputs = [ours.get(port.name, port.name) for port in session.get_outputs()]
    specs = {spec.name: spec for spec in model.file_inputs}
    shapes = {n: [size if isinstance(size, int) else 1 for size in specs[n].shape] for n in inputs}
    return Source(path, inputs, outputs, in_file, shapes, {n: specs[n].dtype for n in inputs})


def with_files(name: str, folder: Path) -> Path:
    """Writes a manifest with the model's own and converted files, and prints which conversions failed."""
    folder.mkdir(parents=True, exist_ok=True)
    source = source_of(name, folder)
    content: Any = parse_yaml((MODELS_DIR / f"{name}.yaml").read_text("utf-8"))
    model = load_model(name)
    for form, entry in content["files"].items():
        model.obtain((form,), say)
        path = model.path((form,))
        assert path is not None
        target = folder / entry["path"]
        copy = shutil.copytree if path.is_dir() else shutil.copy
        if not target.exists():
            copy(path, target)
    for form, convert in CONVERTERS.items():
        try:
            path, names = convert(source)
        except (RuntimeError, KeyError, ValueError) as e:
            print(f"{name}: no file for {form}: {e}")
        else:
            content["files"][form] = {
                "path": path.name,
                **({"names": dict(names)} if names else {}),
            }
    manifest = folder / f"{name}.yaml"
    manifest.write_text(yaml_of(content, allow_unicode=True), "utf-8")
    return manifest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=MODELS, help="shipped models, separated by commas")
    parser.add_argument("--time-limit", default=TIME_LIMIT, help="time limit of the sweep")
    asked = parser.parse_args()
    manifests = [
        with_files(name, asked.folder.absolute() / name) for name in asked.models.split(",")
    ]
    words = ("sweep", "--backend", "all", "--model", ",".join(map(str, manifests)))
    command = [sys.executable, "-P", "-m", "harness", *words, "--time-limit", asked.time_limit]
    begun_s = time.monotonic()
    done = subprocess.run(
        [*command, "--out", str(asked.folder / "sweep")],
        cwd=asked.folder,
        env=environment(),
        check=False,
    )
    print(f"took {time.monotonic() - begun_s:.0f} s")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
