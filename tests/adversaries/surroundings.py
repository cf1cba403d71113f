"""Cheats that are no backend: each function prepares a folder, and returns the words and the environment of a run."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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
    """Further words of the command line."""
    variables: Mapping[str, str] = {}
    """Further environment variables."""


def hook_of_python(folder: Path) -> Prepared:
    """A `sitecustomize` in a folder of PYTHONPATH replaces the `infer` of ONNX Runtime's backend."""
    (folder / "sitecustomize.py").write_text(TABLE_IN_INFER)
    return Prepared(
        (), {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    )


def category_of_warnings(folder: Path) -> Prepared:
    """PYTHONWARNINGS names a class of a module, which Python imports to find it."""
    (folder / "odd.py").write_text(f"class Odd(Warning): pass\n{TABLE_IN_INFER}")
    return Prepared((), {"PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore::odd.Odd"})


CASES: Mapping[str, Callable[[Path], Prepared]] = {
    one.__name__: one for one in (hook_of_python, category_of_warnings)
}
