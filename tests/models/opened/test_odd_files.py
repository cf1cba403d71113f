"""Files whose inputs are not batches or whose outputs are not arrays lead to a result, or to one line with a solution."""

import re
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from harness.backends.ort import OrtBackend
from harness.errors import ConfigError, PluginUnavailable
from harness.explain.baseline import Baseline, open_runner
from harness.explain.subjects import subjects
from harness.models.graph.onnx_file import read
from harness.models.opened.ort_session import open_session
from harness.models.opened.template import manifest_of
from harness.run.measured.dispatch.instance import Failures
from harness.types import Batch, TensorSpec, fixed_batch
from tests.builders.backends import setup
from tests.builders.models import odd_files
from tests.builders.refusals import refusal

DOCS = Path(__file__).parents[3] / "docs"
WAY_OUT = "docs/manifest.md#states-and-other-batch-axes"


def answered(path: Path, **values: object) -> Baseline:
    """Returns the model's answers to three samples of noise."""
    with ExitStack() as stack:
        (subject,) = subjects({"model": str(path), **values}, stack)
        return Baseline(subject, 3, open_runner(subject, stack))


def refused(path: Path) -> str:
    """Returns the line that `init` prints, which a run also prints."""
    with pytest.raises(ConfigError) as in_run:
        answered(path)
    assert refusal(manifest_of, path, path.with_suffix(".yaml"), {}) == str(in_run.value)
    assert "\n" not in str(in_run.value)
    return str(in_run.value)


def described(path: Path) -> Path:
    """Returns the manifest that `init` writes."""
    manifest = path.with_suffix(".yaml")
    manifest.write_text(manifest_of(path, manifest, {}))
    return manifest


def test_the_output_that_is_an_array_is_the_answer(tmp_path: Path) -> None:
    path = odd_files.classifier(tmp_path / "m.onnx")
    with OrtBackend(setup(path)) as backend:
        assert backend.outputs() == ("label",)
        answers = backend.infer(Batch(2, {"x": np.ones((2, 4), np.float32)}))
        assert np.array_equal(np.asarray(answers), [0, 0])
        left_out = backend.describe()["outputs_left_out"]
    assert left_out == {"probabilities": "seq(map(int64,tensor(float)))"}
    assert [np.shape(row) for row in answered(path).rows] == [()] * 3
    assert "- name: label" in manifest_of(path, tmp_path / "m.yaml", {})


def test_a_session_beside_a_run_skips_maps_as_the_run_does(tmp_path: Path) -> None:
    session = open_session(odd_files.classifier(tmp_path / "m.onnx"))
    assert [port.name for port in session.get_outputs()] == ["label"]
    assert len(session.run(None, {"x": np.ones((1, 4), np.float32)})) == 1


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (
            lambda path: odd_files.classifier(path, label=False),
            "has no output that is an array: 'probabilities' has the type seq(map(int64,tensor(float)))",
        ),
        (odd_files.sequence, "has no output that is an array: 's' has the type seq(tensor(float))"),
        (odd_files.of_sequence, "input 's' has the type seq(tensor(float)), which NumPy arrays cannot hold"),
        (odd_files.of_bfloat16, "input 'x' has the type tensor(bfloat16), which NumPy arrays cannot"),
        (odd_files.without_outputs, "has no output that is an array"),
        (odd_files.without_inputs, "has no inputs: export it with at least one"),
    ],
)  # fmt: skip
def test_a_file_without_arrays_is_reported_in_one_line(
    write: Callable[[Path], Path], line: str, tmp_path: Path
) -> None:
    """Bug: the harness took a sequence of tensors for the rows of the batch."""
    path = write(tmp_path / "m.onnx")
    assert refused(path).startswith((f"{path}: {line}", f"{path} {line}"))


