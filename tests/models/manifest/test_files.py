"""A model's digest covers every file that the model reads, and a model reads no file outside its folder."""

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from harness.core.formats.onnx_tensors import external_data
from harness.models.manifest.files import files_of, sha256_of, size_bytes
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR, Model
from tests.builders.models.external import ROWS, external, split
from tests.builders.refusals import refusal
from tests.faults.command import run


def test_a_file_alone_has_its_own_digest() -> None:
    path = MODELS_DIR / "digits.onnx"
    assert files_of(path) == {"digits.onnx": path}
    assert sha256_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert size_bytes(path) == path.stat().st_size


def test_digest_of_several_files_is_that_of_the_sha256sum_output(tmp_path: Path) -> None:
    path = split(tmp_path)
    assert list(files_of(path)) == ["model.onnx", "weights.bin"]
    assert size_bytes(path) == path.stat().st_size + ROWS.nbytes
    lines = (
        f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("model.onnx", "weights.bin")
    )
    before = sha256_of(path)
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    (tmp_path / "weights.bin").write_bytes((ROWS + 1).tobytes())
    assert sha256_of(path) != before


def test_the_weights_of_an_ir_count(tmp_path: Path) -> None:
    folder = MODELS_DIR / "digits_openvino"
    xml = shutil.copy(folder / "digits.xml", tmp_path)
    assert list(files_of(Path(xml))) == ["digits.xml"]
    shutil.copy(folder / "digits.bin", tmp_path)
    assert list(files_of(Path(xml))) == ["digits.bin", "digits.xml"]
    assert sha256_of(Path(xml)) == sha256_of(folder)


def test_external_data_is_found_wherever_a_tensor_can_be() -> None:
    inner = helper.make_graph([], "inner", [], [], [external("in a subgraph")])
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(1, np.float32)),
        numpy_helper.from_array(np.zeros(1, np.int64)),
        [3],
    )
    sparse.values.CopyFrom(external("in a sparse tensor"))
    several = helper.make_node("X", [], ["a"])
    several.attribute.append(helper.make_attribute("ts", [external("in a list of tensors")]))
    several.attribute.append(helper.make_attribute("gs", [inner]))
    constant = helper.make_node("Constant", [], ["c"], value=external("in a constant"))
    opset = helper.make_opsetid("", 17)
    held = helper.make_function("d", "f", [], ["c"], [constant], [opset])
    graph = helper.make_graph([several], "g", [], [], [external("in the graph")])
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph, functions=[held])
    training = model.training_info.add()
    training.algorithm.initializer.append(external("in training"))
    here = numpy_helper.from_array(ROWS, "here")
    here.external_data.add(key="location", value="not external")
    graph.initializer.append(here)
    places = ("subgraph", "sparse tensor", "list of tensors", "constant")
    found = external_data(memoryview(model.SerializeToString()))
    assert found == {*(f"in a {place}" for place in places), "in the graph", "in training"}


@given(st.binary(max_size=200))
def test_bytes_of_no_model_name_no_files_or_raise_value_error(content: bytes) -> None:
    with suppress(ValueError):
        assert external_data(memoryview(content)) == set()


@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04", b"\x00" * 1000])
def test_files_of_other_formats_are_not_parsed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    assert files_of(path) == {"model.tflite": path}


@pytest.mark.parametrize(
    "location", ["../out.bin", "/etc/hostname", "a/../../out.bin", "link.bin", "a\0b"]
)
def test_weights_outside_of_the_folder_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "out.bin").write_bytes(ROWS.tobytes())
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.bin").symlink_to("../out.bin")
    path = split(inside, location)
    said = refusal(load_model(str(path)).path, ("onnx",))
    assert said.startswith(f"{path} reads ")
    assert said.endswith(", which is not in its folder")


