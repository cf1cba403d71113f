"""The manifest that `init --model` writes agrees with the file, can be loaded, and runs unchanged."""

import multiprocessing
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.core import registry
from harness.models.manifest.lookup import load_model, parse_manifest
from harness.models.manifest.model import MODELS_DIR
from harness.models.opened.loading import inputs_of
from harness.models.opened.template import _plain_name
from harness.types import BackendSetup, Batch, DatasetSetup
from tests.builders.models import foreign_nets as nets
from tests.builders.models.odd_files import INT64, value, write
from tests.builders.refusals import refused
from tests.faults.command import ROOT
from tests.run.test_foreign_runs import WORDS


@pytest.fixture(scope="module")
def by_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with net.onnx, its external data, two.pt2 and rows.pt, as torch writes them."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("torch")
    command = [sys.executable, "-m", "tests.builders.models.torch_files", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def described(model: Path, *words: str) -> dict[str, Any]:
    """Returns the content of the manifest that `init` writes next to the model; every commented line is also valid.

    Runs in a separate process, because TensorFlow keeps the thread count of an earlier test.
    """
    out = model.parent / "made.yaml"
    command = [sys.executable, "-m", "harness", "init", "--model", str(model), "--out", str(out)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=manifest.schema.json\n")
    assert (model.parent / "manifest.schema.json").is_file()
    whole = re.sub(r"(?m)^( *)# (?=[a-z_]+: )", r"\1", text)
    assert len(yaml.safe_load(whole)) >= 12
    parse_manifest(yaml.safe_load(whole), "whole")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def answered(manifest: Path, backend: str, count: int = 2) -> Any:
    """Returns answers to `count` samples of noise; the model is opened as in a run."""
    model = load_model(str(manifest))
    cls = registry.load("backend", backend)
    path = model.path(cls.formats)
    setup = BackendSetup(model=path, model_name=model.name, inputs=model.inputs, max_batch=count)
    with cls(setup) as opened:
        inputs = inputs_of(model, opened)
        noise = registry.load("dataset", "synthetic")(DatasetSetup(inputs=inputs))
        noise.load(range(count))
        answers = opened.infer(noise.batch(range(count)))
        (output, *_) = model.manifest.outputs if model.manifest else ()
        return answers[output.name] if isinstance(answers, dict) else answers


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("mein netz-äü", "mein-netz-au"),
        ("mein netz ß!", "mein-netz"),  # bug: `mein-netz--`
        ("v1.2_net", "v1.2_net"),
        (".hidden-", "hidden"),
        ("网络", "model"),
    ],
)
def test_a_model_has_a_plain_name(stem: str, name: str) -> None:
    assert _plain_name(stem) == name


