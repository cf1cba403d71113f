"""The notebook in examples/ runs from its first cell to its last in a real kernel."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.faults.command import LIMIT_S, ROOT

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def test_the_notebook_is_stored_without_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [one["outputs"] for one in cells if one.get("outputs")] == []


@pytest.mark.slow
def test_the_notebook_runs_headless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    path = shutil.copy(NOTEBOOK, tmp_path)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    client = NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs: list[Any] = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    (shown,) = outputs[1]  # the cell has a single output, because only `run` displayed something
    assert shown.output_type == "execute_result"
    assert "VALID</b> digits · server" in shown.data["text/html"]
    assert shown.data["text/plain"].startswith("<Result ")
    assert "50%" in outputs[5][0].data["text/plain"]
    assert outputs[-1][0].data["text/plain"] == "True"
    (folder,) = [p for p in (tmp_path / "results").iterdir() if p.is_dir() and not p.is_symlink()]
    assert (folder / "result.json").is_file()
