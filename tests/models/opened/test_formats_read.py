"""A backend that does not read the model's file is refused before its framework is imported."""

import sys
from pathlib import Path

import pytest

from harness.core.config.run_config import RunConfig, from_plain
from harness.errors import ConfigError
from harness.run.supervisor.preflight import resolve

MODULE = "harness.backends.executorch"


def config(**more: object) -> RunConfig:
    plain = {"scenario": "offline", "mode": "performance", "backend": "executorch"}
    return from_plain({**plain, **more})


def refusal(given: RunConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the error; fails if the check imports the backend."""
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ConfigError) as caught:
        resolve(given)
    assert MODULE not in sys.modules
    return str(caught.value)


def test_wrong_kind_of_file_is_refused_without_the_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: `--backend executorch --model o.onnx` imported ExecuTorch for 4 to 14 s, and only then was refused."""
    path = tmp_path / "o.onnx"
    path.write_bytes(b"\x08\x07")
    said = refusal(config(model=str(path)), monkeypatch)
    assert said == "o.onnx is an ONNX file: pass --backend ort"


def test_model_without_a_fitting_file_is_refused_without_the_framework(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = refusal(config(model="tinylm"), monkeypatch)
    assert said.startswith(
        "model 'tinylm' has no file in a format this backend reads (executorch): "
    )


def test_unread_format_is_refused_without_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(config(model="digits", backend_option=["format=onnx"]), monkeypatch)
    assert said == "--backend-option format: backend 'executorch' reads executorch, not 'onnx'"
