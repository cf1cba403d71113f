"""`data check` lists every fault that a long run would find late, and ends with status 0 or 4."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.run.labels import check_labels
from tests.builders.pictures import write
from tests.plugins.datasets.test_image_datasets import coco, imagenet, overwritten

FAULTY = Path(__file__).parents[2] / "faults/data/faulty_data.py"


def check(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    status = main(["data", "check", *arguments])
    printed, errors = capsys.readouterr()
    return status, printed.splitlines(), errors


def test_check_describes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(5):
        write(tmp_path / ("ant" if i else "bird") / f"{i}.jpg", i)
    status, lines, _ = check("folder", "--data-dir", str(tmp_path), capsys=capsys)
    assert status == 0
    assert lines[:2] == ["dataset     folder, 5 samples", f"source      {tmp_path}"]
    assert re.fullmatch(r"digest      [0-9a-f]{64}", lines[2])
    assert lines[3:] == [
        "cache       none",
        "steps       image: decode only: add --model to check the model's steps as well",
        "labels      5 samples in 2 classes",
        "labels      label  name  samples",
        "labels          0  ant         4",
        "labels          1  bird        1",
        lines[-1],
    ]
    assert re.fullmatch(r"speed       \S+ samples/s decoded and preprocessed", lines[-1])


def test_options_of_the_dataset_are_those_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `data check` could not read a file that requires --dataset-option format=NAME."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "timestamp": 1, "input_length": 3}\n')
    (tmp_path / "tiny.yaml").write_text(
        "name: tiny\nfiles: {}\ndataset: prompts\noutputs: [{name: answer}]\n"
        "inputs: [{name: request, dtype: string, shape: [batch]}]\n"
    )
    words = ("sessions", "--model", f"{tmp_path}/tiny.yaml", "--data-dir", str(path))
    status, lines, _ = check(*words, "--dataset-option", "format=prompts", capsys=capsys)
    assert (status, lines[0]) == (0, "dataset     sessions, 1 sample")
    status, _, error = check(*words, "--dataset-option", "format", capsys=capsys)
    assert (status, error) == (2, "harness: --dataset-option: 'format' is not KEY=VALUE\n")


def test_a_folder_one_level_too_high_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: for the folder above `val`, all samples had the same label, but `data check` reported nothing."""
    for i, name in enumerate(("ant", "bird")):
        write(tmp_path / "val" / name / f"{i}.jpg", i)
    status, lines, _ = check("folder", "--data-dir", str(tmp_path), capsys=capsys)
    assert status == 0
    assert "labels      2 samples in 1 class" in lines
    told = "note        all samples have the same label"
    assert f"{told}: did you mean {tmp_path / 'val'}?" in lines
    inner = check("folder", "--data-dir", str(tmp_path / "val"), capsys=capsys)
    assert not any(line.startswith(told) for line in inner[1])
    deeper = check("folder", "--data-dir", str(tmp_path / "val" / "ant"), capsys=capsys)
    assert not any("did you mean" in line for line in deeper[1])


def test_many_classes_fill_no_more_than_a_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "class-00/0.jpg", 0)
    picture = (tmp_path / "class-00/0.jpg").read_bytes()
    for i in range(30):
        for j in range(2 if i == 7 else 1):
            path = tmp_path / f"class-{i:02}/{j}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(picture)
    (tmp_path / "empty").mkdir()
    status, lines, _ = check("folder", "--data-dir", str(tmp_path), capsys=capsys)
    assert status == 0
    rows = [line.removeprefix("labels      ") for line in lines if line.startswith("labels")]
    assert rows[:3] == [
        "31 samples in 30 classes",
        "label  name      samples",
        "    7  class-07        2",
    ]
    assert rows[12] == "    …  16 classes between them"
    assert rows[-1] == "   30  empty           0"
    assert len(rows) == 18


def test_every_bad_file_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(15):
        write(tmp_path / f"a/{i:02}.jpg", i)
    for i in range(12):
        (tmp_path / f"a/{i:02}.jpg").write_bytes(b"\xff\xd8\xff")
    status, lines, _ = check("folder", "--data-dir", str(tmp_path), capsys=capsys)
    assert status == 4
    bad = [line for line in lines if line.startswith("bad ")]
    assert [b.split()[1] for b in bad] == [f"{tmp_path}/a/{i:02}.jpg:" for i in range(12)]


