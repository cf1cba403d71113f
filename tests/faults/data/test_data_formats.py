"""User files that are missing, damaged or of a different format: one line each, exit status 2."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.builders.models.external import split
from tests.builders.pictures import write
from tests.faults.command import (
    NOBODY,
    ROOT,
    SERVER,
    SHORT,
    only_all,
    run,
    run_here,
    unprivileged,
)
from tests.plugins.datasets.test_image_datasets import overwritten

NULL = (*SERVER, *SHORT, "--backend", "null")
"""Options for the digits model, whose single input is `image`, float32, 1x8x8."""


def archive(labels: int = 40) -> bytes:
    file = io.BytesIO()
    np.savez(file, image=np.zeros((40, 64), np.float32), labels=np.zeros(labels, int))
    return file.getvalue()


def table(row: str) -> bytes:
    header = ",".join(f"p{i}" for i in range(64)) + ",label\n"
    return (header + "0," * 64 + "0\n" + row + "\n").encode()


Made = Callable[[], bytes]


@pytest.mark.parametrize(
    ("dataset", "file", "content", "told"),
    [
        ("npz", "data.npz", lambda: archive()[:-30], " cannot be read: File is not a zip file"),
        ("csv", "data.csv", lambda: table("0," * 63 + "nan,1"), ":3: column 'p63' is 'nan', not a number"),
        ("npz", "data.npz", lambda: archive(labels=39), ": the arrays have different lengths (image 40, labels 39)"),
        *only_all(
            ("npz", "data.npz", lambda: archive(labels=41), ": the arrays have different lengths (image 40, labels 41)"),
            ("npz", "data.npz", lambda: b"", " cannot be read: the file is empty: fetch it again"),
            ("csv", "data.csv", lambda: b"", " is empty: the first line must name the columns"),
            ("csv", "data.csv", lambda: table("0," * 62 + "1"), ":3: 63 fields, 65 columns"),
        ),
    ],
)  # fmt: skip
def test_a_broken_file_prints_one_line(
    dataset: str, file: str, content: Made, told: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_bytes(content())
    done = run_here(*NULL, "--dataset", dataset, "--data-dir", str(path), "--out", f"{tmp_path}/r")
    assert (done.status, done.printed) == (2, "")
    assert done.said == f"harness: {path}{told}\n"
    assert not (tmp_path / "r").exists()


def coco(folder: Path, *annotations: dict[str, object]) -> Path:
    write(folder / "images/1.jpg", 1, 60, 80)
    image = {"id": 1, "file_name": "1.jpg", "height": 60, "width": 80}
    content = {"images": [image], "categories": [{"id": 1}], "annotations": annotations}
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


BOX: dict[str, object] = {"id": 7, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 9}


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        ([BOX, BOX], ": annotations has id 7 twice: keep one"),
        *only_all(
            ([{**BOX, "bbox": [1, 2, float("nan"), 4]}], ": annotation 7 has nan in bbox or area, which is not a number"),
            ([{**BOX, "bbox": [1, 2, -3, 4]}], ": annotation 7 has a negative size: bbox [1, 2, -3, 4], area 9"),
            ([{**BOX, "image_id": 2}], ": annotation 7 names image 2, which does not exist"),
        ),
    ],
)  # fmt: skip
def test_invalid_annotations_are_reported(
    annotations: list[dict[str, object]], told: str, tmp_path: Path
) -> None:
    folder = coco(tmp_path / "coco", *annotations)
    done = run_here(*NULL, "--dataset", "coco", "--data-dir", str(folder), "--out", f"{tmp_path}/r")
    assert (done.status, done.printed) == (2, "")
    assert done.said == f"harness: {folder}/annotations.json{told}\n"


def test_a_file_without_read_permission_is_reported_in_one_line(tmp_path: Path) -> None:
    unprivileged(tmp_path)
    path = tmp_path / "data.npz"
    path.write_bytes(archive())
    path.chmod(0)
    done = run(
        *NULL, "--dataset", "npz", "--data-dir", str(path), "--out", f"{tmp_path}/r",
        prefix=NOBODY,
        env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.status == 2
    assert done.said == f"harness: {path} cannot be read: Permission denied\n"


def test_a_jpeg_damaged_in_the_middle_is_found_by_a_check(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    folder = coco(tmp_path / "coco", BOX)
    overwritten(folder / "images/1.jpg")
    done = run("data", "check", "coco", "--data-dir", str(folder))
    assert done.status == 4
    assert done.printed.splitlines()[-1].startswith(
        f"bad         {folder}/images/1.jpg: the JPEG is damaged: "
    )


def manifest(folder: Path, **changed: object) -> Path:
    """Writes a manifest of the digits model for the null backend, which answers with ten zeros."""
    content = yaml.safe_load((ROOT / "harness/models/shipped/digits.yaml").read_text())
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump({**content, "files": {}, **changed}))
    return path


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({"topk": {"k": 11}}, ".0': topk.k is 11, but the output has only 10 classes"),
        *only_all(
            (["argmax", "argmax"], ".1': argmax takes [n, classes, ...], not int64 of shape [n]"),
            ({"boxes": {"side": 8}}, ".0': boxes takes [n, 4 + classes, anchors], not float32 of shape [n, 10]"),
            ({"stack": {"outputs": ["a"]}}, ".0': stack needs outputs by name, but this backend returns a single one"),
        ),
    ],
)  # fmt: skip
def test_an_invalid_postprocess_step_is_named_before_the_run(
    steps: object, told: str, tmp_path: Path
) -> None:
    path = manifest(tmp_path, outputs=[{"name": "logits", "postprocess": steps}])
    done = run_here(*NULL, "--model", str(path), "--out", f"{tmp_path}/r")
    assert (done.status, done.printed) == (2, "")
    wanted = f"harness: the manifest's field 'outputs.0.postprocess{told}"
    assert done.said.splitlines()[-1] == wanted
    assert not list(tmp_path.glob("r*"))


def test_weights_outside_of_the_models_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = split(tmp_path / "in", "../secret.bin")
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    done = run_here(*SERVER, *SHORT, "--model", str(path), "--out", f"{tmp_path}/r")
    assert done.status == 2
    assert done.said == (f"harness: {path} reads '../secret.bin', which is not in its folder\n")


def test_a_model_of_another_task_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": []}))
    done = run_here(
        *NULL, "--dataset", "squad", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path}/r"
    )
    assert done.status == 2
    assert done.said == (
        "harness: dataset 'squad' needs a `tokenise` step for input 'image': declare it in the "
        "model's manifest, which `init --model FILE` writes\n"
    )


def test_options_of_synthetic_data_are_not_ignored_by_others(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(archive())
    done = run_here(
        *NULL, "--dataset", "npz", "--data-dir", f"{tmp_path}", "--out", f"{tmp_path}/r",
        "--input-shape", "image=1x1x8x8",
    )  # fmt: skip
    assert done.status == 2
    assert done.said == "harness: --input-shape belongs to dataset 'synthetic': drop it for 'npz'\n"


@pytest.mark.slow
def test_a_name_of_the_hub_without_its_split_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets.load")
    done = run_here(
        *NULL, "--dataset", "huggingface", "--data-dir", "hf:imdb", "--out", f"{tmp_path}/r",
        "--hang-timeout", "60s",  # the limit is long, because the package takes 8 s to import
    )  # fmt: skip
    assert done.status == 2
    assert done.said == (
        "harness: --data-dir hf:imdb: write hf:NAME@SPLIT@COMMIT or "
        "hf:NAME:CONFIGURATION@SPLIT@COMMIT\n"
    )
