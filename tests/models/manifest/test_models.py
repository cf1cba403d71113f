"""The ready manifests agree with LoadGen's own table, and real files with the described shapes run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import helper

from harness.cli.main import main
from harness.loadgen.official import official_load
from harness.models.manifest.lookup import load_model, shipped_models
from harness.models.manifest.model import MODELS_DIR
from harness.models.manifest.schema import Manifest
from harness.models.steps.steps import POSTPROCESS, PREPROCESS
from tests.builders.models.odd_files import FLOAT, INT64, value
from tests.builders.models.odd_files import write as write_onnx
from tests.builders.pictures import write
from tests.builders.refusals import refusal
from tests.faults.command import only_all

DOC = (Path(__file__).parents[3] / "docs/manifest.md").read_text(encoding="utf-8")
MANIFESTS = {name: load_model(name).manifest for name in shipped_models()}
READY = {name: m for name, m in MANIFESTS.items() if m is not None}
OFFICIAL = {name: m for name, m in READY.items() if m.mlperf_model}
UNLISTED = {"dlrm-v3", "e2e-rag-qna", "e2e-rag-db", "qwen3.6-27b"}
"""Benchmarks without a row in LoadGen's table."""


def test_the_ready_manifests_are_there() -> None:
    wanted = {"resnet50", "resnet50-tf", "yolo", "bert", "3d-unet", "mobilenet", "fcn-resnet50"}
    assert wanted | {"super-resolution", "digits"} <= set(READY)
    images = {"resnet50", "resnet50-tf", "yolo", "bert", "3d-unet"}
    texts = {"llama2-70b", "llama3.1-8b", "llama3.1-8b-edge", "deepseek-r1", "gpt-oss-120b"}
    made = {"whisper", "stable-diffusion-xl", "wan-2.2-t2v-a14b", "qwen3-vl-235b-a22b"}
    assert set(OFFICIAL) == images | texts | made | {"rgat"} | UNLISTED


@pytest.mark.parametrize("name", READY)
def test_a_manifest_has_the_name_of_its_file_and_is_on_the_page(name: str) -> None:
    assert READY[name].name == name
    assert f"| `{name}` |" in DOC
    accuracy = READY[name].accuracy
    if accuracy is not None and name != "digits":
        sign = "≤" if accuracy.metric == "wer-whisper" else "≥"
        assert f"`{accuracy.metric}` {sign} {accuracy.target:.10g}" in DOC


@pytest.mark.parametrize("name", OFFICIAL)
def test_counts_and_bounds_are_those_of_loadgens_table(name: str, tmp_path: Path) -> None:
    manifest = OFFICIAL[name]
    assert manifest.mlperf_model is not None
    (tmp_path / "user.conf").write_text("")
    conf = str(tmp_path / "user.conf")
    load = official_load("server", manifest.mlperf_model, conf, 10**6, held=7)
    # LoadGen holds the whole data set, because MLPerf's table means all 43 volumes of 3d-unet and has no row for the
    # others.
    whole_set = name == "3d-unet" or name in UNLISTED
    assert load.performance_count == (7 if whole_set else manifest.performance_count)
    slo = load_model(name).slo
    if slo is not None:
        assert (slo.percentile, slo.bound_ns) == (load.percentile, load.latency_bound_ns)