@pytest.mark.slow
def test_a_file_of_torch_is_pinned_with_its_external_data(by_torch: Path, tmp_path: Path) -> None:
    """Bug: users needed four attempts to write a manifest for files that torch writes by default."""
    for file in by_torch.glob("net.onnx*"):
        shutil.copy(file, tmp_path)
    content = described(tmp_path / "net.onnx")
    assert content["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 16, 16]}]
    assert content["outputs"] == [{"name": "logits"}]
    assert [one["path"] for one in content["files"]["onnx"]["external"]] == ["net.onnx.data"]
    assert load_model(str(tmp_path / "made.yaml")).unpinned_own == []
    assert answered(tmp_path / "made.yaml", "ort").shape == (2, 4)
    with (tmp_path / "net.onnx.data").open("ab") as data:
        data.write(b"x")
    with pytest.raises(Exception, match=r"net\.onnx\.data: SHA-256 is"):
        answered(tmp_path / "made.yaml", "ort")


@pytest.mark.slow
def test_an_exported_program_has_the_names_of_its_answers(by_torch: Path, tmp_path: Path) -> None:
    shutil.copy(by_torch / "two.pt2", tmp_path)
    content = described(tmp_path / "two.pt2")
    assert [(i["name"], i["dtype"], i["shape"]) for i in content["inputs"]] == [
        ("ids", "int64", ["batch", 8]),
        ("mask", "int64", ["batch", 8]),
    ]
    assert [one["name"] for one in content["outputs"]] == ["output_0", "output_1"]
    assert answered(tmp_path / "made.yaml", "torch").shape == (2, 8)


@pytest.mark.slow
def test_a_torchscript_file_needs_shapes_and_its_types_are_tried(
    by_torch: Path, tmp_path: Path
) -> None:
    shutil.copy(by_torch / "rows.pt", tmp_path)
    error = refused("init", "--model", tmp_path / "rows.pt")[-1]
    assert "declares ids" in error
    assert error.endswith(
        "for this command their shapes are enough: --input-shape NAME=1x3x224x224"
    )
    content = described(tmp_path / "rows.pt", "--input-shape", "ids=1x8")
    assert content["inputs"] == [{"name": "ids", "dtype": "int64", "shape": ["batch", 8]}]
    assert answered(tmp_path / "made.yaml", "torch").shape == (2, 8, 4)


@pytest.mark.parametrize(
    ("file", "backend", "kind"),
    [
        ("digits.onnx", "ort", "onnx"),
        ("digits.onnx", "openvino", "onnx"),
        ("digits.tflite", "litert", "tflite"),
        pytest.param("digits.keras", "tensorflow", "keras", marks=pytest.mark.slow),
        pytest.param("digits_savedmodel", "tensorflow", "savedmodel", marks=pytest.mark.slow),
        ("digits_openvino/digits.xml", "openvino", "openvino"),
        ("digits_ncnn/digits.param", "ncnn", "ncnn"),
        ("digits_ncnn", "ncnn", "ncnn"),
        ("digits.mnn", "mnn", "mnn"),
        ("digits.onnx", "tract", "onnx"),
    ],
)
def test_every_format_has_the_inputs_and_digests_of_its_files(
    file: str, backend: str, kind: str, tmp_path: Path
) -> None:
    entry = registry.BACKENDS[backend]
    if not entry.installed:
        pytest.skip(f"{entry.needs} is not installed")
    source = MODELS_DIR / file.partition("/")[0]
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, tmp_path / source.name)
    content = described(tmp_path / file, "--backend", backend)
    assert content["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert content["outputs"] == [{"name": "logits"}]
    assert content["files"].keys() == {kind}
    shipped = load_model("digits").manifest
    assert shipped is not None
    if "/" not in file:
        assert content["files"][kind]["sha256"] == shipped.files[kind].sha256
    else:
        assert [one["path"] for one in content["files"][kind]["external"]] == ["digits.bin"]
    made = (tmp_path / file).parent / "made.yaml"
    # The answers come from a separate process, as in `described`.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
        assert another.submit(answered, made, backend).result().shape == (2, 10)


def test_a_quantised_file_keeps_the_types_of_its_inputs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    source = nets.classifier(tmp_path / "float.onnx")
    path = nets.quantised(source, tmp_path / "net.onnx", "QDQ")
    content = described(path)
    assert content["inputs"][0]["dtype"] == "float32"
    assert answered(tmp_path / "made.yaml", "ort").shape == (2, 10)


def test_text_inputs_have_the_type_string(tmp_path: Path) -> None:
    """Bug: a manifest could not describe a model that takes text."""
    pytest.importorskip("onnxruntime")
    content = described(nets.with_strings(tmp_path / "net.onnx"))
    assert content["inputs"] == [{"name": "words", "dtype": "string", "shape": ["batch", 1]}]
    assert "it has no texts: pass --dataset FILE.py:CLASS" in (tmp_path / "made.yaml").read_text()
    model = load_model(str(tmp_path / "made.yaml"))
    cls = registry.load("backend", "ort")
    setup = BackendSetup(model=model.path(("onnx",)), model_name="net", inputs=model.inputs)
    with cls(setup) as opened:
        assert inputs_of(model, opened) == model.inputs
        words = np.array([["good"], ["bad"]], dtype=object)
        assert opened.infer(Batch(2, {"words": words})).tolist() == [[1.0], [-1.0]]


def test_symbolic_sizes_are_set_or_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ids, y = (value(name, [None, "length"], INT64) for name in ("ids", "y"))
    node = nets.onnx.helper.make_node("Neg", ["ids"], ["y"])
    path = write(tmp_path / "net.onnx", [node], [ids], [y])
    assert described(path)["inputs"][0]["shape"] == ["batch", "length"]
    assert "pass e.g. --input-shape ids=1x64" in (tmp_path / "made.yaml").read_text()
    (tmp_path / "made.yaml").unlink()
    assert described(path, "--input-shape", "ids=1x12")["inputs"][0]["shape"] == ["batch", 12]
    for shape, problem in (("no=1x2", "the model's inputs are ids"), ("ids=1x2x3", "does not fit")):
        assert problem in "".join(refused("init", "--model", path, "--input-shape", shape))


def test_a_fixed_batch_is_the_largest(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = nets.classifier(tmp_path / "net.onnx")
    model = nets.onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    nets.onnx.save(model, path)
    content = described(path)
    assert (content["max_batch"], content["inputs"][0]["shape"][0]) == (4, 4)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "notes.txt",
            "notes.txt is a text file, but not a LightGBM model: --model takes a model file (.onnx, .xml, .pt, .jit, .pt2, ",
        ),
        ("a/net.onnx --out b/net.yaml", "b/net.yaml must be in the folder of a/"),
        ("a/net.onnx", "net.onnx: it is not an ONNX file, or is only a part of one"),
    ],
)
def test_undescribable_file_is_reported_in_one_line_and_leaves_nothing(
    words: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
    for name in ("notes.txt", "a/net.onnx"):
        Path(name).write_text("not a model")
    before = sorted(Path().rglob("*"))
    (line,) = refused("init", "--model", *words.split())
    assert problem in line
    assert sorted(Path().rglob("*")) == before


RUN = (
    *("--scenario", "offline", "--mode", "performance", "--duration", "200ms"),
    *("--no-report", "--no-metrics"),
)


def ran(manifest: Path, *words: str) -> dict[str, Any]:
    """Returns the result of a complete run."""
    out = manifest.parent / "out"
    assert main(["--model", str(manifest), *RUN, "--out", str(out), *words]) in (0, 4)
    content: dict[str, Any] = yaml.safe_load((out / "result.json").read_text())
    assert [r for r in content["reasons"] if r["code"] != "too-few"] == []
    return content


@pytest.mark.slow
def test_a_whole_run_takes_the_manifest_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    described(nets.with_metadata(tmp_path / "net.onnx", external=True))
    result = ran(tmp_path / "made.yaml")
    assert not any("not pinned" in note for note in result["not_for_submission"])


@pytest.mark.slow
def test_whole_runs_of_quantised_files_texts_and_torch(by_torch: Path, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("quantised", "texts", "torch")}
    for folder in folders.values():
        folder.mkdir()
    source = nets.classifier(tmp_path / "float.onnx")
    described(nets.quantised(source, folders["quantised"] / "net.onnx", "QDQ"))
    ran(folders["quantised"] / "made.yaml")
    described(nets.with_strings(folders["texts"] / "net.onnx"))
    (folders["texts"] / "words.py").write_text(WORDS)
    ran(folders["texts"] / "made.yaml", "--dataset", f"{folders['texts']}/words.py:Words")
    shutil.copy(by_torch / "two.pt2", folders["torch"])
    described(folders["torch"] / "two.pt2")
    ran(folders["torch"] / "made.yaml", "--backend", "torch")


@pytest.mark.slow
def test_users_own_file_without_a_checksum_is_a_note_and_not_a_doubt(tmp_path: Path) -> None:
    """Bug: the doubt advised comparing the file with the publisher's, although the user is the publisher."""
    pytest.importorskip("onnxruntime")
    path = nets.classifier(tmp_path / "net.onnx")
    made = tmp_path / "made.yaml"
    content = described(path)
    del content["files"]["onnx"]["sha256"]
    made.write_text(yaml.safe_dump(content))
    result = ran(made)
    note = "the manifest of 'net' has no SHA-256 for net.onnx"
    assert note in result["not_for_submission"]
    assert "model-not-pinned" not in [doubt["code"] for doubt in result["doubts"]]
    assert [*load_model(str(made)).unstated()] == [
        "model 'net' does not state a licence: add `licence` to its manifest",
        "model 'net' does not pin net.onnx: add its `sha256` to the manifest",
    ]
    # The manifest of a foreign file has no digest, either.
    content["files"]["onnx"]["sha256"] = None
    made.write_text(yaml.safe_dump({**content, "licence": "none"}))
    assert load_model(str(made)).unpinned_own == [*load_model(str(made)).unstated()] == []
