"""The backend tract: ONNX files, the three forms of NNEF, sizes without names, and tract's single thread."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch, DatasetSetup, TensorSpec
from tests.builders.models.converted import nnef_file
from tests.builders.refusals import Said

tract: Any = pytest.importorskip("tract")
helper: Any = pytest.importorskip("onnx.helper")
tract_calls: Any = import_module("harness.backends.parts.native.tract_calls")

DIGITS = load_model("digits")
FORMS = ("m.nnef.tgz", "m.nnef.tar", "folder")


def opened(model: Path, inputs: tuple[TensorSpec, ...] = (), **more: Any) -> Any:
    values = {"model_name": "m", "max_batch": 4, "inputs": inputs, **more}
    return registry.load("backend", "tract")(BackendSetup(model=model, **values))


def onnx_file() -> Path:
    path = DIGITS.path(("onnx",))
    assert path is not None
    return path


def refusal(model: Path, inputs: tuple[TensorSpec, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught, opened(model, inputs):
        pass
    assert "\n" not in str(caught.value)
    assert "backtrace" not in str(caught.value)
    assert str(caught.value).startswith(f"{model}: tract cannot load it: ")
    return str(caught.value).removeprefix(f"{model}: tract cannot load it: ")


@pytest.mark.parametrize("name", FORMS)
def test_nnef_that_tract_writes_keeps_names_and_answers(name: str, tmp_path: Path) -> None:
    dataset = DigitsDataset(DatasetSetup(inputs=DIGITS.inputs))
    dataset.load(range(4))
    path = nnef_file(onnx_file(), tmp_path / name)
    with opened(path) as backend, opened(onnx_file()) as other:
        assert backend.signature() == (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)
        assert backend.outputs() == ("logits",)
        for size in (1, 3, 4, 2):
            batch = dataset.batch(range(size))
            found, wanted = (np.asarray(one.infer(batch)) for one in (backend, other))
            assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("name", FORMS[:2])
@pytest.mark.parametrize("content", [b"", b"not an archive", bytes(2000), "cut"])
def test_an_archive_that_is_broken_is_one_line(
    name: str, content: bytes | str, tmp_path: Path
) -> None:
    path = nnef_file(onnx_file(), tmp_path / name)
    path.write_bytes(path.read_bytes()[:5000] if isinstance(content, str) else content)
    assert ": fetch it again" in refusal(path)


def test_folder_without_graph_is_refused(tmp_path: Path) -> None:
    assert "graph.nnef" in refusal(tmp_path)


def test_sizes_without_names_stay_open(tmp_path: Path) -> None:
    from tests.builders.models.odd_files import OPEN_SIZES, value, write

    node = helper.make_node("Relu", ["x"], ["y"])
    rows = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    for name, size in OPEN_SIZES.items():
        ends = [value(end, [size, size]) for end in "xy"]
        path = write(tmp_path / f"{name}.onnx", [node], ends[:1], ends[1:], opset=13)
        with opened(path) as backend:
            (spec,) = backend.signature()
            assert not any(isinstance(one, int) for one in spec.shape), name
            for count in (1, 2):
                found = np.asarray(backend.infer(Batch(count, {"x": rows[:count]})))
                assert found.tolist() == np.maximum(rows[:count], 0).tolist(), name


def test_input_without_any_shape_takes_the_manifests(tmp_path: Path) -> None:
    from tests.builders.models.odd_files import value, write

    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [value(end, None) for end in "xy"]
    path = write(tmp_path / "m.onnx", [node], ends[:1], ends[1:], opset=13)
    assert refusal(path).startswith("input 'x' has no shape: export the model with one")
    with opened(path, (TensorSpec("x", "float32", ("n", 2)),)) as backend:
        found = backend.infer(Batch(1, {"x": np.array([[-1, 2]], np.float32)}))
        assert np.asarray(found).tolist() == [[0, 2]]


def test_operator_that_tract_lacks_is_one_line(tmp_path: Path) -> None:
    from tests.builders.models.odd_files import value, write

    node = helper.make_node("Nosuch", ["x"], ["y"], domain="mine")
    ends = [value(end, ["n", 3]) for end in "xy"]
    path = write(tmp_path / "m.onnx", [node], ends[:1], ends[1:], mine=1)
    assert "Nosuch" in refusal(path)


def test_threads_are_one_and_more_are_refused(refuses: Said, tmp_path: Path) -> None:
    words = ("--scenario", "single-stream", "--backend", "tract", "--mode", "performance")
    out = ("--duration", "100ms", "--out", tmp_path)
    assert refuses(*words, "--threads", 2, *out) == (
        "--threads 2: backend 'tract' computes on one thread: drop --threads, and raise --instances"
    )


def test_half_precision_keeps_the_types_of_the_file() -> None:
    rows = np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
    with opened(onnx_file(), options={"precision": "f16"}) as half, opened(onnx_file()) as whole:
        assert half.signature()[0].dtype == "float32"
        assert half.describe()["precision"] == "float16"
        found, wanted = (np.asarray(one.infer(Batch(2, {"image": rows}))) for one in (half, whole))
    assert found.dtype == np.float32
    assert 1e-5 < np.abs(found - wanted).max() < 0.1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32"])
def test_library_answers_as_its_package_does(dtype: str, tmp_path: Path) -> None:
    """Uses a network with two outputs and two inputs; one input has no dimensions."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Add", ["x", "b"], ["y"]), helper.make_node("Sub", ["x", "b"], ["z"])]
    shapes = {"x": [2, 3], "b": []}
    inputs = [helper.make_tensor_value_info(name, kind, size) for name, size in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in "yz"]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    runnable = tract.onnx().load(path).into_model().into_runnable()
    direct, packaged = tract_calls.network_of(runnable), tract_calls._Packaged(runnable)
    assert isinstance(direct, tract_calls._Direct)
    x, b = np.arange(6).reshape(2, 3).astype(dtype), np.array(2, dtype)
    first = direct.run([x, b])
    direct.run([x + x, b])
    wanted = packaged.run([x, b])
    for mine, theirs in zip(first, wanted, strict=True):
        assert mine.dtype == theirs.dtype == np.dtype(dtype)
        assert mine.tolist() == theirs.tolist()
    assert first[0].tolist() == (x + 2).tolist()
    with pytest.raises(tract.TractError):
        direct.run([x[:1], b])
    assert direct.run([x, b])[1].tolist() == (x - 2).tolist()


def test_package_answers_if_the_library_has_no_such_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
    with opened(onnx_file()) as backend:
        wanted = np.asarray(backend.infer(Batch(2, {"image": rows})))

    def without() -> None:
        raise AttributeError("undefined symbol")

    monkeypatch.setattr(tract_calls, "_functions", without)
    with opened(onnx_file()) as backend:
        assert np.array_equal(np.asarray(backend.infer(Batch(2, {"image": rows}))), wanted)
