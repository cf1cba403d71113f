"""Tests `pitfalls` on the digits model, the two photographs, and a colour classifier of JPEG files."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.extras import how_to_install
from harness.core.registry import Entry
from harness.explain.pitfalls import job, page
from harness.explain.pitfalls.changes import (
    BackendChange,
    Impossible,
    StepChange,
    array_changes,
    backend_changes,
    step_changes,
)
from harness.explain.pitfalls.measure import _verdict
from harness.models.manifest.lookup import load_model
from harness.models.steps.steps import choices, preprocess_step
from harness.search.runtimes import choice
from tests.builders.pictures import encode
from tests.builders.refusals import Said
from tests.stand_ins.chromium import needs_chromium, shown

Change = Mapping[str, Any]


@pytest.fixture
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that only ort is installed, because TensorFlow takes ten seconds to import."""
    here = property(lambda self: self.needs in ("", "onnxruntime"))
    monkeypatch.setattr(Entry, "installed", here)
    decode = import_module("harness.datasets.parts.image.decode")
    monkeypatch.setitem(decode._PACKAGES, "tensorflow", ("no-such-distribution",))


def reports(*arguments: str, out: Path) -> list[dict[str, Any]]:
    assert main(["pitfalls", *arguments, "--out", str(out)]) == 0
    content = json.loads((out / "pitfalls.json").read_text())
    made: list[dict[str, Any]] = content["reports"]
    return made


def changes(report: Mapping[str, Any]) -> dict[str, Change]:
    """Returns the changes by kind and name, as the table names them."""
    return {f"{c['kind']}: {c['change']}": c for c in report["changes"]}


def impossible(report: Mapping[str, Any]) -> dict[str, str]:
    return {f"{c['kind']}: {c['name']}": c["reason"] for c in report["not_possible"]}


@pytest.mark.usefixtures("_light")
def test_changes_to_the_digits_inputs_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (report,) = reports("--model", "digits", out=tmp_path)
    assert (report["metric"], report["score"], report["samples"]) == ("top1", 99.2, 500)
    found = changes(report)
    # A float16 number holds each pixel exactly, because sixteenths fit into its 11 bits.
    rounded = found["precision: input rounded to float16"]
    assert (rounded["input_share_differing"], rounded["verdict"]) == (0, "harmless")
    one_channel = found["layout: bytes of the other order"]
    assert (one_channel["agreement"], one_channel["score"]) == (1, 99.2)
    raw = found["normalise: 0 to 16 instead of 0 to 1"]
    assert raw["input_max_difference"] == 15  # a white pixel differs by 15
    assert 0.95 < raw["agreement"] < 1
    assert (raw["score"], raw["verdict"]) == (99.2, "changed")
    for name in ("colour: inverted", "layout: height and width swapped"):
        assert found[name]["verdict"] == "dangerous"
        assert found[name]["agreement"] < 0.2
        assert found[name]["score"] < 20
    agreements = [c["agreement"] for c in report["changes"]]
    assert agreements == sorted(agreements)
    reasons = impossible(report)
    assert reasons["framework: torch"].endswith(how_to_install("torch"))
    assert reasons["decoder: any other"] == "dataset 'digits' makes no input from image files"
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    progress = printed.err.splitlines()
    assert progress[0] == "harness: pitfalls: digits: the baseline, 500 samples"
    of = len(progress) - 1
    assert progress[-of] == f"harness: pitfalls: 1 of {of}: decoder, any other"
    assert any(re.search(r"; about \d+ s left$", line) for line in progress[1:])
    assert lines[0] == "digits on ort, digits: 500 samples, input 0 to 1, top1 99.20"
    assert lines[2].startswith("colour     inverted ")
    assert lines[2].endswith("dangerous")


@pytest.mark.usefixtures("_light")
def test_two_photographs_are_used_by_default(tmp_path: Path) -> None:
    digits, photographs = reports("--backend", "null", out=tmp_path / "new")
    assert {c["agreement"] for c in digits["changes"]} == {None}
    assert photographs["samples"] == 2
    assert photographs["dataset"] == "scikit-learn's photographs"
    found, reasons = changes(photographs), impossible(photographs)
    for name in ("decoder: opencv", "decoder: simplejpeg"):
        assert (found[name]["input_max_difference"], found[name]["verdict"]) == (0, "harmless")
    for name in ("colour: bgr", "decoder: simplejpeg, dct fast", "resize: library opencv"):
        # The verdict is only `differs`, because without a model nothing shows whether the change matters.
        assert found[name]["verdict"] == "differs"
        assert found[name]["input_share_differing"] > 0.5
    assert (
        found["resize: library opencv"]["input_mean_difference"]
        > (found["resize: library opencv, method area"]["input_mean_difference"])
    )
    for name in ("decoder: tensorflow", "resize: library tensorflow, method area"):
        assert reasons[name].startswith("tensorflow is not installed")
    assert reasons["decoder: dct fast"].startswith("decode: pillow has no fast dct")
    assert reasons["colour: grey"].endswith("normalise has 3 values of mean for 1 channels")
    assert reasons["layout: order nhwc"] == (
        "photographs/china.jpg and 1 more: after its steps the image is [224, 224, 3], but the input 'input' takes "
        "[3, 224, 224]: see resize, crop and layout"
    )


