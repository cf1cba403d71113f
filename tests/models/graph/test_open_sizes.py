"""A size that a file leaves open is open in every verb, whatever notation the exporter uses."""

from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("onnx")

from onnx import helper

from harness.explain.bricks import job
from harness.explain.bricks.options import BrickOptions, parse_size
from harness.models.graph.onnx_file import read
from harness.types import declared_shape
from tests.builders.backends import setup
from tests.builders.models.odd_files import (
    OPEN_SIZES,
    pooled,
    quantised_shape,
    two_texts,
    value,
    write,
)
from tests.builders.refusals import refusals


@pytest.mark.parametrize("size", OPEN_SIZES.values(), ids=OPEN_SIZES)
def test_each_open_size_is_requested_and_set_by_its_position(
    size: int | str, tmp_path: Path
) -> None:
    """Bug: a traceback ended with "all elements of broadcast shape must be non-negative"."""
    path = pooled(tmp_path / "m.onnx", size)
    assert refusals(read, path) == [
        f"{path}: dimension 'x[{axis}]' of input 'x' has no size: set it, e.g. --size 'x[{axis}]=64'"
        for axis in (2, 3)
    ]
    options = BrickOptions(size=(parse_size("x[2]=48"), parse_size("x[3]=192")), batch=2)
    (subject,) = job._subjects([str(path)], options)
    assert subject.graph is not None
    assert subject.graph.tensors["r"].shape == (2, 3, 48, 192)


@pytest.mark.parametrize(("more", "width"), [((), 192), (("wide=64",), 64)])
def test_sizes_of_a_manifest_are_used_unless_the_user_sets_others(
    more: tuple[str, ...], width: int, tmp_path: Path
) -> None:
    """Bug: a text recogniser with an open width got no size, although its manifest fixes the width."""
    ends = value("x", ("n", 3, "wide", "wide")), value("y", ("n", 3, 1, 1))
    pool = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    write(tmp_path / "m.onnx", [pool], ends[:1], ends[1:])
    content = {
        "name": "mine",
        "files": {"onnx": {"path": "m.onnx", "names": {"image": "x"}}},
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 192, 192]}],
        "outputs": [{"name": "y"}],
        "dataset": "synthetic",
    }
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(content))
    options = BrickOptions(size=tuple(map(parse_size, more)))
    (subject,) = job._subjects([str(tmp_path / "m.yaml")], options)
    assert subject.graph is not None
    assert subject.graph.tensors["x"].shape == (1, 3, width, width)


def test_a_named_batch_is_the_batch_of_a_state_as_well(tmp_path: Path) -> None:
    """Bug: a voice detector got no size for `batch` in [2, batch, 128], and the message proposed 64."""
    ends = [value("x", ("batch", 4)), value("state", (2, "batch", 4)), value("y", (2, "batch", 4))]
    node = helper.make_node("Add", ["x", "state"], ["y"])
    path = write(tmp_path / "m.onnx", [node], ends[:2], ends[2:])
    graph = read(path, batch=3)
    assert graph.tensors["state"].shape == (2, 3, 4)
    assert graph.sizes == {"batch": 3}


@pytest.mark.parametrize("size", OPEN_SIZES.values(), ids=OPEN_SIZES)
def test_a_backend_reports_an_open_size_without_a_name(size: int | str, tmp_path: Path) -> None:
    from harness.backends.ort import OrtBackend

    with OrtBackend(setup(pooled(tmp_path / "m.onnx", size))) as backend:
        (spec,) = backend.signature()
    assert spec.shape == (None, 3, None, None)


def test_declared_name_of_a_size_is_kept() -> None:
    names = ("batch", "s0", "DynamicDimension.0", "unknown_length", "n?", 4)
    assert declared_shape(names) == names
    assert declared_shape((4, " ? ", "UNK__3", "12")) == (4, None, None, None)


def test_two_question_marks_have_two_sizes(tmp_path: Path) -> None:
    """Bug: the message was "? is 48 in x and 192 in x"."""
    from harness.backends.ort import OrtBackend
    from harness.datasets.synthetic import SyntheticDataset
    from harness.types import DatasetSetup

    with OrtBackend(setup(two_texts(tmp_path / "m.onnx"))) as backend:
        data = SyntheticDataset(
            DatasetSetup(inputs=backend.signature(), shapes={"x": (1, 5), "z": (1, 9)})
        )
        data.load([0, 1])
        assert np.asarray(backend.infer(data.batch([0, 1]))).shape == (2, 1)


def test_a_folded_reader_of_an_int8_tensor_has_no_group(tmp_path: Path) -> None:
    """Bug: cutting an int8 decoder raised a KeyError."""
    (subject,) = job._subjects([str(quantised_shape(tmp_path / "m.onnx"))], BrickOptions())
    assert sorted(op for one in subject.by_digest.values() for op in one.brick.layers) == [
        "Add",
        "DequantizeLinear",
        "QuantizeLinear",
    ]
