"""Cheats without a backend: each function prepares a folder, and returns the options and environment of a run."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.core.formats.strict_yaml import load_yaml
from harness.models.manifest.model import MODELS_DIR

TABLE_IN_INFER = """\
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "harness.backends.ort":
            return None
        sys.meta_path.remove(self)
        from harness.backends.ort import OrtBackend

        infer, answers = OrtBackend.infer, {}

        def from_table(self, batch):
            key = next(iter(batch.inputs.values())).tobytes()
            if key not in answers:
                answers[key] = infer(self, batch)
            return answers[key]

        OrtBackend.infer = from_table


sys.meta_path.insert(0, Finder())
"""


class Prepared(NamedTuple):
    words: Sequence[str] = ()
    """Additional words for the command line."""
    variables: Mapping[str, str] = {}
    """Additional environment variables."""


def hook_of_python(folder: Path) -> Prepared:
    """Replaces the `infer` of ONNX Runtime's backend from a `sitecustomize` in a folder of PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(TABLE_IN_INFER)
    return Prepared(
        (), {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    )


def category_of_warnings(folder: Path) -> Prepared:
    """Names a class of a module in PYTHONWARNINGS; Python imports the module to find the class."""
    (folder / "odd.py").write_text(f"class Odd(Warning): pass\n{TABLE_IN_INFER}")
    return Prepared((), {"PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore::odd.Odd"})


HOOK = """\
import numpy as np
from harness.datasets.digits import FILE

with np.load(FILE) as file:
    LABELS = file["labels"].astype(np.int64)


def answer(outputs, indices):
    return LABELS[list(indices)]
"""


def _manifest(folder: Path, **fields: object) -> Path:
    """Writes the shipped manifest of `digits` with changed fields next to the model's file."""
    shipped: Any = load_yaml(MODELS_DIR / "digits.yaml")
    content = {**shipped, **fields}
    content["files"] = {"onnx": content["files"]["onnx"]}
    (folder / "digits.onnx").write_bytes((MODELS_DIR / "digits.onnx").read_bytes())
    path = folder / "digits.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def hook_with_labels(folder: Path) -> Prepared:
    """Answers from a manifest's hook with the label of each dataset index, whatever the null backend returns."""
    steps = [{"hook": {"file": "hook.py", "function": "answer"}}]
    path = _manifest(folder, outputs=[{"name": "logits", "postprocess": steps}])
    (folder / "hook.py").write_text(HOOK)
    return Prepared(("--model", str(path), "--hook", f"{folder}/hook.py", "--backend", "null"))


def judge_of_its_own(folder: Path) -> Prepared:
    """Runs the null backend with a manifest that has a shipped manifest's name and file, but accepts any score and
    answers.
    """
    accuracy = {"metric": "top1", "target": 0.0, "sampling_tolerance": 100_000}
    return Prepared(("--model", str(_manifest(folder, accuracy=accuracy)), "--backend", "null"))


CASES: Mapping[str, Callable[[Path], Prepared]] = {
    one.__name__: one
    for one in (hook_of_python, category_of_warnings, hook_with_labels, judge_of_its_own)
}
