"""The backend ncnn: information that its files lack, files that would crash the process, and pnnx's conversion."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.files import files_of
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch, DatasetSetup, TensorSpec
from tests.builders.models import converted
from tests.builders.refusals import Said

pytest.importorskip("ncnn")

DIGITS = load_model("digits")
IMAGE = (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)


def opened(model: Path, inputs: tuple[TensorSpec, ...] = (), **more: Any) -> Any:
    setup = BackendSetup(model=model, model_name="m", inputs=inputs, max_batch=4, **more)
    return registry.load("backend", "ncnn")(setup)


def refusal(model: Path, inputs: tuple[TensorSpec, ...] = (), **more: Any) -> str:
    with pytest.raises(ConfigError) as caught, opened(model, inputs, **more):
        pass
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{model}: ")
    return str(caught.value).removeprefix(f"{model}: ").removeprefix("ncnn cannot load it: ")


def copied(folder: Path, changes: Mapping[str, str] = {}, weights: bytes | None = None) -> Path:
    """Copies the digits model with changed layers or weights."""
    good = DIGITS.path(("ncnn",))
    assert good is not None
    text = (good / "digits.param").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "m.param").write_text(text)
    content = (good / "digits.bin").read_bytes() if weights is None else weights
    (folder / "m.bin").write_bytes(content)
    return folder / "m.param"


def digits() -> Batch:
    dataset = DigitsDataset(DatasetSetup(inputs=DIGITS.inputs))
    dataset.load(range(4))
    return dataset.batch(range(4))


def answers(backend: str, form: str, batch: Batch) -> Any:
    setup = BackendSetup(
        model=DIGITS.path((form,)), model_name="digits", inputs=DIGITS.inputs, max_batch=4
    )
    with registry.load("backend", backend)(setup) as opened:
        return np.asarray(opened.infer(batch))


def test_a_param_file_is_read_with_the_weights_beside_it(tmp_path: Path) -> None:
    path = copied(tmp_path)
    assert sorted(files_of(path)) == ["m.bin", "m.param"]
    with opened(path) as backend:
        assert backend.signature() == (TensorSpec("image", "float32", (None, 1, 8, 8)),)
        found = np.asarray(backend.infer(digits()))
    assert np.abs(found - answers("ncnn", "ncnn", digits())).max() == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"7767517\n": "7767516\n"}, "it is not an ncnn .param file, whose first line is 7767517"),
        ({"7 7\n": "9 9\n"}, "its header declares 9 layers, but the file has 7: fetch it again"),
        (
            {"7 7\n": "900000000 900000000\n"},
            "its header declares 900000000 layers, but the file has 7: fetch it",
        ),
        ({"conv2 1 1": "conv2 900000 1"}, "it is an incomplete ncnn .param file: fetch it"),
        ({" relu1 relu2": " x relu2"}, "layer 'conv2' reads 'x', which no layer before it writes"),
        ({"Pooling pool": "Nosuch pool"}, "it has a layer of type Nosuch, which ncnn "),
        (
            {"6=4608": "6=4608000"},
            "its weights file is truncated or belongs to a different .param: convert",
        ),
        ({"1=3 4=1 5=1 6=4608": "1=300000000 6=4608"}, "ncnn refuses a layer's parameters"),
        ({"2=1\nConv": "2=3\nConv"}, "input 'image' is declared as [3, 8, 8], but its first layer"),
    ],
)
def test_a_param_file_that_ncnn_would_refuse_or_crash_with_is_one_line(
    changes: Mapping[str, str], why: str, tmp_path: Path
) -> None:
    assert refusal(copied(tmp_path, changes)).startswith(why)


@pytest.mark.parametrize("length", [0, 3, 5000, -1])
def test_weights_that_are_cut_are_refused(length: int, tmp_path: Path) -> None:
    """ncnn itself accepts the file, and crashes with a segmentation fault at the first answer."""
    whole = copied(tmp_path).with_suffix(".bin").read_bytes()
    path = copied(tmp_path, weights=whole[:length])
    assert refusal(path).startswith(
        "its weights file is truncated or belongs to a different .param"
    )


def test_missing_weights_and_the_binary_form_are_refused(tmp_path: Path) -> None:
    path = copied(tmp_path)
    path.with_suffix(".bin").unlink()
    assert refusal(path) == "its weights, m.bin, are missing: put them next to it"
    path.write_bytes((7767517).to_bytes(4, "little") + bytes(64))
    assert (
        refusal(path)
        == "it is in ncnn's binary format, which has no names: pass the text file, .param"
    )
    assert refusal(tmp_path / "none.param").startswith("No such file")
    (tmp_path / "n.param").write_text("")
    assert refusal(tmp_path).startswith(
        "the folder must contain exactly one .param, but contains 2"
    )


def test_shapes_come_from_the_manifest_if_the_file_records_none(tmp_path: Path) -> None:
    path = copied(tmp_path, {" 0=8 1=8 2=1": ""})
    assert refusal(path) == (
        "the file does not record the shape of input 'image': name a manifest that declares image"
    )
    with opened(path, IMAGE) as backend:
        assert backend.signature()[0].shape == (None, 1, 8, 8)
    for shape in ((3, 8, 8), (8, 8), (8,), (1, 1, 1, 8, 8)):
        spec = TensorSpec("image", "float32", ("batch", *shape))
        assert refusal(path, (spec,)).startswith(
            f"input 'image' is declared as [{', '.join(map(str, shape))}], but "
        )
    spec = IMAGE[0]._replace(dtype="uint8")
    assert refusal(path, (spec,)) == (
        "ncnn takes float32, int32 and int64 inputs, not uint8: declare one of these types"
    )


def test_first_layer_that_works_in_place_leaves_the_samples_unchanged(tmp_path: Path) -> None:
    """Bug: ncnn read the reference counter of an array that has no counter, and the process crashed."""
    path = tmp_path / "relu.param"
    path.write_text("7767517\n2 2\nInput x 0 1 x 0=3\nReLU r 1 1 x y\n")
    path.with_suffix(".bin").write_bytes(b"")
    rows = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    kept = rows.copy()
    with opened(path) as backend:
        for count in (1, 2):
            found = np.asarray(backend.infer(Batch(count, {"x": rows[:count]})))
            assert found.tolist() == np.maximum(kept[:count], 0).tolist()
    assert rows.tolist() == kept.tolist()


def test_integers_select_the_rows_of_a_table(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32)
    path = tmp_path / "table.param"
    path.write_text("7767517\n2 2\nInput ids 0 1 ids 0=3\nEmbed e 1 1 ids y 0=4 1=3 2=0 3=12\n")
    path.with_suffix(".bin").write_bytes(bytes(4) + table.tobytes())
    ids = np.array([[2, 0, 1], [1, 1, 1]])
    for declared in ((), (TensorSpec("ids", "int64", ("n", 3)),)):
        with opened(path, declared) as backend:
            assert backend.signature()[0].dtype == ("int64" if declared else "int32")
            found = np.asarray(backend.infer(Batch(2, {"ids": ids})))
            assert found.tolist() == table.reshape(3, 4)[ids].tolist()
    wrong = (TensorSpec("ids", "float32", ("n", 3)),)
    assert refusal(path, wrong).startswith("input 'ids' selects rows of a table")


def test_int8_weights_are_reported_as_int8(tmp_path: Path) -> None:
    from harness.backends.parts.native.ncnn_file import read_layers, weight_types

    path = copied(tmp_path, {"2=65536": "2=65536 8=2"})
    assert dict(weight_types(read_layers(path))) == {
        (16, 9): "float32",
        (32, 144): "float32",
        (128, 512): "int8",
        (10, 128): "float32",
    }


def test_init_asks_for_the_shapes_that_the_file_lacks(
    tmp_path: Path, refuses: Said, prints: Said
) -> None:
    path = copied(tmp_path, {" 0=8 1=8 2=1": ""})
    words = ("init", "--model", path, "--out", tmp_path / "m.yaml")
    assert refuses(*words).endswith(
        "for this command their shapes are enough: --input-shape NAME=1x3x224x224"
    )
    prints(*words, "--input-shape", "image=1x1x8x8")
    text = (tmp_path / "m.yaml").read_text()
    assert "ncnn:\n    path: m.param\n" in text
    assert "external:\n      - path: m.bin\n" in text
    assert "dtype: float32 # ncnn records no types: check it" in text


@pytest.mark.slow
def test_pnnx_converts_an_onnx_file(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    # The cache is missing if pytest runs with -p no:cacheprovider.
    cache = getattr(pytestconfig, "cache", None)
    program = converted.pnnx(cache.mkdir("converters") if cache else tmp_path)
    onnx = DIGITS.path(("onnx",))
    assert onnx is not None
    path = converted.ncnn_files(program, onnx, "[1,1,8,8]", tmp_path)
    batch = digits()
    with opened(path, IMAGE, names={"image": "in0", "logits": "out0"}) as backend:
        assert (backend.signature()[0].name, backend.outputs()) == ("image", ("logits",))
        found = np.asarray(backend.infer(batch))
    wanted = pytest.importorskip("onnxruntime").InferenceSession(str(onnx))
    assert np.abs(found - wanted.run(None, batch.inputs)[0]).max() < 1e-4


def test_a_wrong_size_at_an_answer_is_refused(tmp_path: Path) -> None:
    with opened(copied(tmp_path)) as backend, pytest.raises(PluginUnavailable) as caught:
        backend.infer(Batch(1, {"image": np.ones((1, 8), np.float32)}))
    assert str(caught.value).startswith("ncnn cannot answer 1 sample at once: ")