@pytest.mark.parametrize("name", READY)
def test_missing_file_is_one_line_with_its_place_and_source(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, manifest = load_model(name), READY[name]
    for kind, file in manifest.files.items():
        if (MODELS_DIR / file.path).exists():
            continue
        how = file.obtain or file.source
        assert how is not None
        home = tmp_path / "mlperf-harness/models" / name / file.path
        told = f"model {name!r} has no file {file.path} here: put it at {home} ({how})"
        assert refusal(model.path, (kind,)) == told


def _fcn(path: Path) -> Path:
    size = ["batch", 21, "height", "width"]
    nodes = [
        helper.make_node("Concat", ["input"] * 7, ["out"], axis=1),
        helper.make_node("Neg", ["out"], ["aux"]),
    ]
    image = value("input", ["batch", 3, "height", "width"])
    return write_onnx(path, nodes, [image], [value("out", size), value("aux", size)])


def _super_resolution(path: Path) -> Path:
    nodes = [
        helper.make_node("Concat", ["input"] * 9, ["nine"], axis=1),
        helper.make_node("DepthToSpace", ["nine"], ["output"], blocksize=3),
    ]
    image, larger = value("input", ["batch", 1, 224, 224]), value("output", ["batch", 1, 672, 672])
    return write_onnx(path, nodes, [image], [larger])


def _classes(path: Path) -> Path:
    """Writes a model like MobileNet: an image -> logits."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["means"]),
        helper.make_node("Flatten", ["means"], ["output"]),
    ]
    image = value("input", ["batch", 3, 224, 224])
    return write_onnx(path, nodes, [image], [value("output", ["batch", 3])])


def _labels(path: Path) -> Path:
    """Writes a model like MLPerf's ResNet-50: an image -> its class."""
    nodes = [
        helper.make_node("ReduceMean", ["input_tensor:0"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Cast", ["mean"], ["ArgMax:0"], to=INT64),
    ]
    image = value("input_tensor:0", ["batch", 3, 224, 224])
    return write_onnx(path, nodes, [image], [value("ArgMax:0", ["batch"], INT64)])


def _head(path: Path) -> Path:
    """Writes a model like YOLO: an image -> 84 numbers for each of 64 anchors."""
    pool = {"kernel_shape": [80, 80], "strides": [80, 80]}
    nodes = [
        helper.make_node("AveragePool", ["images"], ["means"], **pool),
        helper.make_node("Reshape", ["means", "flat"], ["three"]),
        helper.make_node("Concat", ["three"] * 28, ["output0"], axis=1),
    ]
    image, output = value("images", ["batch", 3, 640, 640]), value("output0", ["batch", 84, 64])
    return write_onnx(path, nodes, [image], [output], {"flat": np.array([0, 3, 64])})


def _spans(path: Path) -> Path:
    """Writes a model like BERT: three arrays -> two logits per position."""
    names, size = ("input_ids", "input_mask", "segment_ids"), ["batch", 384]
    nodes = [
        helper.make_node("Add", names[:2], ["two"]),
        helper.make_node("Add", ["two", names[2]], ["three"]),
        helper.make_node("Cast", ["three"], ["output_start_logits"], to=FLOAT),
        helper.make_node("Neg", ["output_start_logits"], ["output_end_logits"]),
    ]
    outputs = [value(f"output_{end}_logits", size) for end in ("start", "end")]
    return write_onnx(path, nodes, [value(name, size, INT64) for name in names], outputs)


def _volumes(path: Path) -> Path:
    node = helper.make_node("Concat", ["input"] * 3, ["output"], axis=1)
    volume, three = (
        value(n, ["batch", c, 128, 128, 128]) for n, c in (("input", 1), ("output", 3))
    )
    return write_onnx(path, [node], [volume], [three])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "graph", "dataset"),
    [
        ("fcn-resnet50", _fcn, "folder"),
        ("super-resolution", _super_resolution, "folder"),
        *only_all(
            ("mobilenet", _classes, "folder"),
            ("resnet50", _labels, "folder"),
            ("yolo", _head, "folder"),
            ("bert", _spans, "synthetic"),
            ("3d-unet", _volumes, "synthetic"),
        ),
    ],
)
def test_a_file_of_the_same_shape_runs(
    name: str, graph: Any, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest's steps turn photographs into the input, and accept the model's answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    graph(tmp_path / "m.onnx")
    content = yaml.safe_load((MODELS_DIR / f"{name}.yaml").read_text())
    content["files"] = {"onnx": {"path": "m.onnx", "sha256": None}}
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump({**content, "requires": {}}))
    words = ["--scenario", "offline", "--model", str(path), "--dataset", dataset]
    if dataset == "folder":
        for i in range(2):
            write(tmp_path / f"data/a/{i}.jpg", i, 300, 400)
        words += ["--data-dir", str(tmp_path / "data")]
    words += ["--queries", "4", "--performance-count", "2", "--mode", "performance"]
    assert main([*words, "--quiet", "--no-metrics", "--out", str(tmp_path / "run")]) == 0


def _fields(schema: dict[str, Any], defs: dict[str, Any], prefix: str = "") -> set[str]:
    """Returns the dotted names of all fields, with `*` for the entries of a list or mapping."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    found = set()
    for option in schema.get("anyOf", ()):
        found |= _fields(option, defs, prefix)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found |= _fields(schema[key], defs, f"{prefix}*.")
    for name, field in schema.get("properties", {}).items():
        found |= {prefix + name} | _fields(field, defs, f"{prefix}{name}.")
    return found


def test_every_field_is_on_the_page() -> None:
    # The steps validate themselves (harness/models/steps/steps.py), because pydantic sees them only as tuples of Step.
    schema = Manifest.model_json_schema()
    found = _fields(schema, schema["$defs"])
    names = {n for n in found if "preprocess." not in n and "postprocess." not in n}
    assert {"files.*.sha256", "inputs.*.shape", "requires.cpu_flags", "accuracy.tolerance"} <= names
    assert [n for n in sorted(names) if f"| `{n}` |" not in DOC] == []


@pytest.mark.parametrize("steps", [PREPROCESS, POSTPROCESS])
def test_every_step_and_option_is_on_the_page(steps: Any) -> None:
    for name, options in steps.items():
        _, start, rest = DOC.partition(f"\n| `{name}` | |")
        assert start, name
        own = rest.partition("\n| `")[0]
        for option in options.model_fields:
            assert f"\n| | `{option}` |" in own, f"{name}.{option}"


def test_the_example_on_the_page_is_a_manifest() -> None:
    text = DOC.partition("```yaml\n")[2].partition("```")[0]
    assert Manifest.model_validate(yaml.safe_load(text)).name == "flowers"