def test_classes_of_imagenet_and_objects_of_coco(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = imagenet(tmp_path / "imagenet")
    status, lines, _ = check("imagenet", "--data-dir", str(folder), capsys=capsys)
    assert (status, lines[6]) == (0, "labels      65: 1, 230: 1, 970: 1")
    folder = coco(tmp_path / "coco")
    status, lines, _ = check("coco", "--data-dir", str(folder), capsys=capsys)
    assert (status, lines[5]) == (0, "labels      3 objects in 3 classes")
    rows = [line.split()[1:] for line in lines[6:10]]
    assert rows == [
        ["label", "name", "objects"],
        ["1", "person", "1"],
        ["13", "stop", "sign", "1"],
        ["90", "toothbrush", "1"],
    ]


def test_the_models_steps_are_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data/a/0.jpg", 0)
    (tmp_path / "m.yaml").write_text(
        "{name: m, version: '1', description: d, licence: x, task: image-classification, files: {onnx: {path: m.onnx, sha256: null}},"
        " dataset: folder, outputs: [{name: y}], inputs: [{name: x, dtype: float32,"
        " shape: [n, 3, 16, 16], preprocess: [{resize: {size: 8}}, {layout: {order: nchw}}]}]}"
    )
    status, lines, _ = check(
        "folder", "--data-dir", f"{tmp_path}/data", "--model", f"{tmp_path}/m.yaml", capsys=capsys
    )
    assert status == 4
    assert "steps       x: resize(size=8, keep=none, method=bilinear, library=pillow, fill=0) layout(order=nchw)" in lines  # fmt: skip
    assert lines[-1] == (
        f"bad         {tmp_path}/data/a/0.jpg: after its steps the image is [3, 8, 8], but the input 'x' "
        "takes [3, 16, 16]: see resize, crop and layout"
    )


@pytest.mark.parametrize(
    ("name", "status", "last"),
    [
        ("Good", 0, "speed"),
        ("Unlabelled", 0, "speed"),
        ("RaisesInWarmUp", 4, "bad         samples 0 to 39: loading raised OSError: image 3 is trun"),
        ("RaisesInLabel", 4, "bad         sample 39: label raised KeyError: 39"),
    ],
)  # fmt: skip
def test_any_plug_in_can_be_checked(
    name: str, status: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_status, lines, _ = check(f"{FAULTY}:{name}", capsys=capsys)
    assert exit_status == status
    assert lines[-1].startswith(last)


def test_an_npz_is_checked_with_its_models_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, image=np.zeros((400, 64), np.float32), labels=np.arange(400) // 300)
    status, lines, _ = check("npz", "--data-dir", str(path), "--model", "digits", capsys=capsys)
    assert (status, lines[:2]) == (0, ["dataset     npz, 400 samples", f"source      {path}"])
    assert "labels      0: 300, 1: 100" in lines
    assert "steps       image: digits declares none" in lines
    status, _, errors = check("npz", "--data-dir", str(path), capsys=capsys)
    assert status == 2
    assert errors == (
        "harness: dataset 'npz' needs the model's inputs: name a --model with a manifest, which "
        "`init --model FILE` writes\n"
    )
    content = bytearray(path.read_bytes())
    content[30_000] ^= 1
    path.write_bytes(content)
    status, lines, _ = check("npz", "--data-dir", str(path), "--model", "digits", capsys=capsys)
    assert (status, lines[-1]) == (
        4,
        f"bad         {path} cannot be read: Bad CRC-32 for file 'image.npy'",
    )


def test_damaged_jpeg_and_boxes_without_area_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("simplejpeg")
    folder = coco(tmp_path)
    bad = folder / "val2017/000000000285.jpg"
    overwritten(bad)
    path = folder / "annotations/instances_val2017.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"] = [1, 2, 0, 0]
    path.write_text(json.dumps(content))
    status, lines, _ = check("coco", "--data-dir", str(folder), capsys=capsys)
    assert status == 4
    assert f"note        annotations of {path}" in lines
    assert any(line.startswith("note        1 boxes have no area: pycocotools") for line in lines)
    assert lines[-1].startswith(f"bad         {bad}: the JPEG is damaged: ")


def test_part_of_mlperfs_set_has_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = imagenet(tmp_path)
    status, lines, _ = check("imagenet", "--data-dir", str(folder), "--model", "resnet50", capsys=capsys)  # fmt: skip
    assert status == 0
    assert "note        MLPerf's set for resnet50 has 50,000 samples, but this one has 3" in lines


def test_digits_pass_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = check("digits", "--model", "digits", capsys=capsys)
    assert status == 0
    assert "labels      500 samples in 10 classes" in lines


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("fodler",), "no dataset named 'fodler': did you mean 'folder'?"),
        (("folder", "--data-dir", "/nowhere"), "--data-dir /nowhere does not exist"),
        (("folder",), "dataset 'folder' needs --data-dir: a folder with one sub-folder of images per"),
        (("folder", "--model", "nosuch"), "no model named 'nosuch': see "),
        ((f"{FAULTY}:Empty",), f"dataset '{FAULTY}:Empty' is empty: nothing can be measured"),
    ],
)  # fmt: skip
def test_dataset_that_cannot_be_checked_is_reported_in_one_line(
    arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, error = check(*arguments, capsys=capsys)
    assert (status, lines) == (2, [])
    assert error.startswith(f"harness: {problem}")
    assert error.count("\n") == 1


def test_labels_are_made_only_for_a_metric_that_checks_them() -> None:
    """Bug: SQuAD's labels, hundreds of MB, were built before each run but never used."""
    made = []

    def labels() -> list[object]:
        made.append(True)
        return ["a text"]

    check_labels("squad_f1", labels)
    assert not made
    with pytest.raises(ConfigError, match="the label of sample 0 is 'a text'"):
        check_labels("top1", labels)
    assert made
