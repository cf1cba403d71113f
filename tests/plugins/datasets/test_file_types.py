"""The dataset of file types: reliable labels, the same features as the package magika, and the same files in every run."""

import io
import shutil
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import pytest

from harness.datasets.file_types import (
    BEGIN_BYTES,
    LABELS,
    PADDING,
    FileTypesCalibration,
    FileTypesDataset,
    features,
)
from harness.datasets.parts.interpreter_files import found
from harness.models.manifest.files import sha256_of
from harness.models.manifest.lookup import load_model
from harness.types import ClassName, DatasetSetup, TensorSpec
from tests.builders.refusals import refusal
from tests.faults.command import result, run

SETUP = DatasetSetup(inputs=(TensorSpec("bytes", "int32", ("batch", 2048)),))


@pytest.fixture(scope="module")
def data() -> FileTypesDataset:
    return FileTypesDataset(SETUP)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a small fake standard library of Python."""
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(folder))
    monkeypatch.setattr(np, "__file__", f"{tmp_path}/none/__init__.py")
    return folder


def test_short_file_is_padded_between_beginning_and_end() -> None:
    row = features(b" \n\t ab c\x00 \r\n")
    assert row.dtype == np.int32
    assert row[:6].tolist() == [*b"ab c\x00 ", *b"\r\n"][:6]
    assert row[8:-9].tolist() == [PADDING] * (2048 - 17)
    assert row[-9:].tolist() == [*b" \n\t ab c\x00"]


def test_long_file_gives_its_first_and_last_bytes() -> None:
    content = bytes(range(1, 9)) * 1000
    row = features(content)
    assert row[:BEGIN_BYTES].tolist() == [*content[:1024]]
    assert row[BEGIN_BYTES:].tolist() == [*content[-1024:]]


def test_white_space_is_removed_only_from_the_block_that_is_read() -> None:
    content = b" " * 4090 + b"abcdef" + b"x" * 5000 + b"z" + b" " * 4095
    row = features(content)
    assert row[:7].tolist() == [*b"abcdef", PADDING]
    assert row[-2:].tolist() == [PADDING, ord("z")]
    assert (features(b" " * 5000) == PADDING).all()


def test_every_python_has_these_types(data: FileTypesDataset) -> None:
    made = {"zip", "tar", "gzip", "bzip", "xz", "sqlite", "npy", "npz", "json"}
    assert {"python", *made} <= set(data.class_names().values())
    assert len(data) > 100
    assert max(data.class_names()) < len(LABELS) == 214


def test_labels_are_names_with_the_number_of_the_class(data: FileTypesDataset) -> None:
    for index in range(len(data)):
        label = data.label(index)
        assert isinstance(label, ClassName)
        assert LABELS[label.number] == label


def test_content_agrees_with_the_label(data: FileTypesDataset) -> None:
    heads = {"elf": b"\x7fELF", "gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ", "zip": b"PK\3\4"}
    heads |= {"npy": b"\x93NUMPY", "sqlite": b"SQLite", "png": b"\x89PNG", "bzip": b"BZh"}
    seen = set()
    for file in data._files:
        if file.label in heads:
            seen.add(file.label)
            assert file.content().startswith(heads[file.label]), file.name
    assert {"gzip", "xz", "zip", "npy", "sqlite", "bzip"} <= seen


def test_two_datasets_have_the_same_files(data: FileTypesDataset) -> None:
    assert FileTypesDataset(SETUP).describe() == data.describe()


def test_calibration_shares_no_file(data: FileTypesDataset) -> None:
    other = data.calibration()
    assert isinstance(other, FileTypesCalibration)
    names = {file.name for file in data._files}
    assert len(other) > 10
    assert not names & {file.name for file in other._files}


def test_batches_hold_the_rows_of_their_files(data: FileTypesDataset) -> None:
    data.load([5, 3, 9])
    batch = data.batch([3, 9])
    expected = [features(data._files[index].content()) for index in (3, 9)]
    assert batch.inputs["bytes"].tolist() == [row.tolist() for row in expected]
    data.unload([5, 3, 9])


def test_a_file_whose_content_contradicts_its_suffix_is_left_out(python: Path) -> None:
    source = b"import os\n" + b"print(os)\n" * 50
    for name in ("a.py", "b.py", "test/c.py", "site-packages/d.py", "__pycache__/e.py"):
        (python / name).parent.mkdir(exist_ok=True)
        (python / name).write_bytes(source)
    (python / "short.py").write_bytes(b"import os\n")
    (python / "latin.py").write_bytes(source + b"# \xe9\n")
    (python / "text.py").write_bytes(b"just a text\n" * 50)
    (python / "cut.json").write_bytes(b"[1, 2, " * 100)
    (python / "scalar.json").write_bytes(b'"' + b"a" * 300 + b'"')
    (python / "whole.json").write_bytes(b"[" + b"1, " * 200 + b"2]")
    (python / "text.png").write_bytes(b"no picture " * 50)
    (python / "gone.so").symlink_to(python / "nowhere")
    by_label = {label: {f.name for f in files} for label, files in found(LABELS, 32).items()}
    assert by_label["python"] == {"stdlib/a.py", "stdlib/b.py", "include/a.py", "include/b.py"}
    assert {n for n in by_label["json"] if " of " not in n} == {
        "stdlib/whole.json",
        "include/whole.json",
    }
    assert not {"png", "elf"} & by_label.keys()


def test_made_files_can_be_read_back(python: Path) -> None:
    for name in ("a.py", "b.py"):
        (python / name).write_bytes(b"import os\n" + b"print(os)\n" * 50)
    files = {label: one[0].content() for label, one in found(LABELS, 32).items()}
    assert len(zipfile.ZipFile(io.BytesIO(files["zip"])).namelist()) == 2
    assert np.load(io.BytesIO(files["npy"])).shape == (102,)
    assert [array.shape for array in np.load(io.BytesIO(files["npz"])).values()] == [(51,), (51,)]
    base = sqlite3.connect(":memory:")
    base.deserialize(files["sqlite"])
    assert base.execute("SELECT count(*) FROM lines").fetchone() == (102,)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("bytes", "int32", ("batch", 1024)),
        TensorSpec("bytes", "float32", ("batch", 2048)),
    ],
)
def test_a_model_with_other_inputs_is_refused(spec: TensorSpec) -> None:
    line = refusal(FileTypesDataset, DatasetSetup(inputs=(spec,)))
    assert line.startswith(
        "dataset 'file-types' has int32 samples of shape [2048], but the model takes"
    )


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    line = refusal(FileTypesDataset, DatasetSetup(inputs=SETUP.inputs, data_dir=tmp_path))
    assert line.startswith("dataset 'file-types' does not use --data-dir")


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the installed package's model into the cache, as if it had been fetched."""
    magika = pytest.importorskip("magika")
    file = Path(magika.__file__).parent / "models/standard_v3_3/model.onnx"
    place = tmp_path / "cache/mlperf-harness/models/magika/model.onnx"
    place.parent.mkdir(parents=True)
    shutil.copy(file, place)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    return place