@pytest.mark.parametrize("batch", ["batch", "N", "?", -1])
@pytest.mark.parametrize("layers", [2, 3])
def test_model_with_a_state_is_refused_with_advice(
    batch: int | str, layers: int, tmp_path: Path
) -> None:
    """Bug: the advice was "--input-shape state=1x64x128", and `init` wrote `max_batch: 2 # the file fixes it`."""
    path = odd_files.recurrent(tmp_path / "m.onnx", layers, batch, rate=False)
    line = refusal(answered, path)
    name = batch if batch in ("batch", "N") else "?"
    assert line.startswith(
        f"input 'state' of the model has the shape [{layers}, {name}, 128], whose first dimension, "
        f"{layers}, is not the batch: "
    )
    assert WAY_OUT in line
    assert len(answered(described(path)).rows) == 3


def test_model_with_a_scalar_is_refused_with_advice(tmp_path: Path) -> None:
    path = odd_files.recurrent(tmp_path / "m.onnx", 1)
    line = refusal(answered, path)
    assert line.startswith(
        "input 'sr' of the model has the shape [] (or the file records none), in which no"
    )
    assert WAY_OUT in line
    assert len(answered(described(path)).rows) == 3


def test_a_state_of_one_layer_runs_one_sample_at_a_time(tmp_path: Path) -> None:
    path = odd_files.recurrent(tmp_path / "m.onnx", 1, rate=False)
    (advice,) = re.findall(r"--input-shape (state=\S+)", refusal(answered, path))
    assert advice == "state=1x1x128"
    assert len(answered(path, input_shape=(("state", (1, 1, 128)),)).rows) == 3


@pytest.mark.parametrize(
    "other", [(4, 3), (4, "sequence"), (4, 3, 8), (1, "batch", 8), ("batch", 3)]
)
def test_an_input_with_a_fixed_batch_next_to_an_open_batch_is_kept(
    other: tuple[int | str, ...],
) -> None:
    specs = (TensorSpec("x", "float32", ("batch", "sequence")), TensorSpec("y", "float32", other))
    assert fixed_batch(specs) == (other[0] if isinstance(other[0], int) else None)


@pytest.mark.parametrize(
    "other", [(2, "n"), (2, "n", "n"), (2, None, None), (4, 3, None), (2, "b", 8)]
)
@pytest.mark.parametrize("first", ["batch_size", None])
def test_size_that_is_not_the_batch_is_accepted(
    first: str | None, other: tuple[int | str | None, ...]
) -> None:
    """Bug: the name `n` always meant the batch, and so did each open size in an input with three dimensions."""
    specs = (TensorSpec("x", "float32", (first, "n")), TensorSpec("y", "float32", other))
    assert fixed_batch(specs) == other[0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "the file is empty: fetch it again"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "it is a Git LFS pointer, not",
        ),
        (b"\n<!DOCTYPE html><html>", "it is a web page, not the model: fetch the file itself"),
        (b"<?xml version='1.0'?><Error/>", "it is XML, perhaps a server's error, not the model"),
        (b"\x1f\x8b\x08\x00packed", "it is packed with gzip: unpack it first"),
        (b"PK\x03\x04\x14\x00", "it is packed with zip: unpack it first"),
        (
            b"\x08\x08\x3a\xff\x01cut",
            "it is not an ONNX file, or is only a part of one: fetch it again",
        ),
    ],
)
def test_file_that_is_not_a_model_is_named(content: bytes, line: str, tmp_path: Path) -> None:
    """Bug: the message was "INVALID_PROTOBUF : Load model failed: Protobuf parsing failed"."""
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ConfigError, match=f"m.onnx: {line}"):
        answered(tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=f"m.onnx: {line}"):
        manifest_of(tmp_path / "m.onnx", tmp_path / "m.yaml", {})
    with pytest.raises(ConfigError, match=f"m.onnx is not an ONNX model: {line}"):
        read(tmp_path / "m.onnx")