@pytest.mark.usefixtures("_light")
def test_a_model_with_random_weights_borrows_steps_and_notes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    colours(tmp_path / "data", 1)
    (report,) = reports(
        *("--dataset", "folder", "--data-dir", str(tmp_path / "data"), "--samples", "2"),
        out=tmp_path / "out",
    )
    assert (report["model"], report["samples"]) == ("light-squeezenet", 2)
    assert (report["score"], report["no_score"]) == (None, "random weights")
    assert len(report["notes"]) == 3
    found = changes(report)
    assert found["decoder: opencv"]["verdict"] == "harmless"
    assert {c["verdict"] for c in report["changes"]} <= {"harmless", "differs"}
    assert not (tmp_path / "cache/mlperf-harness/images").exists()
    assert "the steps" not in capsys.readouterr().err


@pytest.mark.usefixtures("_light")
def test_the_colour_order_costs_the_expected_share_of_answers(tmp_path: Path) -> None:
    """Uses red, green and blue JPEG files, and a model that returns the strongest channel."""
    colours(tmp_path / "data", 4)
    model = strongest_channel(tmp_path)
    (report,) = reports(
        *("--model", str(model), "--data-dir", str(tmp_path / "data")), out=tmp_path / "out"
    )
    assert (report["score"], report["samples"]) == (100, 12)
    found = changes(report)
    swapped = found["colour: bgr"]  # the change swaps red and blue, and leaves green as it is
    assert swapped["agreement"] == pytest.approx(1 / 3)
    assert swapped["score"] == pytest.approx(100 / 3)
    assert swapped["verdict"] == "dangerous"
    assert found["normalise: left out"]["verdict"] == "small"
    assert found["normalise: left out"]["score"] == 100
    assert found["aspect: keep pad"]["verdict"] == "small"
    assert impossible(report)["crop: left out"] == "the model declares no step crop"
    assert report["changes"][0]["change"] == "bgr"


@pytest.mark.usefixtures("_light")
def test_samples_are_spread_evenly_over_the_set(tmp_path: Path) -> None:
    """Bug to avoid: if the data are sorted by class, the first samples all belong to one class."""
    colours(tmp_path / "data", 4)
    model = strongest_channel(tmp_path)
    (report,) = reports(
        *("--model", str(model), "--data-dir", str(tmp_path / "data"), "--samples", "3"),
        out=tmp_path / "out",
    )
    assert changes(report)["colour: bgr"]["agreement"] == pytest.approx(1 / 3)


@pytest.mark.usefixtures("_light")
def test_answers_without_labels_are_compared_within_a_tolerance(tmp_path: Path) -> None:
    """If a decoder cannot read one of the files, `pitfalls` lists it as not possible."""
    colours(tmp_path / "data", 12)  # the memory cannot hold all 12 samples at once
    (tmp_path / "data/red0.jpg").write_bytes(encode(np.zeros((40, 60, 3), np.uint8), "PNG"))
    model = strongest_channel(tmp_path, task="embedding", postprocess="none")
    (report,) = reports(
        *("--model", str(model), "--data-dir", str(tmp_path / "data")), out=tmp_path / "out"
    )
    assert report["samples"] == 36
    found = changes(report)
    assert found["precision: input rounded to float16"]["verdict"] == "small"
    # A third of the images are green, and swapping red and blue leaves these images unchanged.
    assert 1 / 3 <= found["colour: bgr"]["agreement"] < 0.5
    reason = impossible(report)["decoder: simplejpeg"]
    assert reason == "red0.jpg: it is not a JPEG, the only format that simplejpeg decodes"


