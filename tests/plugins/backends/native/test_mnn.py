"""The backend mnn: open and fixed batches, files that are not in MNN's format, and the converter in MNN's package."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.models.manifest.files import files_of
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch, DatasetSetup, TensorSpec
from tests.builders.models.converted import mnn_file
from tests.builders.refusals import Said

pytest.importorskip("MNN")
helper: Any = pytest.importorskip("onnx.helper")

DIGITS = load_model("digits")


def opened(model: Path, inputs: tuple[TensorSpec, ...] = (), **more: Any) -> Any:
    setup = BackendSetup(model=model, model_name="m", inputs=inputs, max_batch=4, **more)
    return registry.load("backend", "mnn")(setup)


def shipped() -> Path:
    path = DIGITS.path(("mnn",))
    assert path is not None
    return path


def converted(nodes: Any, ends: Any, weights: Any, folder: Path) -> Path:
    from tests.builders.models.odd_files import write

    onnx = write(folder / "m.onnx", nodes, ends[:-1], ends[-1:], weights, opset=13)
    return mnn_file(onnx, folder / "m.mnn")


def test_converter_of_the_package_keeps_the_answers(tmp_path: Path) -> None:
    onnx = DIGITS.path(("onnx",))
    assert onnx is not None
    dataset = DigitsDataset(DatasetSetup(inputs=DIGITS.inputs))
    dataset.load(range(4))
    batch = dataset.batch(range(4))
    with opened(mnn_file(onnx, tmp_path / "digits.mnn")) as backend:
        assert (backend.signature()[0].shape, backend.outputs()) == ((None, 1, 8, 8), ("logits",))
        found = np.asarray(backend.infer(batch))
    wanted = pytest.importorskip("onnxruntime").InferenceSession(str(onnx))
    assert np.abs(found - wanted.run(None, batch.inputs)[0]).max() < 1e-4


def test_a_batch_of_one_is_fixed_if_the_network_takes_no_other(tmp_path: Path) -> None:
    """The converter writes 1 for an open batch as well."""
    from tests.builders.models.odd_files import value

    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    ends = [value("x", [1, 4, 3]), value("y", [1, 12])]
    path = converted([node], ends, {"shape": np.array([1, 12])}, tmp_path)
    with opened(path) as backend:
        assert backend.signature() == (TensorSpec("x", "float32", (1, 4, 3)),)
        rows = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
        assert np.asarray(backend.infer(Batch(1, {"x": rows}))).tolist() == [rows.ravel().tolist()]
        with pytest.raises(ConfigError, match="the file fixes the batch at 1, but 2 samples"):
            backend.infer(Batch(2, {"x": np.repeat(rows, 2, axis=0)}))


def test_open_lengths_and_integers_are_answered(tmp_path: Path) -> None:
    from tests.builders.models.odd_files import INT64, value

    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    ends = [value("ids", ["n", "length"], INT64), value("y", ["n", "length", 4])]
    path = converted([node], ends, {"table": table}, tmp_path)
    declared = (TensorSpec("ids", "int64", ("n", "length")),)
    for inputs, dtype in (((), "int32"), (declared, "int64")):
        with opened(path, inputs) as backend:
            assert backend.signature() == (TensorSpec("ids", dtype, (None, None)),)
            for count, length in ((1, 5), (3, 2), (3, 9), (1, 1)):
                ids = np.random.default_rng(length).integers(0, 10, (count, length))
                found = np.asarray(backend.infer(Batch(count, {"ids": ids.astype(dtype)})))
                assert found.tolist() == table[ids].tolist()


def test_several_outputs_keep_the_order_of_the_file(tmp_path: Path) -> None:
    from tests.builders.models.odd_files import value, write

    nodes = [helper.make_node("Relu", ["x"], ["b"]), helper.make_node("Neg", ["x"], ["a"])]
    ends = [value(name, ["n", 3, 2, 2]) for name in "xba"]
    onnx = write(tmp_path / "m.onnx", nodes, ends[:1], ends[1:], opset=13)
    rows = np.random.default_rng(0).standard_normal((2, 3, 2, 2)).astype(np.float32)
    with opened(mnn_file(onnx, tmp_path / "m.mnn")) as backend:
        assert backend.outputs() == ("b", "a")
        found = backend.infer(Batch(2, {"x": rows}))
    assert found["a"].tolist() == (-rows).tolist()
    assert found["b"].tolist() == np.maximum(rows, 0).tolist()


def test_files_with_changed_bytes_are_refused_or_read(tmp_path: Path) -> None:
    """The file reader may raise only a ValueError, and must end."""
    from harness.backends.parts.native import mnn_file as reader

    good, random = shipped().read_bytes(), Random(1)
    path = tmp_path / "m.mnn"
    for _ in range(200):
        content = bytearray(good[: random.choice((len(good), 4000, 100))])
        for _ in range(random.randrange(1, 20)):
            content[random.randrange(min(len(content), 6000))] = random.randrange(256)
        path.write_bytes(content)
        try:
            reader.read(path)
        except ValueError as e:
            assert "\n" not in str(e)  # noqa: PT017 - most of them are refused


def test_weights_in_a_second_file_belong_to_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.mnn"
    path.write_bytes(shipped().read_bytes())
    assert list(files_of(path)) == ["m.mnn"]
    (tmp_path / "m.mnn.weight").write_bytes(b"1234")
    assert list(files_of(path)) == ["m.mnn", "m.mnn.weight"]


def test_nothing_of_mnn_reaches_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with opened(shipped()) as backend:
        backend.infer(Batch(1, {"image": np.zeros((1, 1, 8, 8), np.float32)}))
    assert capfd.readouterr().out == ""


def test_init_writes_a_manifest_from_the_file(tmp_path: Path, prints: Said) -> None:
    path = tmp_path / "m.mnn"
    path.write_bytes(shipped().read_bytes())
    prints("init", "--model", path, "--out", tmp_path / "m.yaml")
    text = (tmp_path / "m.yaml").read_text()
    assert "mnn:\n    path: m.mnn\n" in text
    assert "shape: [batch, 1, 8, 8]" in text
    assert "- name: logits" in text
