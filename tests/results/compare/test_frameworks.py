"""A comparison of frameworks ranks runs of one model in different files if the answers confirm that the model is the
same.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.core import registry
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.results.compare.finished import named_apart, side
from harness.results.pages.words import letter_of
from tests.builders.edited import edit
from tests.builders.finished import answered_later
from tests.builders.refusals import Said

Edit = Callable[[Any], None]
DIGITS = ["--scenario", "single-stream", "--queries", "64", "--quiet", "--no-report"]


@pytest.fixture(scope="module")
def ort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run of the digits model on ONNX Runtime, with its answers."""
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("frameworks") / "ort"
    assert main([*DIGITS, "--backend", "ort", "--out", str(out)]) == 0
    return out


def edited(source: Path, copy: Path, changes: dict[str, Edit]) -> Path:
    """changes: maps a file to the function that changes its content."""
    shutil.copytree(source, copy)
    for name, change in changes.items():
        edit(copy / name, change)
    return copy


def twin(source: Path, copy: Path, **more: Edit) -> Path:
    """Writes a copy of the run as if a different framework had run its own file from the same manifest.

    more: additional changes to `config`, `result` or `environment`.
    """

    def other_file(content: Any) -> None:
        content.update(model_sha256="f" * 64, backend="other")

    def other_backend(content: Any) -> None:
        content.update(backend="other")
        about = content["backend_description"]
        for name in ("spinning", "arena", "io_binding"):
            del about[name]
        about.update(hint="latency")
        content["environment"]["backend"] = about

    changes: dict[str, list[Edit]] = {
        "config.yaml": [other_file],
        "result.json": [other_backend],
        "environment.json": [lambda content: content.update(model_sha256="f" * 64)],
    }
    names = {"config": "config.yaml", "result": "result.json", "environment": "environment.json"}
    for name, change in more.items():
        changes[names[name]].append(change)

    def all_of(every: list[Edit]) -> Edit:
        def change(content: Any) -> None:
            for one in every:
                one(content)

        return change

    return edited(source, copy, {name: all_of(every) for name, every in changes.items()})


def refused(capsys: pytest.CaptureFixture[str], *sides: Path) -> list[str]:
    """Returns the lines that give reasons; [] if the sides are ranked."""
    status = main(["compare", *map(str, sides)])
    lines = capsys.readouterr().out.splitlines()
    found = [line.removeprefix("refused").strip() for line in lines if line.startswith("refused")]
    assert status == (4 if found else 0)
    return found


def test_two_files_of_one_manifest_are_one_model(ort: Path, tmp_path: Path, prints: Said) -> None:
    """Bug: runs of the digits model on ort, openvino and tensorflow were refused because their files have different
    digests.
    """
    printed = prints("compare", ort, twin(ort, tmp_path / "other"))
    assert re.search(r"verdict   undecided: B \(.*\) is 1.00 x ", printed)
    assert "answers   top-1 agreement on 100.00 % of 500 samples, 500 identical" in printed
    assert "differs   model_sha256: bbb80374d5df… -> ffffffffffff…" in printed
    assert "differs   backend: ort -> other" in printed


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"environment": lambda c: c.update(manifest_sha256="0")}, "model digest: ort bbb80374d5df…, "),
        ({"environment": lambda c: c.pop("manifest_sha256")}, "model digest: ort bbb80374d5df…, "),
        ({"config": lambda c: c.update(model_file="/x/int8.onnx")}, "model digest: ort "),
        ({"result": lambda c: c.update(backend="ort")}, "model digest: ort "),
        ({"result": lambda c: c.update(model="letters")}, "model: ort digits, other letters"),
        ({"config": lambda c: c.update(dataset_digest="0")}, "dataset digest: ort "),
        ({"config": lambda c: c.update(max_batch=2)}, "largest batch: ort 1, other 2: run both with the same --max-batch"),
        ({"result": lambda c: c["backend_description"].update(precision="bf16")}, "precision: ort float32, other bfloat16"),
    ],
)  # fmt: skip
def test_another_model_precision_or_dataset_is_refused(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Edit], start: str
) -> None:
    (line, *others) = refused(capsys, ort, twin(ort, tmp_path / "other", **more))
    assert others == []
    assert line.startswith(start)


