"""The harness recognises a model file for a different backend before any framework reads it."""

from pathlib import Path

import pytest

from harness.core import registry
from harness.errors import ConfigError
from harness.models.manifest.candidates import check_readable
from harness.models.manifest.formats import BY_SUFFIX, SAVED_MODEL, Format
from harness.models.manifest.lookup import load_model


def refusal(path: Path, *formats: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(str(path)).path(formats)
    return str(caught.value)


def test_a_file_for_another_backend_names_that_backend(tmp_path: Path) -> None:
    """Bug: for an ONNX file, the messages were "Protobuf parsing failed" and "your checkpoint file is corrupted"."""
    for name in ("m.pt2", "m.onnx"):
        (tmp_path / name).write_bytes(b"\x08\x07")
    torch = "m.pt2 is a torch.export program: pass --backend torch"
    assert refusal(tmp_path / "m.pt2", "onnx") == torch
    ort = "m.onnx is an ONNX file: pass --backend ort"
    assert refusal(tmp_path / "m.onnx", "torchscript", "torch-export") == ort
    model = load_model(str(tmp_path / "m.onnx"))
    assert (model.may_have("openvino"), model.may_have("onnx")) == (False, True)


def test_folder_or_text_without_a_model_is_refused_with_the_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a folder caused "no model named 'docs'", and a text file was parsed as a model."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("README.md").write_text("# Größe\n")
    lacks = "docs is a folder without a model: a SavedModel has saved_model.pb"
    assert refusal(Path("docs"), "savedmodel", "keras") == lacks
    assert refusal(Path("README.md"), "onnx") == (
        "README.md is a text file: --model takes a model file (.onnx, .xml, .pt, .jit, .pt2, .keras, .tflite, "
        ".pte, .ubj, .tl, .param, .mnn, .gguf, .nnef.tgz, .nnef.tar, or .json and .txt of boosted trees), "
        "the folder of a SavedModel, or a manifest (.yaml)"
    )
    Path("docs/saved_model.pb").touch()
    assert load_model("docs").path(("savedmodel",)) == tmp_path / "docs"


@pytest.mark.parametrize(
    ("name", "kind"), [("x.json", "an XGBoost model"), ("x.txt", "a LightGBM model")]
)
def test_text_without_trees_is_called_no_tree_model(name: str, kind: str, tmp_path: Path) -> None:
    """Bug: the message listed the suffixes of models without .json and .txt, which files of trees have."""
    path = tmp_path / name
    path.write_text("[1, 2]\n")
    assert f"{name} is a text file, but not {kind}: --model takes " in refusal(path, "xgboost")


def test_other_formats_are_left_to_the_backend(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"\x08\x07")
    (tmp_path / "m.txt").write_text("rules")
    assert load_model(str(tmp_path / "m.bin")).path(("onnx",)) == tmp_path / "m.bin"
    assert load_model(str(tmp_path / "m.txt")).path(("my-rules",)) == tmp_path / "m.txt"


@pytest.mark.slow
@pytest.mark.parametrize("one", [*BY_SUFFIX.values(), SAVED_MODEL], ids=lambda one: one.name)
def test_the_backend_that_is_advised_reads_the_format(one: Format) -> None:
    entry = registry.BACKENDS[one.backend]
    if not entry.installed:
        pytest.skip(f"needs {entry.needs}")
    assert one.name in registry.load("backend", one.backend).formats


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("net.onnx", b"", ": the file is empty: fetch it again"),
        ("net.onnx", b"version https://git-lfs.github.com/spec/v1\n", ": it is a Git LFS pointer"),
        ("net.tflite", b"\n<!DOCTYPE html><html>", ": it is a web page"),
        ("net.keras", b'{"error": "not found"}', ": it is JSON, perhaps a server's error"),
        ("net.pth", b"PK\x03\x04\x00", " is weights without their network: load them"),
        ("net.SafeTensors", b"\x00\x01", " is weights without their network: load them"),
        ("net.plan", b"\x00", " is a TensorRT engine: pass the ONNX file"),
        ("model.json", b"{}", " is a TensorFlow.js model: convert it"),
    ],
)
def test_file_that_is_not_a_model_is_named_with_advice(
    name: str, content: bytes, text: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    formats = {"net.tflite": "tflite", "net.keras": "keras"}
    assert refusal(path, formats.get(name, "onnx")).startswith(name + text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("net/tiny.pth", "tiny.pth is weights without their network: load them"),
        ("model/model.json", "model.json is a TensorFlow.js model: convert it"),
        ("net/code.py", "no backend reads code.py: name a file in one of the formats .onnx"),
    ],
)
def test_file_of_a_package_that_is_not_a_model_is_refused_with_advice(file: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_readable(f"pypi:net==1.0:{file}", file)
    assert str(refused.value).startswith(f"--model pypi:net==1.0:{file}: {text}")


def test_torchscript_has_two_suffixes(tmp_path: Path) -> None:
    check_readable("pypi:net==1.0:net.jit", "net.jit")
    path = tmp_path / "net.jit"
    path.write_bytes(b"PK\x03\x04\x00")
    assert load_model(str(path)).path(("torchscript",)) == path
    assert "net.jit is a TorchScript file: pass --backend torch" in refusal(path, "onnx")


def test_a_checkpoint_folder_names_its_export(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "is a HuggingFace checkpoint: export it with optimum-cli" in refusal(tmp_path, "onnx")