@pytest.mark.parametrize(
    ("agreement", "score", "verdict"),
    [
        (0.996, 99.2, "changed"),
        (0.996, 98.8, "changed"),
        (0.95, 94.4, "dangerous"),
        (0.5, 99.0, "changed"),
        (0.5, None, "dangerous"),
        (1.0, 99.2, "small"),
    ],
)
def test_only_a_score_drop_beyond_its_error_is_dangerous(
    agreement: float, score: float | None, verdict: str
) -> None:
    """Bug: a change with 99.6 % agreement and an unchanged score was called `dangerous`."""
    model = SimpleNamespace(has_random_weights=False)
    base: Any = SimpleNamespace(
        subject=SimpleNamespace(model=model),
        score=99.2,
        unit="%",
        lower_is_better=False,
        indices=range(500),
    )
    assert _verdict(base, True, agreement, score) == verdict
    base.score = None
    assert _verdict(base, True, agreement, None) == ("small" if agreement == 1 else "differs")
    model.has_random_weights = True
    assert _verdict(base, True, agreement, None) == "differs"


@pytest.mark.slow
def test_a_bare_file_goes_only_to_backends_that_read_its_format(tmp_path: Path) -> None:
    """Bug: an .onnx file was reported as "openvino file" and passed to TorchScript, which called it a corrupted
    checkpoint.
    """
    file = tmp_path / "m.onnx"
    file.write_bytes(b"")
    found = list(backend_changes(load_model(str(file)), "ort"))
    names = {one.name for one in found if isinstance(one, BackendChange)}
    assert not [name for name in names if "openvino file" in name or "torch" in name]
    reasons = {one.name: one.reason for one in found if isinstance(one, Impossible)}
    read = {
        "torch": "it reads torchscript, torch-export, but the model has onnx",
        "tensorflow": "it reads savedmodel, keras, but the model has onnx",
        "litert": "it reads tflite, but the model has onnx",
        "ncnn": "it reads ncnn, but the model has onnx",
        "mnn": "it reads mnn, but the model has onnx",
    }
    for backend, reason in read.items():
        assert "install" in reasons[backend] or reasons[backend] == reason
    if "openvino" not in reasons:
        assert "openvino, onnx file" in names


