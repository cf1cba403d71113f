"""Python code of a manifest runs only if the user names exactly this file."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.config.parse import parse_path
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.hook import load_hook
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import Model
from harness.models.opened.loading import unknown_names

MANIFEST = """
name: hooked
version: "1"
description: ""
licence: none
task: none
files: {{}}
inputs: [{{name: x, dtype: float32, shape: [n, 2]}}]
outputs: [{{name: y, postprocess: [{steps}]}}]
dataset: synthetic
"""
STEP = "hook: {file: hook.py, function: double}"
CODE = "def double(outputs, indices):\n    return outputs * 2\n"


def model(folder: Path, steps: str = STEP, code: str = CODE) -> Model:
    (folder / "hook.py").write_text(code)
    (folder / "model.yaml").write_text(MANIFEST.format(steps=steps))
    return load_model(str(folder / "model.yaml"))


def test_the_file_that_was_named_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_hook(model(tmp_path), tmp_path / "hook.py")
    assert found(21, []) == 42
    monkeypatch.chdir(tmp_path)
    assert load_hook(model(tmp_path), parse_path("hook.py"))(1, []) == 2


@pytest.mark.parametrize(
    ("steps", "given", "text"),
    [
        (STEP, None, "model 'hooked' runs Python code from {}/hook.py: read it, and name it with --hook {}/hook.py if you trust it"),
        (STEP, "o.py", "--hook {}/o.py: the hook of model 'hooked' is another file: {}/hook.py"),
        ("argmax", "hook.py", "--hook {}/hook.py: model 'hooked' declares no hook: drop --hook"),
        (f"{STEP}, {STEP}", "hook.py", "model 'hooked' declares 2 hooks: one is allowed"),
        ("hook: {file: ../hook.py, function: f}", "../hook.py", "model 'hooked': hook {}/../hook.py is outside the manifest's folder"),
        ("hook: {file: gone.py, function: f}", "gone.py", "--hook {}/gone.py does not exist"),
    ],
    ids=["unnamed", "another", "none", "two", "outside", "gone"],
)  # fmt: skip
def test_no_other_file_is_run(tmp_path: Path, steps: str, given: str | None, text: str) -> None:
    """The command reports the problem before anything starts."""
    made = model(tmp_path, steps, "raise SystemExit('it was run')")
    hook = tmp_path / given if given else None
    with pytest.raises(ConfigError) as caught:
        load_hook(made, hook)
    assert str(caught.value) == text.replace("{}", str(tmp_path))
    values: dict[str, Any] = {"model": str(tmp_path / "model.yaml"), "hook": hook}
    assert list(unknown_names(values)) == [str(caught.value)]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", " has no function double"),
        ("raise SystemExit(3)", ": double cannot be imported: SystemExit: 3"),
    ],
)
def test_hook_that_cannot_be_imported_is_refused(tmp_path: Path, code: str, why: str) -> None:
    made = model(tmp_path, code=code)
    with pytest.raises(PluginUnavailable) as caught:
        load_hook(made, tmp_path / "hook.py")
    assert str(caught.value) == f"{tmp_path}/hook.py{why}"