def test_same_backend_may_be_compared_with_two_formats(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OpenVINO reads IR and ONNX files; TensorFlow also reads two formats."""
    ours = twin(ort, tmp_path / "a")
    formats = {"config": lambda c: c.update(backend_option=["format=keras"], model_sha256="0" * 64)}
    assert refused(capsys, ours, twin(ort, tmp_path / "b", **formats)) == []


def test_a_backend_that_reports_no_precision_is_refused_with_the_next_step(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The backend in the README's example reports no precision."""
    silent = twin(ort, tmp_path / "a", result=lambda c: c["backend_description"].pop("precision"))
    assert refused(capsys, ort, silent) == [
        "precision: ort float32, a -: the backend must report its precision as `precision` in describe(), e.g. float32"
    ]
    other = twin(ort, tmp_path / "b", result=lambda c: c["backend_description"].pop("precision"))
    formats = {"config.yaml": lambda c: c.update(backend_option=["format=x"])}
    assert refused(capsys, silent, edited(other, tmp_path / "c", formats)) == []


@pytest.mark.parametrize("spelled", ["f32", "FP32", "torch.float32", ["float32"], "float"])
def test_a_backend_of_the_users_may_spell_its_precision_in_its_own_way(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spelled: object
) -> None:
    """Bug: the comparison of `float32` with `f32` was refused."""

    def spell(result: Any) -> None:
        result["backend_description"]["precision"] = spelled

    assert refused(capsys, ort, twin(ort, tmp_path / "other", result=spell)) == []


def test_other_files_without_answers_are_refused_with_the_next_step(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = twin(ort, tmp_path / "other")
    (other / "accuracy" / "mlperf_log_accuracy.json").unlink()
    assert refused(capsys, ort, other) == [
        (
            "answers: ort and other read different files of the model, whose answers were "
            "not compared: run both with --mode both"
        )
    ]


def test_same_file_without_answers_is_ranked_with_a_note(
    ort: Path, tmp_path: Path, prints: Said
) -> None:
    """A bare ONNX file with synthetic data leads to runs without answers."""
    digest = yaml.safe_load((ort / "config.yaml").read_text())["model_sha256"]
    other = twin(ort, tmp_path / "other", config=lambda c: c.update(model_sha256=digest))
    (other / "accuracy" / "mlperf_log_accuracy.json").unlink()
    line = "answers   not compared: both sides need an accuracy run (--mode both)"
    assert line in prints("compare", ort, other)


def answer_otherwise(run: Path, count: int) -> None:
    """Replaces the first `count` answers with a different label."""
    path = run / "accuracy" / "mlperf_log_accuracy.json"
    log = json.loads(path.read_text())
    for row in log[:count]:
        row["data"] = bytes(b ^ 1 if i == 0 else b for i, b in enumerate(bytes.fromhex(row["data"]))).hex()  # fmt: skip
    path.write_text(json.dumps(log))


@pytest.mark.parametrize(
    ("count", "precision", "ranked"),
    [(5, "float32", True), (6, "float32", False), (25, "bfloat16", True), (26, "bfloat16", False)],
)
def test_files_of_one_manifest_with_different_answers_are_refused(
    ort: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    count: int,
    precision: str,
    ranked: bool,
) -> None:
    def compute(result: Any) -> None:
        result["backend_description"]["precision"] = precision

    ours = edited(ort, tmp_path / "ours", {"result.json": compute})
    other = twin(ort, tmp_path / "other", result=compute)
    answer_otherwise(other, count)
    found = refused(capsys, ours, other)
    if ranked:
        assert found == []
    else:
        share = {"float32": "99 %", "bfloat16": "95 %"}[precision]
        assert found == [
            (
                f"answers: {100 - count / 5:.2f} % of 500 are equal, fewer than {share}: one backend or "
                "one file does not compute this model"
            )
        ]


def test_settings_of_only_one_framework_are_one_line_per_side(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def environment(content: Any) -> None:
        for name in ("spinning", "arena", "io_binding", "share_weights", "graph", "opsets"):
            del content["backend"][name]
        content["backend"]["hint"] = "latency"

    backend = json.loads((ort / "environment.json").read_text())["backend"]
    spins = backend["spinning"]  # ORT does not spin under a quota of processor time
    other = twin(ort, tmp_path / "other", environment=environment)
    assert main(["compare", str(ort), str(other)]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("differs   backend,")]
    assert lines == [
        (
            f"differs   backend, only A: spinning={'yes' if spins else 'no'}, graph=all, arena=yes, io_binding=no, "
            "share_weights=no, opsets=ai.onnx 17"
        ),
        "differs   backend, only B: hint=latency",
    ]
    main(["compare", str(ort), str(other), "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert {"name": "backend.spinning", "before": "yes" if spins else "no", "after": "-"} in found[
        "differences"
    ]


def doubting(*codes: str) -> Edit:
    return lambda content: content.update(doubts=[{"code": c, "text": ""} for c in codes])


def test_only_doubts_of_a_single_side_are_shown(ort: Path, tmp_path: Path, prints: Said) -> None:
    """Bug: to find the difference, readers had to compare `doubts: a b c -> a b d` letter by letter."""
    ours = edited(ort, tmp_path / "a", {"result.json": doubting("steal", "drift", "paged")})
    theirs = edited(ort, tmp_path / "b", {"result.json": doubting("drift", "governor")})
    assert "doubts    only A: paged, steal; only B: governor\n" in prints("compare", ours, theirs)
    assert "\ndoubts" not in prints("compare", ours, ours)


def test_limit_is_not_judged_if_nothing_is_comparable(
    ort: Path, tmp_path: Path, prints: Said
) -> None:
    """Bug: the table said `kept       throughput` next to `not comparable`."""
    other = twin(ort, tmp_path / "other", result=lambda c: c.update(model="letters"))
    lines = [
        x
        for x in prints("compare", ort, other, "--fail-on", "throughput:-5%", status=4).splitlines()
        if x.startswith("limit")
    ]
    assert lines == ["limit     unknown    throughput against -5 %: the sides are not comparable"]


@pytest.fixture
def repeated(ort: Path, tmp_path: Path) -> Path:
    """Makes two --repeats folders, `ga` and `gb`, with three runs each; `gb` was stopped during its third run."""
    for name, first_ns in (("ga", 0), ("gb", 100)):
        for number in (1, 2, 10):
            run = Path(shutil.copytree(ort, tmp_path / name / f"run-{number}"))
            answered_later(run, first_ns + number)
        (tmp_path / name / "repeats.json").write_text("{}")
    (tmp_path / "gb" / "run-10").rename(tmp_path / "gb" / "run-10.partial")
    return tmp_path


def test_folder_of_repeats_is_read_as_its_runs(repeated: Path, prints: Said) -> None:
    assert [run.name for run in side(str(repeated / "ga"))] == ["run-1", "run-2", "run-10"]
    assert [run.name for run in side(str(repeated / "gb"))] == ["run-1", "run-2"]
    assert len(side(f"{repeated}/g*")) == 5
    printed = prints("compare", repeated / "ga", repeated / "gb").splitlines()
    assert printed[0] == f"A   3 runs in {repeated}/ga: run-1, run-2, run-10  (single-stream ort digits)"  # fmt: skip
    assert printed[1] == f"B   2 runs in {repeated}/gb: run-1, run-2  (single-stream ort digits)"


def test_runs_of_one_name_are_named_by_their_folders(repeated: Path, prints: Said) -> None:
    """Bug: the runs of both sides were called run-1 and run-2."""
    sides = [side(str(repeated / name)) for name in ("ga", "gb")]
    found = [[run.name for run in one] for one in named_apart(sides)]
    assert found == [["ga/run-1", "ga/run-2", "run-10"], ["gb/run-1", "gb/run-2"]]
    edit(repeated / "gb/run-2/result.json", lambda c: c.update(model="letters"))
    ours, theirs = (f"{repeated}/{name}/run-*" for name in ("ga", "gb"))
    assert "refused   model: ga/run-1 and 2 more digits, gb/run-1 and 1 more digits | letters" in (
        prints("compare", ours, theirs, status=4)
    )


def test_each_side_has_its_letter(ort: Path, prints: Said) -> None:
    """Bug: the third side was called B, like the second."""
    lines = prints("compare", *[str(ort)] * 3).splitlines()
    assert [line[0] for line in lines if line[1:4] == "   "] == ["A", "B", "A", "C"]
    assert [line.split()[1:3] for line in lines if line.startswith("number")] == [["A", "B"], ["A", "C"]]  # fmt: skip
    assert [letter_of(side) for side in (0, 25, 26)] == ["A", "Z", "27"]


def test_digest_of_a_manifest_depends_on_its_content(tmp_path: Path) -> None:
    source = Path(load_model("digits").folder / "digits.yaml").read_text()
    (tmp_path / "a.yaml").write_text("# a comment\n" + source)
    (tmp_path / "b.yaml").write_text(source.replace('version: "1.0"', 'version: "1.1"'))
    (tmp_path / "c.onnx").write_bytes(b"")
    digests = [load_model(str(tmp_path / name)).manifest_sha256 for name in ("a.yaml", "b.yaml")]
    assert digests[0] == load_model("digits").manifest_sha256
    assert digests[1] not in (None, digests[0])
    assert load_model(str(tmp_path / "c.onnx")).manifest_sha256 is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["openvino", "tensorflow", "litert", "torch", "ncnn", "mnn", "tract"]
)
def test_the_digits_are_ranked_on_every_pair_of_frameworks(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    if not registry.BACKENDS[backend].installed:
        pytest.skip(f"{backend} is not installed")
    out = tmp_path / backend
    assert main([*DIGITS, "--backend", backend, "--out", str(out)]) == 0
    assert refused(capsys, ort, out) == []


def renamed_onnx(path: Path, names: dict[str, str]) -> None:
    """Writes the digits model's ONNX file with different names for inputs and outputs."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(MODELS_DIR / "digits.onnx")
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for port in (*model.graph.input, *model.graph.output):
        port.name = names[port.name]
    onnx.save(model, path)


def test_one_network_in_files_of_different_names_is_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ai_edge_litert")
    renamed_onnx(tmp_path / "net.onnx", {"image": "input_2", "logits": "Identity"})
    shutil.copy(MODELS_DIR / "digits.tflite", tmp_path)
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    content["inputs"][0]["name"], content["outputs"][0]["name"] = "pixels", "scores"
    content["files"] = {
        "onnx": {"path": "net.onnx", "names": {"pixels": "input_2", "scores": "Identity"}},
        "tflite": {"path": "digits.tflite", "names": {"pixels": "image", "scores": "logits"}},
    }
    manifest = tmp_path / "net.yaml"
    manifest.write_text(yaml.safe_dump(content))
    words = [*DIGITS, "--model", str(manifest), "--dataset", "digits"]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert main([*words, "--backend", "ort", "--out", str(ours)]) == 0
    assert main([*words, "--backend", "litert", "--out", str(theirs)]) == 0
    capsys.readouterr()
    assert main(["compare", str(ours), str(theirs)]) == 0
    assert "answers   top-1 agreement on 100.00 % of 500 samples" in capsys.readouterr().out


def test_bare_files_of_two_formats_are_refused_with_the_manifest_to_write(
    ort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare: dict[str, Edit] = {"environment": lambda c: c.update(manifest_sha256=None)}
    (line,) = refused(capsys, ort, twin(ort, tmp_path / "other", **bare))
    assert line.endswith(
        "run both from one manifest that lists both files: docs/compare.md#the-same-model-on-two-frameworks"
    )
    one_format = {"result": lambda c: c.update(backend="ort")}
    (line,) = refused(capsys, ort, twin(ort, tmp_path / "third", **one_format))
    assert "manifest" not in line
