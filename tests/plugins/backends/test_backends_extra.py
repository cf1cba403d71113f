"""Backends whose package is missing, and the one framework that the fast tests run for real."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.core import registry
from harness.core.config.run_config import from_plain
from harness.core.extras import how_to_install
from harness.errors import ConfigError
from harness.models.manifest.files import size_bytes
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.opened.loading import model_file

ROOT = Path(__file__).parents[3]
EXTRAS = {name: entry for name, entry in registry.BACKENDS.items() if entry.extra}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_package_is_exit_3_with_the_command_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = EXTRAS[name]
    code = (
        f"import sys; sys.modules[{entry.needs!r}] = None; from harness.cli.main import main; "
        f"sys.exit(main(['--scenario', 'offline', '--backend', {name!r}]))"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    # Only the first line is compared, because a second line may name what the metric needs.
    assert done.stderr.splitlines()[0] == (
        f"harness: backend {name!r} needs the module {entry.needs!r}: {how_to_install(entry.extra)}"
    )
    assert list(tmp_path.iterdir()) == []


def test_tensorflow_runs_end_to_end(tmp_path: Path) -> None:
    if not EXTRAS["tensorflow"].installed:
        pytest.skip("extra 'tensorflow' is not installed")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "harness", "--scenario", "offline", "--backend", "tensorflow"]
    command += ["--mode", "accuracy", "--out", str(out), "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["accuracy"]["value"] == pytest.approx(99.2)


def _path(backend: str, *options: str) -> Path | None:
    values = {"scenario": "offline", "backend": backend, "backend_option": list(options)}
    return model_file(from_plain(values), load_model("digits"))


def test_format_chooses_among_the_manifests_files() -> None:
    assert _path("ort", "format=onnx") == MODELS_DIR / "digits.onnx"
    with pytest.raises(ConfigError) as caught:
        _path("ort", "format=tflite")
    assert str(caught.value) == "--backend-option format: backend 'ort' reads onnx, not 'tflite'"


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "deep" / "b").write_bytes(b"4567")
    assert (size_bytes(tmp_path), size_bytes(tmp_path / "a")) == (7, 3)


UNNEEDED = ("build", "results", "tests")
"""Top-level folders of a checkout that the test does not copy."""


@pytest.mark.slow
def test_tensorflow_does_not_round_float32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's default on a GPU is TF32, but results say float32."""
    tf: Any = pytest.importorskip("tensorflow")
    backend: Any = import_module("harness.backends.tensorflow")
    visible: list[list[str]] = []
    monkeypatch.setattr(backend, "_gpus", lambda: ["gpu 0", "gpu 1"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, _: visible.append(gpus))
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        backend._choose_device("cuda:1")
        assert visible == [["gpu 1"]]
        assert not tf.config.experimental.tensor_float_32_execution_enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["option", "config"])
def test_run_sh_installs_the_extra_on_first_use_and_announces_it(
    source: str, tmp_path: Path
) -> None:
    """Uses a checkout without an environment, and LiteRT, which is the smallest framework to install."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for entry in ROOT.iterdir():
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in UNNEEDED:
            shutil.copytree(entry, checkout / entry.name, symlinks=True, ignore=unwanted)
        elif entry.is_file():
            shutil.copy(entry, checkout)
    if (ROOT / ".uv" / "bin").exists():
        shutil.copytree(ROOT / ".uv", checkout / ".uv")  # the copy of .uv saves a download
    (checkout / "run.yaml").write_text("scenario: offline\nbackend: litert\n")
    chosen = {"option": ["--scenario", "offline", "--backend", "litert"]}
    command = [str(checkout / "run.sh"), *chosen.get(source, ["--config", "run.yaml"])]
    command += ["--queries", "2000"]
    first, second = (
        subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "run.sh: installing 'litert' into .venv (first use)" in first.stderr
    assert second.returncode == 0, second.stdout + second.stderr
    assert "installing" not in second.stderr