def test_a_model_in_a_cache_of_links_is_read(tmp_path: Path) -> None:
    """Caches store files by their digest, and link to them under the original names."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "names").mkdir()
    path = split(tmp_path / "blobs")
    for name in ("model.onnx", "weights.bin"):
        (tmp_path / "names" / name).symlink_to(f"../blobs/{name}")
    assert sha256_of(tmp_path / "names/model.onnx") == sha256_of(path)


@pytest.mark.parametrize("name", ["weights.bin", "circle"])
def test_missing_weights_are_named(name: str, tmp_path: Path) -> None:
    """Bug: for a cycle of links, the message depended on the Python version."""
    path = split(tmp_path, name)
    (tmp_path / name).unlink(missing_ok=True)
    if name == "circle":
        (tmp_path / name).symlink_to(name)
    said = f"{path} reads {name!r}, which is missing: put it next to the model file"
    assert refusal(files_of, path) == said


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def declared(folder: Path, path: Path, **more: Any) -> Model:
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    content |= {"name": "split", "files": {"onnx": {"path": path.name, **more}}}
    (folder / "split.yaml").write_text(yaml.safe_dump(content))
    return load_model(str(folder / "split.yaml"))


def test_a_manifest_pins_each_file_that_is_read(tmp_path: Path) -> None:
    path = split(tmp_path)
    weights = tmp_path / "weights.bin"
    own, theirs = digest(path), {"path": "weights.bin", "sha256": digest(weights)}
    model = declared(tmp_path, path, sha256=own, external=[theirs])
    assert model.path(("onnx",)) == path
    assert model.sha256(path) == sha256_of(path)
    assert model.is_pinned(sha256_of(path))
    assert not model.is_pinned(own)

    assert refusal(declared(tmp_path, path, sha256=own).path, ("onnx",)).startswith(
        f"{path} reads 'weights.bin', which the manifest of 'split' does not"
    )
    other = {"path": "other.bin", "sha256": "0" * 64}
    assert refusal(
        declared(tmp_path, path, sha256=own, external=[theirs, other]).path, ("onnx",)
    ).startswith(f"{path} does not read 'other.bin', which the manifest of 'split' li")

    weights.write_bytes((ROWS + 1).tobytes())
    assert refusal(model.path, ("onnx",)).startswith(
        f"{weights}: SHA-256 is {digest(weights)[:12]}…, but the manifest of 'split'"
    )


def test_manifest_without_a_checksum_accepts_any_file(tmp_path: Path) -> None:
    path = split(tmp_path)
    model = declared(tmp_path, path, sha256=None)
    assert model.path(("onnx",)) == path
    assert not model.is_pinned(model.sha256(path))


def test_external_files_are_fetched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    away = tmp_path / "away"
    away.mkdir()
    path = split(away)
    weights = away / "weights.bin"
    (tmp_path / "here").mkdir()
    model = declared(
        tmp_path / "here",
        path,
        sha256=digest(path),
        source=path.as_uri(),
        external=[{"path": weights.name, "sha256": digest(weights), "source": weights.as_uri()}],
    )
    assert model.may_have_to_be_obtained
    said: list[str] = []
    model.obtain(("onnx",), said.append)
    assert [s for s in said if s.startswith("fetching")] == [
        f"fetching {path.as_uri()}, once",
        f"fetching {weights.as_uri()}, once",
    ]
    assert not load_model(str(tmp_path / "here/split.yaml")).may_have_to_be_obtained
    found = model.path(("onnx",))
    assert found == tmp_path / "cache/mlperf-harness/models/split/model.onnx"
    assert sha256_of(found) == sha256_of(path)


@pytest.mark.parametrize("path", ["../x.bin", "/etc/hostname"])
def test_an_external_path_does_not_leave_the_folder(path: str, tmp_path: Path) -> None:
    model = declared(
        tmp_path,
        split(tmp_path),
        sha256=None,
        external=[{"path": path, "sha256": "0" * 64, "source": "https://example.org/x"}],
    )
    wanted = f"model 'split': file {path} is outside the manifest's folder"
    assert refusal(model.obtain, ("onnx",), print) == wanted


@pytest.mark.slow
def test_a_repeated_run_notices_changed_weights(tmp_path: Path) -> None:
    """The real command records the digest, and refuses a second run if the digest has changed."""
    path = split(tmp_path)
    ask = ("--scenario", "offline", "--mode", "performance", "--queries", "200")
    done = run(*ask, "--model", str(path), "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    environment = json.loads((tmp_path / "r/environment.json").read_text())
    assert environment["model_sha256"] == sha256_of(path)
    (tmp_path / "weights.bin").write_bytes((ROWS + 1).tobytes())
    done = run("--config", f"{tmp_path}/r/config.yaml", "--out", f"{tmp_path}/s")
    assert done.status == 2
    assert "harness: the model file has changed: its digest is" in done.said


def test_model_saved_by_onnx_with_external_data_names_both_files(tmp_path: Path) -> None:
    """The onnx package itself stores the weights in a separate file."""
    whole = onnx.load(MODELS_DIR / "digits.onnx")
    onnx.save(whole, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64)  # fmt: skip
    assert list(files_of(tmp_path / "m.onnx")) == ["m.data", "m.onnx"]


def odd(content: bytes, way: str) -> bytes:
    """Returns a model that every protobuf parser reads alike, because parsers accept unknown fields."""
    if way == "a group":
        return content + b"\xc3\x3e\xc4\x3e"  # the bytes are the start and the end of field 1000
    if way == "no UTF-8":
        return content.replace(b"checksum", b"check\xff\xfe!")
    return content


@pytest.mark.parametrize("way", ["a group", "no UTF-8"])
def test_weights_file_is_found_despite_odd_bytes(way: str) -> None:
    """Bug: after a ValueError, the file was considered complete without its weights, which could change unnoticed."""
    tensor = external("weights.bin")
    tensor.external_data.add(key="checksum", value="0")
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    content = odd(model.SerializeToString(), way)
    assert external_data(memoryview(content)) == {"weights.bin"}


def test_a_tensor_in_two_parts_is_one_tensor() -> None:
    """Parsers merge the two parts: one says that the data are external, the other says where."""
    tensor, where = external("weights.bin"), external("weights.bin")
    tensor.ClearField("external_data")
    where.ClearField("data_location")
    parts = [part.SerializeToString() for part in (tensor, where)]
    attribute = b"".join(bytes([5 << 3 | 2, len(part)]) + part for part in parts)
    node = bytes([5 << 3 | 2, len(attribute)]) + attribute
    graph = bytes([1 << 3 | 2, len(node)]) + node
    model = bytes([7 << 3 | 2, len(graph)]) + graph
    assert external_data(memoryview(model)) == {"weights.bin"}