@pytest.mark.slow
def test_answers_are_those_of_the_package_magika(model_file: Path, data: FileTypesDataset) -> None:
    """With the same features and label order, each file gets the same class and score."""
    magika, onnxruntime = map(pytest.importorskip, ("magika", "onnxruntime"))
    pinned = load_model("magika")
    assert pinned.path(("onnx",)) == model_file
    assert pinned.sha256(model_file) == sha256_of(model_file)
    data.load(range(len(data)))
    inputs = data.batch(range(len(data))).inputs
    (scores,) = onnxruntime.InferenceSession(str(model_file)).run(["target_label"], inputs)
    theirs = magika.Magika()
    for file, row in zip(data._files, scores, strict=True):
        found_there = theirs.identify_bytes(file.content()).prediction
        assert str(found_there.dl.label) == LABELS[row.argmax()], file.name
        assert found_there.score == pytest.approx(row.max(), abs=1e-4), file.name


@pytest.mark.slow
@pytest.mark.limit_s(1800)
@pytest.mark.parametrize("scenario", ["offline", "server", "single-stream", "multi-stream"])
@pytest.mark.parametrize("backend", ["ort", "openvino"])
def test_the_model_magika_is_valid(
    model_file: Path, tmp_path: Path, scenario: str, backend: str
) -> None:
    pytest.importorskip({"ort": "onnxruntime"}.get(backend, backend))
    words = ["--scenario", scenario, "--model", "magika", "--backend", backend, "--duration", "1s"]
    words += ["--slo", "p99=60s"] if scenario == "server" else []
    env = {"XDG_CACHE_HOME": f"{tmp_path}/cache"}
    ended = run(*words, "--out", f"{tmp_path}/r", "--quiet", env=env)
    measured = result(tmp_path / "r")
    assert (measured["verdict"], ended.status) == ("VALID", 0), (measured["reasons"], ended.said)
    assert 96 <= measured["accuracy"]["value"] <= 100
