"""Model manifests: every field is checked, no file is trusted, and no code in YAML is executed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.config.parse import Slo
from harness.core.formats.strict_yaml import load_yaml
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError
from harness.models.manifest.files import sha256_of
from harness.models.manifest.lookup import load_model, parse_manifest, shipped_models
from harness.models.manifest.model import MODELS_DIR, Model
from harness.types import Step, TensorSpec
from tests.builders.refusals import refusal, refusals


def test_digits_is_shipped_and_parses() -> None:
    assert "digits" in shipped_models()
    model = load_model("digits")
    assert model.manifest is not None
    assert model.inputs == (TensorSpec("image", "float32", ("batch", 1, 8, 8)),)
    assert model.output is not None
    assert (model.output.name, model.output.postprocess) == ("logits", (Step("argmax", {}),))
    assert model.slo == Slo(0.99, 50 * NS_PER_MS)


def test_every_embedded_file_is_the_one_its_manifest_says() -> None:
    embedded = 0
    for model in map(load_model, shipped_models()):
        assert model.manifest is not None
        for kind, file in model.manifest.files.items():
            if (MODELS_DIR / file.path).exists():
                embedded += 1
                assert file.sha256 is not None
                assert model.path((kind,)) == MODELS_DIR / file.path
    assert embedded >= 3


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """Returns the content of a good manifest; its only file is in tmp_path."""
    (tmp_path / "m.onnx").write_bytes(b"weights")
    found: dict[str, Any] = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    digest = sha256_of(tmp_path / "m.onnx")
    return {**found, "name": "mine", "files": {"onnx": {"path": "m.onnx", "sha256": digest}}}


def written(tmp_path: Path, content: dict[str, Any]) -> Model:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_model(str(path))


@pytest.mark.parametrize("symbols", ["ab é", ["a", "b", " ", "é"]])
def test_symbols_are_a_list_or_the_characters_of_a_text(
    symbols: object, tmp_path: Path, content: dict[str, Any]
) -> None:
    content["accuracy"]["symbols"] = symbols
    assert written(tmp_path, content).symbols("int64") == ("a", "b", " ", "é")


@pytest.mark.parametrize("symbols", [7, [7], {"a": 1}])
def test_symbols_that_are_not_texts_are_refused(
    symbols: object, tmp_path: Path, content: dict[str, Any]
) -> None:
    content["accuracy"]["symbols"] = symbols
    assert "'accuracy.symbols" in refusal(written, tmp_path, content)


def test_a_model_takes_the_first_format_it_has(tmp_path: Path, content: dict[str, Any]) -> None:
    model = written(tmp_path, content)
    assert model.path(("tflite", "onnx")) == tmp_path / "m.onnx"
    assert model.path(()) is None
    assert refusals(model.path, ("tflite", "pb")) == [
        "model 'mine' has no file in a format this backend reads (tflite, pb): it has onnx (--backend ort)"
    ]
    content["files"] = {}
    assert refusals(written(tmp_path, content).path, ("onnx",)) == [
        "model 'mine' has no file in a format this backend reads (onnx): a server has the model, so pass its --backend and --url"
    ]


def test_a_file_that_was_changed_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    model = written(tmp_path, content)
    (tmp_path / "m.onnx").write_bytes(b"weight$")
    line = refusal(model.path, ("onnx",))
    pattern = (
        rf"{re.escape(str(tmp_path))}/m\.onnx: SHA-256 is [0-9a-f]{{12}}…, but the manifest of 'mine' "
        r"has [0-9a-f]{12}…: restore the file, or update the manifest if you changed it"
    )
    assert re.fullmatch(pattern, line)


@pytest.mark.parametrize(
    ("file", "own"),
    [({}, True), ({"sha256": None}, False), ({"sha256": "0" * 64}, False)],
    ids=["left out", "null", "pinned"],
)
def test_omitted_checksum_means_the_users_own_file(
    file: dict[str, Any], own: bool, tmp_path: Path, content: dict[str, Any]
) -> None:
    """`null` means that the publisher does not state a value."""
    content["files"] = {"onnx": {"path": "m.onnx", **file}}
    model = written(tmp_path, content)
    assert model.unpinned_own == (["m.onnx"] if own else [])
    assert [*model.unstated()] == [
        f"model 'mine' does not pin {path}: add its `sha256` to the manifest"
        for path in model.unpinned_own
    ]


def test_a_missing_file_is_named(tmp_path: Path, content: dict[str, Any]) -> None:
    model = written(tmp_path, content)
    (tmp_path / "m.onnx").unlink()
    lines = refusals(model.path, ("onnx",))
    assert lines == [f"model 'mine' has no file m.onnx here: put it at {tmp_path}/m.onnx"]


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "circle"], ids=["NUL", "long", "circle"])
def test_a_path_that_no_file_can_have_is_reported_in_one_line(
    path: str, tmp_path: Path, content: dict[str, Any]
) -> None:
    (tmp_path / "circle").symlink_to("circle")
    content["files"]["onnx"]["path"] = path
    assert refusal(written(tmp_path, content).path, ("onnx",)).startswith("model 'mine'")


@pytest.mark.parametrize("path", ["../m.onnx", "/etc/hostname", "a/../../m.onnx", "link/m.onnx"])
def test_a_path_that_leaves_the_folder_is_refused(
    path: str, tmp_path: Path, content: dict[str, Any]
) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    content["files"]["onnx"]["path"] = path
    model = written(tmp_path / "inside", content)
    wanted = f"model 'mine': file {path} is outside the manifest's folder"
    assert refusals(model.path, ("onnx",)) == [wanted]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"accuracy": {"metric": "top1", "target": 1, "unit": "%"}}, "unknown field 'accuracy.unit'"),
        ({"inputs": [{"name": "x", "shape": [1]}]}, "field 'inputs.0.dtype' is missing"),
        ({"slo": "15ms"}, "field 'slo': '15ms' is not an SLO: write percentile=bound, e.g. p99=15ms for the latency, which has no prefix, or ttft:p99=2s for token times (ttft, tpot, itl)"),
        ({"name": "../x"}, r"field 'name': String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$', not '../x'"),
        ({"outputs": [{"name": "y", "postprocess": ["argmax", {"stack": {"outputs": ["y"]}}]}]}, "field 'outputs.0.postprocess': stack takes the outputs by name: make it the first step"),
        ({"outputs": [{"name": "y"}, {"name": "z", "postprocess": "argmax"}]}, "field 'outputs': 'z' has postprocess steps, but only the first output may have them"),
        ({"files": {"tflite": {"path": "m.tflite", "names": {"input_2": "image"}}}}, "field 'files.tflite.names': 'input_2' is neither an input nor an output of this manifest, which has image, logits: write NAME: NAME IN THE FILE"),
        ({"files": {"tflite": {"path": "m.tflite", "names": {"logits": "b"}}}, "outputs": [{"name": "logits"}, {"name": "b"}]}, "field 'files.tflite.names': logits and b are b and b in the file: give each a different name"),
        (
            {
                "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 3, 512, 512]}],
                "outputs": [{"name": "y", "postprocess": "boxes"}],
            },
            "field 'outputs.0.postprocess': boxes.side is 640, but the input 'x' is [3, 512, 512]: its sides must equal boxes.side",
        ),
        ({"max_batch": 0}, "field 'max_batch': Input should be greater than or equal to 1, not 0"),
        ({"version": 1.0}, "field 'version': Input should be a valid string, not 1.0"),
        (
            {"files": {"onnx": {"path": "m.onnx", "sha256": "ABC"}}},
            "field 'files.onnx.sha256': String should match pattern '^[0-9a-f]{64}$', not 'ABC'",
        ),
        ({"dataset": "evil.py:Data"}, "field 'dataset': 'evil.py:Data' is code: name it on the command line; a manifest names plug-ins"),
        ({"accuracy": {"metric": "os:system", "target": 1}}, "field 'accuracy.metric': 'os:system' is code: name it on the command line; a manifest names plug-ins"),
        ({"task": "chess"}, "field 'task': 'chess' is not one of image-classification, object-detection, segmentation, image-to-image, question-answering, text-classification, embedding, speech-recognition, text-recognition, music-transcription, text-generation, text-to-image, text-to-video, table, node-classification, recommendation, none"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(
    change: dict[str, Any], problem: str, content: dict[str, Any]
) -> None:
    assert refusals(parse_manifest, {**content, **change}, "m.yaml") == [f"m.yaml: {problem}"]


@pytest.mark.parametrize("field", ["name", "files", "inputs", "outputs", "dataset"])
def test_a_missing_field_is_named(field: str, content: dict[str, Any]) -> None:
    del content[field]
    assert refusals(parse_manifest, content, "m.yaml") == [f"m.yaml: field '{field}' is missing"]


def test_all_problems_of_a_manifest_are_reported_at_once(content: dict[str, Any]) -> None:
    del content["dataset"]
    assert len(refusals(parse_manifest, {**content, "colour": 1, "max_batch": -1}, "m.yaml")) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": []},
        {"accuracy": {"metric": "top1", "target": float("nan")}},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", -1]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 0]}]},
    ],
    ids=["no output", "target that is never missed", "negative size", "empty size"],
)
def test_a_value_that_no_model_can_have_is_refused(
    change: dict[str, Any], content: dict[str, Any]
) -> None:
    for line in refusals(parse_manifest, {**content, **change}, "m.yaml"):
        assert line.startswith(f"m.yaml: field '{next(iter(change))}")


def test_a_converted_file_has_the_names_of_its_source(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    (tmp_path / "m.tflite").touch()
    content["files"]["onnx"]["names"] = {"image": "input_2"}
    content["files"]["tflite"] = {"path": "m.tflite", "names": {"image": "x:0"}}
    content["files"]["savedmodel"] = {"path": "m", "names": {"image": "x"}}
    model = written(tmp_path, content)
    made = {
        name: model.names_in(tmp_path / "made" / name)["image"]
        for name in ("m.onnx", "m.xml", "m.ort", "m.tflite")
    }
    assert made == {"m.onnx": "input_2", "m.xml": "input_2", "m.ort": "input_2", "m.tflite": "x"}
    assert model.in_file(tmp_path / "m.tflite", {"image": 1, "more": 2}) == {"x:0": 1, "more": 2}


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "5", ""])
def test_manifest_that_is_not_a_mapping_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    wanted = f"{path} is not a manifest: write a mapping of fields, as in digits.yaml"
    assert refusals(load_model, str(path)) == [wanted]


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, " line 2: aliases are not allowed here"),
        ("a: !!python/object/apply:os.system [id]", " line 1: tags such as '!!python/object"),
        ("a: [1, 2", " is not valid YAML: while parsing a flow sequence"),
        ("a: " + "1" * 5000, " contains a number of more than 4,300 digits"),
        ("{" * 3000, " is not valid YAML: "),
        ("? [1]\n: 2\n", " is not valid YAML: while constructing a mapping"),
    ],
    ids=lambda x: x[:12],
)
def test_yaml_that_cannot_be_read_is_reported_in_one_line(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    assert refusal(load_yaml, path).startswith(f"{path}{reason}")


def test_bytes_that_are_not_utf_8_are_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"a: \xff\xfe")
    line = refusal(load_yaml, path)
    assert line.startswith(f"{path} is not valid YAML: 'utf-8' codec can't decode byte 0xff")


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert refusals(load_yaml, path) == [
        f"{path} is larger than 1 MiB: pass the path of a configuration or a manifest"
    ]


def test_a_bare_file_is_a_model_without_a_description(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x08")  # the file contains only a version of ONNX
    model = load_model(str(path))
    assert (model.name, model.manifest, model.inputs, model.output) == ("net", None, (), None)
    assert model.path(("onnx",)) == path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("missing.onnx", "--model missing.onnx does not exist"),
        ("models/missing", "--model models/missing does not exist"),
        ("missing.yaml", "missing.yaml cannot be read: No such file or directory"),
        ("digit", "no model named 'digit': did you mean 'digits'?"),
        ("xyz", "no model named 'xyz': see `python -m harness list`, or give a path to a file"),
    ],
)
def test_missing_model_is_reported_in_one_line(text: str, line: str) -> None:
    assert refusals(load_model, text) == [line]


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("a: 1\nb: {target: 99, target: 1}\n")
    assert "the key 'target' appears twice" in refusal(load_yaml, path)


def test_manifest_without_inputs_is_refused(content: dict[str, Any]) -> None:
    line = refusal(parse_manifest, {**content, "inputs": []}, "m.yaml")
    assert line == "m.yaml: field 'inputs': there must be at least one"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("outputs", [{"name": "y", "postprocess": {"topk": 0}}], "topk: Input should be"),
        ("outputs", [{"name": "y"}, {"name": "y"}], "the name 'y' appears twice"),
        ("inputs", [{"name": "x", "dtype": "float32", "shape": []}], "at least the batch"),
    ],
)
def test_ambiguous_value_is_refused(
    field: str, value: object, told: str, content: dict[str, Any]
) -> None:
    """Bug: `topk: 0` meant five classes, and one of two outputs or steps with the same name was dropped."""
    assert told in refusal(parse_manifest, {**content, field: value}, "m.yaml")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([{"column": {"names": ["a"]}}, {"column": {"names": ["b"]}}], "appears 2 times"),
        ([{"normalise": {"std": [float("inf")]}}], "should be a finite number"),
        ([{"audio": {"max_seconds": float("inf")}}], "less than or equal to 86400"),
    ],
)
def test_steps_that_make_no_input_are_refused(
    steps: object, told: str, content: dict[str, Any]
) -> None:
    given = {"name": "x", "dtype": "float32", "shape": ["n", 4], "preprocess": steps}
    assert told in refusal(parse_manifest, {**content, "inputs": [given]}, "m.yaml")


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("performance_count", "5", "field 'performance_count': Input should be a valid integer, not '5'"),
        ("max_batch", True, "field 'max_batch': Input should be a valid integer, not True"),
        ("inputs", 5, "field 'inputs': Input should be a list, not 5"),
        ("accuracy", {"metric": "top1", "target": "75"}, "field 'accuracy.target': Input should be a valid number, not '75'"),
        ("accuracy", {"metric": "top1", "target": True}, "field 'accuracy.target': Input should be a valid number, not True"),
        ("outputs", [{"name": "y", "postprocess": {"topk": {"k": True}}}], "field 'outputs.0.postprocess': topk.k: Input should be a valid integer, not True"),
        ("outputs", [{"name": "y", "postprocess": {"shift": {"by": "1"}}}], "field 'outputs.0.postprocess': shift.by: Input should be a valid integer, not '1'"),
    ],
)  # fmt: skip
def test_value_of_another_type_is_not_converted(field: str, value: object, line: str) -> None:
    """Bug: `yes` became 1, and "5" became 5."""
    content = load_yaml(MODELS_DIR / "digits.yaml")
    assert isinstance(content, dict)
    assert refusal(parse_manifest, {**content, field: value}, "m.yaml") == f"m.yaml: {line}"


def test_many_problems_are_twenty_lines_and_a_count() -> None:
    content = load_yaml(MODELS_DIR / "digits.yaml")
    assert isinstance(content, dict)
    lines = refusals(parse_manifest, content | {f"x{i}": i for i in range(10_000)}, "m.yaml")
    assert lines[0] == "m.yaml: unknown field 'x0'"
    assert lines[20:] == ["and 9,980 more problems like these"]
    steps = [{"name": "y", "postprocess": {"topk": {f"x{i}": i for i in range(10_000)}}}]
    with pytest.raises(ConfigError, match=r"; and 9,995 more$"):
        parse_manifest({**content, "outputs": steps}, "m.yaml")