@pytest.mark.usefixtures("_light")
def test_ctrl_c_in_a_plug_in_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug to avoid: an error marked one change as impossible, and the other changes continued."""
    cls = import_module("harness.backends.ort").OrtBackend
    infer, calls = cls.infer, []

    def stopped(self: object, batch: object) -> object:
        calls.append(batch)
        if len(calls) == 20:  # the baseline takes 16 samples, so the 20th call belongs to a change
            raise KeyboardInterrupt
        return infer(self, batch)

    monkeypatch.setattr(cls, "infer", stopped)
    assert main(["pitfalls", "--model", "digits"]) == 130
    assert len(calls) == 20


CONTENT: dict[str, Any] = {
    "model": "m<i>",
    "backend": "ort",
    "dataset": "d",
    "notes": ["2 samples are too few for unchanged answers to prove much"],
    "samples": 2,
    "steps": {},
    "input_range": [0.0, 16.0],
    "metric": "top1",
    "score": 99.0,
    "no_score": "",
    "changes": [
        {
            "kind": kind,
            "change": "x",
            "input_share_differing": 0.5,
            "input_max_difference": mean,
            "input_mean_difference": mean,
            "agreement": agreement,
            "score": agreement * 99,
            "verdict": verdict,
        }
        for kind, mean, agreement, verdict in (
            ("colour", 4.0, 0.25, "dangerous"),
            ("precision", None, 0.5, "dangerous"),
            ("resize", 0.16, 1.0, "small"),
            ("layout", 0.0, 1.0, "harmless"),
        )
    ],
    "not_possible": [{"kind": "crop", "name": "any", "reason": "no <b>image</b>"}],
}


def test_the_page_has_a_bar_for_each_change_by_its_verdict() -> None:
    answers, inputs = page.figures(CONTENT)
    assert {one["name"]: dict(zip(one["y"], one["x"], strict=True)) for one in answers.data} == {
        "dangerous": {"colour: x": 25.0, "precision: x": 50.0},
        "small": {"resize: x": 100.0},
        "harmless": {"layout: x": 100.0},
    }
    # On a logarithmic axis, 0 and values that are not finite have no bar.
    assert {one["name"]: dict(zip(one["y"], one["x"], strict=True)) for one in inputs.data} == {
        "dangerous": {"colour: x": 25.0},
        "small": {"resize: x": 1.0},
    }
    # The worst change comes first. The plot of the inputs omits a change that does not affect the inputs.
    names = ["colour: x", "precision: x", "resize: x", "layout: x"]
    for figure, drawn in ((answers, names), (inputs, names[:-1])):
        rows = figure.layout["yaxis"]
        assert rows["categoryarray"] == drawn
        assert rows["range"] == [len(drawn) - 0.5, -0.5]


def test_the_headline_counts_the_changes_and_names_the_dangerous_ones() -> None:
    """Bug: the headline contained only the number of samples and the range of the input."""
    assert page.headline(CONTENT) == (
        "Of 4 changes: 2 dangerous, 1 small, 1 harmless; dangerous: colour: x; precision: x"
    )


def test_without_answers_the_page_shows_only_the_inputs() -> None:
    changes = [{**one, "agreement": None, "score": None} for one in CONTENT["changes"]]
    (figure,) = page.figures({**CONTENT, "changes": changes})
    assert figure.title == "Change of the input"


def test_the_page_is_reproducible_and_escapes_foreign_texts(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        texts.append(page.write([CONTENT, CONTENT], tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert "<b>image</b>" not in texts[0]
    assert "<h1>Pitfalls · m&lt;i&gt; · d · on ort</h1>" in texts[0]


@needs_chromium()
def test_a_browser_draws_every_plot_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    seen = shown(page.write([CONTENT], tmp_path))
    assert (seen.console, seen.drawn) == ([], 2)


@pytest.mark.usefixtures("_light")
def test_without_plotly_the_numbers_are_written_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    words = ["--model", "digits", "--samples", "3", "--backend", "null"]
    assert len(reports(*words, out=tmp_path)) == 1
    assert (
        f"harness: no page was written: a page with plots needs the module 'plotly': {how_to_install('report')}\n"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "pitfalls.html").exists()


def test_ctrl_c_keeps_the_subjects_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: Said
) -> None:
    """Bug: the first table was printed, but its numbers were in no file."""
    measured = iter([CONTENT])

    def measure(*_: object) -> dict[str, Any]:
        try:
            return next(measured)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(job, "subjects", lambda *_: iter(["first", "second"]))
    monkeypatch.setattr(job, "measure", measure)
    assert "dangerous" in prints("pitfalls", "--out", tmp_path, status=130)
    assert json.loads((tmp_path / "pitfalls.json").read_text())["reports"] == [CONTENT]


@pytest.mark.usefixtures("_light")
@pytest.mark.parametrize("model", ["mobilenet", "light/squeezenet"])
def test_synthetic_data_has_no_decoder_changes(model: str, tmp_path: Path) -> None:
    """Bug to avoid: if a dataset ignored the steps, every change of a step would seem harmless."""
    (report,) = reports(
        *("--model", model, "--dataset", "synthetic", "--backend", "null", "--samples", "3"),
        out=tmp_path,
    )
    kinds = {c["kind"] for c in report["changes"]}
    assert kinds == {"layout", "precision", "colour"}
    reason = "dataset 'synthetic' makes no input from image files"
    assert impossible(report)["decoder: any other"] == reason


def test_every_option_of_the_schema_is_tried() -> None:
    steps = (
        preprocess_step("decode"),
        preprocess_step("resize", size=256, keep="shorter"),
        preprocess_step("crop", size=224),
        preprocess_step("normalise", scale=1 / 255, mean=(0.5,)),
        preprocess_step("layout", order="nchw"),
    )
    found = list(step_changes(steps))
    kinds = [one.kind for one in found]
    decoders = len(choices("decode", "decoder")) * len(choices("decode", "dct"))
    resizes = len(choices("resize", "library")) * len(choices("resize", "method"))
    assert (kinds.count("decoder"), kinds.count("resize")) == (decoders - 1, resizes - 1)
    assert len({(one.kind, one.name) for one in found}) == len(found)
    for one in found:
        assert isinstance(one, Impossible) or one.steps != steps
    names = {one.name: one for one in found if isinstance(one, StepChange)}
    cropped = names["fraction 0.875 before the resize"].steps
    assert [step.name for step in cropped] == ["decode", "crop", "resize", "normalise", "layout"]
    assert cropped[2].options["size"] == 224
    assert [s.name for s in names["left out, stretched to size"].steps].count("crop") == 0


def test_array_changes_keep_the_shape_and_the_type() -> None:
    rows = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4) / 96
    found = {one.name: one for one in array_changes(rows.shape, "float32", (0, 1), (), 255)}
    made = {name: one.apply(rows) for name, one in found.items() if not isinstance(one, Impossible)}
    assert len(made) == 5
    for array in made.values():
        assert (array.shape, array.dtype) == (rows.shape, rows.dtype)
    np.testing.assert_array_equal(made["inverted"], 1 - rows)
    np.testing.assert_array_equal(made["height and width swapped"][1, 2], rows[1, 2].T)
    interleaved = made["bytes of the other order"][0].ravel()[:3]
    np.testing.assert_array_equal(interleaved, rows[0, :, 0, 0])
    assert 0 < np.abs(made["input rounded to float16"] - rows).max() < 1e-3
    whole = list(array_changes((2, 128), "int64", (0, 9), (), 255))
    assert all(isinstance(one, Impossible) for one in whole)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nosuch"], "no model named 'nosuch': see "),
        (["--dataset", "digit"], "no dataset named 'digit': did you mean 'digits'?"),
        (["--backend", "nul"], "no backend named 'nul': did you mean 'null'?"),
        (["--samples", "0"], "--samples 0: it must be at least 1"),
        (["--data-dir", "x"], "--data-dir x: name its dataset with --dataset, e.g. folder"),
        (["--model", "digits", "--dataset", "folder"], "dataset 'folder' needs --data-dir: "),
        (["--out", "full/pitfalls.json/x"], "--out full/pitfalls.json/x: full/pitfalls.json is not a writable "),
        (["--out", "full"], "full/pitfalls.json already exists and will not be overwritten: "),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/pitfalls.json").write_text("{}")
    assert main(["pitfalls", *arguments]) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    assert error.startswith(f"harness: {said}")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_every_installed_framework_gives_the_same_digits_answers(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "harness", "pitfalls", "--model", "digits", "--out", "out")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command[:-1], str(tmp_path)], cwd=root, capture_output=True, text=True, check=False
    )
    # The frameworks' output goes to pitfalls.log, so it does not appear on stderr.
    assert done.returncode == 0
    assert {line.partition(": ")[2][:9] for line in done.stderr.splitlines()} == {"pitfalls:"}
    (report,) = json.loads((tmp_path / "pitfalls.json").read_text())["reports"]
    frameworks = [c for c in report["changes"] if c["kind"] == "framework"]
    assert {c["verdict"] for c in frameworks} <= {"harmless"}
    others = {*choice.every_runtime()} - {"ort"}
    able = {*choice.readable("digits")} - {"ort"}
    assert {c["change"].partition(",")[0] for c in frameworks} == able
    reasons = {
        kind_and_name.removeprefix("framework: "): reason
        for kind_and_name, reason in impossible(report).items()
        if kind_and_name.startswith("framework: ")
    }
    assert reasons.keys() == others - able
    assert all("install" in reason or "it reads " in reason for reason in reasons.values())


def colours(folder: Path, count: int) -> None:
    """Writes `count` noisy JPEG files each in blue, green and red; their classes by channel are 2, 1 and 0."""
    random = np.random.default_rng(0)
    lines = ["file,label"]
    folder.mkdir()
    for channel, name in enumerate(("red", "green", "blue")):
        for i in range(count):
            pixels = random.integers(0, 60, (40, 60, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            (folder / f"{name}{i}.jpg").write_bytes(encode(pixels, quality=95))
            lines.append(f"{name}{i}.jpg,{channel}")
    (folder / "labels.csv").write_text("\n".join(lines))


def strongest_channel(
    folder: Path, task: str = "image-classification", postprocess: str = "argmax"
) -> Path:
    """Writes a manifest for a model that averages each channel."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", kind, ["batch", 3, 32, 32])]
    outputs = [helper.make_tensor_value_info("y", kind, ["batch", 3])]
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["means"]),
        helper.make_node("Flatten", ["means"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "strongest", inputs, outputs)
    opset = helper.make_opsetid("", 17)
    onnx.save(
        helper.make_model(graph, opset_imports=[opset], ir_version=10), str(folder / "m.onnx")
    )
    (folder / "m.yaml").write_text(
        "{name: strongest, version: '1', description: d, licence: x, "
        f" task: {task}, outputs: [{{name: y, postprocess: {postprocess}}}],"
        " files: {onnx: {path: m.onnx, sha256: null}}, dataset: folder,"
        " accuracy: {metric: top1, target: 99},"
        " inputs: [{name: x, dtype: float32, shape: [batch, 3, 32, 32], preprocess:"
        " [decode, {resize: {size: 32}}, {normalise: {scale: 0.00392}}, {layout: {order: nchw}}]}]}"
    )
    return folder / "m.yaml"