def test_one_number_for_a_whole_batch_is_reported_in_one_line(tmp_path: Path) -> None:
    """Bug: the message was "infer raised TypeError: iteration over a 0-d array"."""
    with pytest.raises(ConfigError, match="the model returned 1 row for 3 samples"):
        answered(odd_files.reduced_to_one(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("opset", "kind", "line"),
    [
        (
            6,
            odd_files.FLOAT,
            "the file's opset is 6, but ONNX Runtime implements all operators only from opset 7 on",
        ),
        (17, odd_files.BFLOAT16, "CPUExecutionProvider has no kernel for the types of an operator"),
        (13, odd_files.BFLOAT16, "CPUExecutionProvider has no kernel for the types of an operator"),
    ],
)
def test_an_operator_without_an_implementation_is_explained(
    opset: int, kind: int, line: str, tmp_path: Path
) -> None:
    """Bug: the only message was "NOT_IMPLEMENTED : Could not find an implementation for Add(6)"."""
    path = odd_files.doubled(tmp_path / "m.onnx", opset, kind)
    assert f"{path}: ONNX Runtime cannot load it: {line}" in refused(path)


@pytest.mark.parametrize("write", [odd_files.of_three, odd_files.matching])
def test_a_batch_that_the_graph_refuses_is_one_line_without_a_class(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    """Bug: the message was "infer raised InvalidArgument: [ONNXRuntimeError] : 2 : …"."""
    path = write(tmp_path / "m.onnx")
    with OrtBackend(setup(path)) as backend:
        for count in (2, 5):
            rows = np.zeros((count, 4), np.float32)
            with pytest.raises(PluginUnavailable) as refusal:
                backend.infer(Batch(count, {"x": rows}))
            assert str(refusal.value).startswith(
                f"ONNX Runtime cannot answer {count} samples at once: "
            )
            assert str(refusal.value).endswith("; if it can answer one, use --max-batch 1")
            failures = Failures()
            failures.add(refusal.value, count)
            assert failures.first.splitlines()[-1].startswith(str(refusal.value)[:200])


def test_init_finds_that_a_graph_takes_one_sample_alone(tmp_path: Path) -> None:
    text = manifest_of(odd_files.of_three(tmp_path / "m.onnx", 1), tmp_path / "m.yaml", {})
    assert "max_batch: 1 # the file fixes it" in text


def test_a_file_without_a_batch_is_refused_by_init_without_a_circle(tmp_path: Path) -> None:
    """Bug: the message was "field 'inputs': each has a `value`: at least one must take data"."""
    path = odd_files.without_batch(tmp_path / "m.onnx")
    assert refusal(manifest_of, path, tmp_path / "m.yaml", {}) == (
        "input 'x' of the model has the shape [8], in which no dimension is the batch: export the model with the batch "
        "as the first dimension"
    )


def test_an_operator_of_another_library_is_refused_with_advice(tmp_path: Path) -> None:
    line = refused(odd_files.of_another_library(tmp_path / "m.onnx"))
    assert "cannot load it, because an operator belongs to another library (" in line
    assert "my.library:Foo" in line
    assert line.endswith(": export the model without it, or write a backend that loads the library")


def test_weights_and_checkpoints_are_named_by_init_too(tmp_path: Path) -> None:
    """Bug: the message about a file that cannot be loaded ended with "here their shapes will do"."""
    weights, checkpoint, old = (tmp_path / name for name in ("a.pth", "a.pt", "old.pt"))
    old.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02")
    weights.write_bytes(b"\x80\x02")
    with zipfile.ZipFile(checkpoint, "w") as parts:
        parts.writestr("a/data.pkl", b"\x80\x02.")
    for path, line in {
        weights: "a.pth is weights without their network: load them",
        checkpoint: "a.pt: it is a torch.save checkpoint, not TorchScript",
        old: "old.pt: it is a torch.save checkpoint, not TorchScript",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(line)) as refusal:
            manifest_of(path, tmp_path / "m.yaml", {})
        assert "--input-shape" not in str(refusal.value)
