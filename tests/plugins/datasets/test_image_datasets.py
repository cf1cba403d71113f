"""Folders of images: the right files in the right order, a cache, and one line per fault."""

import errno
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.accuracy.map import MeanAveragePrecision
from harness.accuracy.top1 import Top1
from harness.core.extras import how_to_install
from harness.datasets.coco import CocoDataset
from harness.datasets.folder import FolderDataset
from harness.datasets.imagenet import ImagenetDataset
from harness.datasets.parts.image import decode, preprocessed
from harness.datasets.parts.image.preprocessed import ImageDataset
from harness.datasets.parts.listing import Sample
from harness.errors import say_once
from harness.types import Answer, Dataset, DatasetSetup, HasFaults, Step
from tests.builders.pictures import image_spec, step, write
from tests.builders.refusals import refusal, refusals

STEPS = (
    step("resize", size=(16, 16)),
    step("normalise", mean=(127.5,), std=(127.5,)),
    step("layout", order="nchw"),
)
SPEC = image_spec(3, 16, 16)


def setup(folder: Path | None, *, steps: tuple[Step, ...] = STEPS, **more: Any) -> DatasetSetup:
    return DatasetSetup(inputs=(SPEC,), steps={"image": steps}, data_dir=folder, **more)


def in_classes(folder: Path, count: int = 6) -> Path:
    """Writes two classes: images 0, 2 and 4 in `bird`, and 1, 3 and 5 in `ant`."""
    for i in range(count):
        write(folder / ("ant" if i % 2 else "bird") / f"{i}.jpg", i)
    return folder


def rows(dataset: Dataset, indices: list[int]) -> Any:
    dataset.load(indices)
    return dataset.batch(indices).inputs["image"].copy()


# Tests of the dataset `folder`.


def test_classes_are_the_sorted_sub_folders(tmp_path: Path) -> None:
    made = FolderDataset(setup(in_classes(tmp_path)))
    assert [made.label(i) for i in range(len(made))] == [0, 0, 0, 1, 1, 1]
    images = rows(made, list(range(6)))
    assert (images.shape, str(images.dtype)) == ((6, 3, 16, 16), "float32")
    assert images[0].tolist() != images[1].tolist()
    assert -1 <= float(images.min()) < 0 < float(images.max()) <= 1


def test_rows_are_in_the_order_they_were_loaded(tmp_path: Path) -> None:
    made = FolderDataset(setup(in_classes(tmp_path)))
    forward = rows(made, [0, 1, 2, 3, 4, 5])
    made.load([5, 2, 0, 5])
    assert np.array_equal(made.batch([5, 2, 0]).inputs["image"], forward[[5, 2, 0]])
    assert np.array_equal(made.batch([0, 5]).inputs["image"], forward[[0, 5]])


def test_labels_and_their_order_come_from_a_csv(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"{i}.png", i)
    (tmp_path / "labels.csv").write_text("file,label\n2.png,7\n0.png,0\n1.png,7\n")
    made = FolderDataset(setup(tmp_path))
    assert [made.label(i) for i in range(3)] == [7, 0, 7]
    (tmp_path / "labels.csv").unlink()
    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / f"{i}.png").rename(tmp_path / f"a/{i}.png")
    by_name = rows(FolderDataset(setup(tmp_path)), [0, 1, 2])
    assert np.array_equal(rows(made_again(tmp_path), [0, 1, 2]), by_name[[2, 0, 1]])


@pytest.mark.parametrize("name", ["x.jfif", "x.jpe", "X.JPEG", "deep/er/x.Jif", "x.pgm"])
def test_every_suffix_of_a_readable_format_counts(name: str, tmp_path: Path) -> None:
    in_classes(tmp_path, 2)
    target = tmp_path / "ant" / name
    write(target.with_suffix(".jpg"), 1)
    target.with_suffix(".jpg").rename(target)
    assert len(FolderDataset(setup(tmp_path))) == 3


@pytest.mark.parametrize("suffix", [".tif", ".TIFF", ".gif", ".avif", ".heic"])
@pytest.mark.parametrize("labels", ["", "file,label\nant/1.jpg,0\nbird/0.jpg,1\n"])
def test_images_that_are_not_read_are_refused_and_counted(
    suffix: str, labels: str, tmp_path: Path
) -> None:
    in_classes(tmp_path, 2)
    for name in "ab":
        (tmp_path / f"bird/{name}{suffix}").write_bytes(b"an image")
    if labels:
        (tmp_path / "labels.csv").write_text(labels)
    assert refusals(FolderDataset, setup(tmp_path)) == [
        f"{tmp_path}/bird/a{suffix} and 1 more: {suffix.lower()} is not supported: convert it to JPEG or PNG, or move it away"
    ]


@pytest.mark.parametrize("name", ["0", "0.img", "0.jpg_large"])
def test_an_image_without_its_suffix_is_refused(name: str, tmp_path: Path) -> None:
    in_classes(tmp_path, 2)
    (tmp_path / "ant/1.jpg").rename(tmp_path / "ant" / name)
    line = refusal(FolderDataset, setup(tmp_path))
    assert line.startswith(f"{tmp_path}/ant/{name} is an image without")


def test_a_link_to_a_folder_of_images_is_refused(tmp_path: Path) -> None:
    in_classes(tmp_path / "data", 2)
    in_classes(tmp_path / "other", 2)
    (tmp_path / "data/ant/more").symlink_to(tmp_path / "other/ant")
    line = refusal(FolderDataset, setup(tmp_path / "data"))
    assert line.startswith(f"{tmp_path}/data/ant/more is a link to a folder")


def test_files_of_file_managers_are_skipped(tmp_path: Path) -> None:
    in_classes(tmp_path, 2)
    mac = (".DS_Store", "ant/.DS_Store", "ant/._0.jpg", "__MACOSX/ant/._0.jpg")
    for name in (*mac, "bird/Thumbs.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "bird/notes.txt").write_text("no image")
    dataset = FolderDataset(setup(tmp_path))
    assert (len(dataset), dataset.class_names()) == (2, {0: "ant", 1: "bird"})


def test_a_class_without_an_image_is_a_note(tmp_path: Path) -> None:
    in_classes(tmp_path, 2)
    (tmp_path / "cat").mkdir()
    notes = FolderDataset(setup(tmp_path)).describe()["notes"]
    assert isinstance(notes, list)
    assert "1 sub-folder without an image, e.g. cat" in notes


def made_again(folder: Path) -> FolderDataset:
    (folder / "labels.csv").write_text("file,label\na/2.png,7\na/0.png,0\na/1.png,7\n")
    return FolderDataset(setup(folder))


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ("", ["{f}/labels.csv: its first line must be file,label, then one line per image"]),
        ("name,class\n0.png,1\n", ["{f}/labels.csv: its first line must be file,label, then one line per image"]),
        ("file,label\n0.png,1\n", ["{f}/1.png is not in labels.csv: add it, or move it away"]),
        ("file,label\n0.png,1\n1.png,1\n2.png,1\n", ["{f}/2.png cannot be read: No such file or directory"]),
        ("file,label\n0.png,1\n1.png,1\n0.png,2\n", ["{f}/labels.csv names 0.png twice: keep one"]),
        ("file,label\n0.png,1\n1.png,1\n./0.png,2\n.//1.png,1\n", ["{f}/labels.csv names 0.png twice: keep one", "{f}/labels.csv names 1.png twice: keep one"]),
        ("file,label\n0.png,1.5\n1.png,-1\n", ["{f}/labels.csv, row 1 has the label '1.5', which is not a class number: number the classes 0, 1, ...", "{f}/labels.csv, row 2 has the label '-1', which is not a class number: number the classes 0, 1, ..."]),
        ("file,label\n0.png,cat\n1.png\n", ["{f}/labels.csv, row 2 has no label"]),
        ("file,label\n0.png,1\n1.png,1\n../x.png,1\n", ["../x.png is outside {f}: files must be in it"]),
    ],
)  # fmt: skip
def test_a_csv_that_does_not_fit_the_images_is_refused(
    content: str, problems: list[str], tmp_path: Path
) -> None:
    write(tmp_path / "0.png", 0)
    write(tmp_path / "1.png", 1)
    (tmp_path / "labels.csv").write_text(content)
    wanted = [p.format(f=tmp_path) for p in problems]
    assert refusals(FolderDataset, setup(tmp_path)) == wanted


def test_texts_in_labels_csv_are_classes_in_their_sorted_order(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"{i}.png", i)
    (tmp_path / "labels.csv").write_text("file,label\n0.png,wasp\n1.png,ant\n2.png,wasp\n")
    dataset = FolderDataset(setup(tmp_path))
    assert dataset.class_names() == {0: "ant", 1: "wasp"}
    labels = {i: dataset.label(i) for i in range(3)}
    assert labels == {0: "wasp", 1: "ant", 2: "wasp"}
    rows = [Answer(i, np.int64(n).tobytes()) for i, n in enumerate((1, 0, 0))]
    assert Top1("int64").score(rows, labels).details == {}
    assert round(Top1("int64").score(rows, labels).value) == 67


def test_an_image_without_a_class_is_refused(tmp_path: Path) -> None:
    write(in_classes(tmp_path) / "loose.jpg", 1)
    line = refusal(FolderDataset, setup(tmp_path))
    assert line.startswith(f"{tmp_path}/loose.jpg has no label: put images in one sub-folder")


def test_broken_links_are_reported_and_not_skipped(tmp_path: Path) -> None:
    (in_classes(tmp_path) / "ant" / "9.png").symlink_to("nowhere.png")
    line = refusal(FolderDataset, setup(tmp_path))
    assert line == f"{tmp_path}/ant/9.png cannot be read: No such file or directory"
    for name in ("aa", "labels.csv"):
        (tmp_path / name).symlink_to("nowhere")
        assert f"{tmp_path}/{name}" in refusal(FolderDataset, setup(tmp_path))


# Tests of the dataset `imagenet`, in its original format.


def imagenet(folder: Path, inside: str = "") -> Path:
    labels = [65, 970, 230]
    for i, _ in enumerate(labels):
        write(folder / inside / f"ILSVRC2012_val_{i + 1:08}.JPEG", i)
    order = [2, 0, 1]
    lines = [f"ILSVRC2012_val_{i + 1:08}.JPEG {labels[i]}\n" for i in order]
    (folder / "val_map.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("inside", ["", "val"])
def test_imagenet_is_in_the_order_of_its_map(inside: str, tmp_path: Path) -> None:
    made = ImagenetDataset(setup(imagenet(tmp_path, inside)))
    assert [made.label(i) for i in range(len(made))] == [230, 65, 970]
    first = ImageDataset(
        tmp_path, [Sample(f"{inside or '.'}/ILSVRC2012_val_00000003.JPEG", 0)], setup(tmp_path)
    )  # fmt: skip
    assert np.array_equal(rows(made, [0]), rows(first, [0]))


def test_a_map_that_does_not_fit_the_images_is_refused(tmp_path: Path) -> None:
    path = imagenet(tmp_path) / "val_map.txt"
    whole = path.read_text()
    path.write_text(whole + "ILSVRC2012_val_00000009.JPEG 4\n")
    assert refusal(ImagenetDataset, setup(tmp_path)) == f"{tmp_path}/ILSVRC2012_val_00000009.JPEG cannot be read: No such file or directory"  # fmt: skip
    path.write_text("\n".join(whole.splitlines()[:2]))
    assert refusal(ImagenetDataset, setup(tmp_path)) == f"{tmp_path}/ILSVRC2012_val_00000002.JPEG is not in val_map.txt: add it, or move it away"  # fmt: skip
    path.write_text(whole + whole.splitlines()[0])
    line = refusal(ImagenetDataset, setup(tmp_path))
    assert line == f"{path} names ILSVRC2012_val_00000003.JPEG twice: keep one"
    path.write_text(whole + "./" + whole.splitlines()[0])
    assert refusals(ImagenetDataset, setup(tmp_path)) == [line]
    path.write_text(whole + "a.JPEG\nb.JPEG cat\n")
    assert refusals(ImagenetDataset, setup(tmp_path)) == [f"{path}, line {n}: {x!r} is not a file name and a class" for n, x in ((4, "a.JPEG"), (5, "b.JPEG cat"))]  # fmt: skip
    path.unlink()
    assert refusal(ImagenetDataset, setup(tmp_path)).startswith(
        f"{path} does not exist; the dataset needs val_map.txt (one line per image"
    )


# Tests of the dataset `coco`, in its original format.

BOX = {"iscrowd": 0, "segmentation": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]}


def coco(folder: Path, **changed: Any) -> Path:
    """Writes three images out of order, the last without objects; the category ids have gaps, as in COCO."""
    for i in (139, 285, 632):
        write(folder / "val2017" / f"{i:012}.jpg", i, 60, 80)
    content: dict[str, Any] = {
        "images": [{"id": i, "file_name": f"{i:012}.jpg", "height": 60, "width": 80} for i in (285, 139, 632)],
        "annotations": [
            {"id": 1, "image_id": 139, "category_id": 90, "bbox": [1, 2, 30.5, 40], "area": 800.25, **BOX},
            {"id": 2, "image_id": 285, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 90, **BOX, "iscrowd": 1},
            {"id": 3, "image_id": 139, "category_id": 13, "bbox": [5, 5, 5, 5], "area": 20, **BOX},
        ],
        "categories": [{"id": 13, "name": "stop sign"}, {"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}],
    }  # fmt: skip
    path = folder / "annotations/instances_val2017.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, **changed}))
    return folder


def test_coco_labels_hold_all_that_an_map_needs(tmp_path: Path) -> None:
    made = CocoDataset(setup(coco(tmp_path)))
    ids = [made.label(i)["image_id"] for i in range(len(made))]  # type: ignore[index]
    assert ids == [285, 139, 632]
    assert made.label(1) == {
        "image_id": 139,
        "width": 80,
        "height": 60,
        "categories": [1, 13, 90],
        "annotations": [
            {"id": 1, "category_id": 90, "class": 2, "bbox": [1.0, 2.0, 30.5, 40.0], "area": 800.25, "iscrowd": 0},
            {"id": 3, "category_id": 13, "class": 1, "bbox": [5.0, 5.0, 5.0, 5.0], "area": 20.0, "iscrowd": 0},
        ],
    }  # fmt: skip
    assert made.label(0)["annotations"][0]["iscrowd"] == 1  # type: ignore[index]
    assert made.label(2)["annotations"] == []  # type: ignore[index]
    assert rows(made, [2, 0]).shape == (2, 3, 16, 16)


def test_image_of_another_size_than_in_its_annotations_is_refused(tmp_path: Path) -> None:
    folder = coco(tmp_path)
    asked = setup(folder, cache_dir=tmp_path / "cache")
    rows(CocoDataset(asked), [0, 1, 2])
    path = folder / "annotations/instances_val2017.json"
    text = path.read_text()
    path.write_text(text.replace('"height": 60, "width": 80}]', '"height": 80, "width": 60}]'))
    line = refusal(CocoDataset(asked).load, [0, 1, 2])
    image = folder / "val2017/000000000632.jpg"
    assert (
        line
        == f"{image} is 80 x 60 pixels, but 60 x 80 in {path}: the boxes belong to a different image"
    )
    assert list(CocoDataset(asked).faults()) == [line]


def test_boxes_in_a_padded_input_are_scored_on_the_image(tmp_path: Path) -> None:
    """60 x 80 becomes 16 x 16: rows 2 to 13 contain the image."""
    steps = (step("resize", size=(16, 16), keep="pad"), *STEPS[1:])
    made = CocoDataset(setup(coco(tmp_path), steps=steps))
    labels: dict[int, Any] = {i: made.label(i) for i in range(3)}
    assert labels[0]["frame"] == [0.0, 0.125, 1.0, 0.75]
    answers = []
    for i, label in labels.items():
        boxes = [
            (i, 0.125 + 0.75 * y / 60, x / 80, 0.125 + 0.75 * (y + h) / 60, (x + w) / 80, 0.9, a["class"])
            for a in label["annotations"]
            for x, y, w, h in [a["bbox"]]
        ]  # fmt: skip
        answers.append(Answer(i, np.array(boxes, np.float32).tobytes()))
    assert MeanAveragePrecision("float32").score(answers, labels).value > 99.9


@pytest.mark.parametrize("cut", [step("crop", size=16), step("resize", size=16, keep="shorter")])
def test_steps_that_cut_objects_off_are_refused(cut: Step, tmp_path: Path) -> None:
    line = refusal(CocoDataset, setup(coco(tmp_path), steps=(*STEPS[:1], cut)))
    assert line.startswith(f"dataset 'coco': the manifest's step '{cut.name}' cuts objects off")


ONE = {"id": 1, "image_id": 139, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 8}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"annotations": [{**ONE, "image_id": 7}]}, "annotation 1 names image 7, which does not exist"),
        ({"annotations": [{**ONE, "category_id": 7}]}, "annotation 1 names category 7, which does not"),
        ({"annotations": [{**ONE, "bbox": [1, 2]}]}, "annotation 1 has 2 numbers in bbox, not 4"),
        ({"annotations": [{**ONE, "bbox": [1, 2, math.nan, 4]}]}, r"/instances_val2017.json: annotation 1 has nan in bbox or area, which is not a number$"),
        ({"annotations": [{**ONE, "bbox": [1, "2", 3, 4]}]}, "annotation 1 has '2' in bbox or area, which is not a number"),
        ({"annotations": [{**ONE, "area": math.inf}]}, "annotation 1 has inf in bbox or area, which is not a number"),
        ({"annotations": [{**ONE, "area": 10**400}]}, r"annotation 1 has 10+ in bbox or area, which is not a number"),
        ({"annotations": [{**ONE, "bbox": [1, 2, -3, 4]}]}, r"annotation 1 has a negative size: bbox \[1, 2, -3, 4\], area 8$"),
        ({"images": [{"id": 139, "file_name": "x.jpg", "height": 0, "width": math.nan}], "annotations": []}, "image 139 is nan x 0 pixels"),
        ({"annotations": [ONE, ONE]}, "annotations has id 1 twice: keep one"),
        ({"images": [{"id": i, "file_name": name, "height": 1, "width": 1} for i, name in enumerate(("x.jpg", "./x.jpg"))], "annotations": []}, "images has file x.jpg twice: keep one"),
        ({"images": [{"id": 1, "file_name": 5}]}, "is not a COCO annotation file "),
        ({"annotations": [{"id": 1}]}, "is not a COCO annotation file .*: no 'image_id'"),
        ({"images": 3}, "is not a COCO annotation file .*'int' object is not iterable"),
        ({"images": [{"id": 139, "file_name": "x.jpg"}]}, "is not a COCO annotation file .*: no 'width'"),
        ({"images": [{"id": 139, "file_name": "../../x.jpg", "height": 1, "width": 1}], "annotations": []}, " is outside "),
        ({"images": [{"id": 139, "file_name": "x.jpg", "height": 1, "width": 1}], "annotations": []}, "x.jpg cannot be read"),
    ],
)  # fmt: skip
def test_annotations_that_do_not_fit_are_refused(
    changed: Mapping[str, Any], problem: str, tmp_path: Path
) -> None:
    line = refusal(CocoDataset, setup(coco(tmp_path, **changed)))
    assert re.search(problem, line), line


def test_boxes_without_an_area_are_kept_and_reported(tmp_path: Path) -> None:
    """pycocotools counts each such box as an object that no detection overlaps; without these boxes, the score would
    differ from MLPerf's score.
    """
    flat = {**ONE, "id": 2, "bbox": [1, 2, 0, 4], "area": 0}
    made = CocoDataset(setup(coco(tmp_path, annotations=[ONE, flat])))
    labels: dict[int, Any] = {i: made.label(i) for i in range(3)}
    assert len(labels[1]["annotations"]) == 2
    assert made.describe()["notes"] == [
        f"annotations of {tmp_path}/annotations/instances_val2017.json",
        "1 boxes have no area: pycocotools counts each as an object, which no detection can match",
    ]
    found = np.array([[1, 2 / 60, 1 / 80, 6 / 60, 4 / 80, 0.9, 0]], np.float32)
    answers = [Answer(0, b""), Answer(1, found.tobytes()), Answer(2, b"")]
    pytest.importorskip("pycocotools")
    assert MeanAveragePrecision("float32").score(answers, labels).value == pytest.approx(50.5, 0.01)


def test_subset_of_mlperf_is_used_if_present(tmp_path: Path) -> None:
    """Makes both folders that create_safe_annotations.py can write: one next to the whole set, and a separate one."""
    coco(tmp_path)
    whole = json.loads((tmp_path / "annotations/instances_val2017.json").read_text())
    safe = {**whole, "images": whole["images"][2:], "annotations": []}
    (tmp_path / "annotations/instances_val2017_safe.json").write_text(json.dumps(safe))
    made = CocoDataset(setup(tmp_path))
    assert made.describe()["notes"] == [
        f"annotations of {tmp_path}/annotations/instances_val2017_safe.json"
    ]
    first = rows(made, [0])
    assert len(made) == len(first) == 1
    (tmp_path / "val2017").rename(tmp_path / "val2017_safe")
    assert np.array_equal(rows(CocoDataset(setup(tmp_path)), [0]), first)


def test_folder_that_is_not_coco_is_refused_with_the_expected_files(tmp_path: Path) -> None:
    line = refusal(CocoDataset, setup(tmp_path))
    assert line.startswith(f"{tmp_path} has no annotations/instances_val2017.json or annotations.")
    coco(tmp_path)
    (tmp_path / "annotations/instances_val2017.json").write_text("{")
    line = refusal(CocoDataset, setup(tmp_path))
    assert line.startswith(
        f"{tmp_path}/annotations/instances_val2017.json is not valid JSON: Expecting"
    )


# Tests of all image datasets.


@pytest.mark.parametrize("cls", [FolderDataset, ImagenetDataset, CocoDataset])
def test_missing_folder_is_refused_with_the_expected_content(cls: Any) -> None:
    line = refusal(cls, setup(None))
    assert line.startswith(f"dataset '{cls.name}' needs --data-dir: a folder with ")


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    told = f"dataset 'folder': {tmp_path} has no images: nothing can be measured"
    assert refusal(FolderDataset, setup(tmp_path)) == told


def test_a_model_without_steps_is_refused(tmp_path: Path) -> None:
    bare = DatasetSetup(inputs=(SPEC,), data_dir=in_classes(tmp_path))
    line = refusal(FolderDataset, bare)
    assert line.startswith("dataset 'folder' has images, but no steps convert them to the i")


def test_rows_of_another_shape_than_the_models_are_refused(tmp_path: Path) -> None:
    made = FolderDataset(setup(in_classes(tmp_path), steps=(step("resize", size=8),)))
    line = refusals(made.load, [0])[0]
    assert line == (
        f"{tmp_path}/ant/1.jpg: after its steps the image is [8, 8, 3], but the input 'image' takes [3, 16, 16]: "
        "see resize, crop and layout"
    )


def test_a_symbolic_size_is_the_given_size_or_the_first_images_size(tmp_path: Path) -> None:
    in_classes(tmp_path)
    spec = image_spec(3, "h", "w")
    asked = DatasetSetup(inputs=(spec,), steps={"image": STEPS}, data_dir=tmp_path)
    assert rows(FolderDataset(asked), [0]).shape == (1, 3, 16, 16)
    made = FolderDataset(replace(asked, shapes={"image": (1, 3, 9, 9)}))
    assert "takes [3, 9, 9]" in refusals(made.load, [0])[0]


def test_an_input_shape_names_an_input(tmp_path: Path) -> None:
    """Bug: a wrong name was ignored, so the run did not use the user's sizes."""
    wrong = setup(in_classes(tmp_path), shapes={"imag": (1, 3, 9, 9)})
    assert refusals(FolderDataset, wrong) == [
        "--input-shape imag: the model's inputs are image: did you mean 'image'?"
    ]


def broken(folder: Path) -> list[Path]:
    """Writes six files; three of them are unusable for different reasons."""
    in_classes(folder)
    cut_off, text, gone = folder / "ant/1.jpg", folder / "ant/3.jpg", folder / "bird/4.jpg"
    cut_off.write_bytes(cut_off.read_bytes()[:500])
    text.write_text("not a picture")
    gone.write_bytes(b"")
    return [cut_off, text, gone]


def test_every_file_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    bad = broken(tmp_path)
    made = FolderDataset(setup(tmp_path))
    assert isinstance(made, HasFaults)
    lines = list(made.faults())
    assert [line.split(": ")[0] for line in lines] == [str(p) for p in bad]
    assert re.search("truncated|no image data", lines[0])
    loading = refusals(made.load, range(6))
    assert loading == [*say_once(lines), "python -m harness data check folder lists all of them"]


def overwritten(path: Path) -> None:
    """Overwrites forty bytes in the middle of the scan, including a marker, and leaves the end unchanged."""
    content = bytearray(path.read_bytes())
    middle = (decode.check_file(bytes(content)).scan + len(content)) // 2
    content[middle : middle + 40] = b"\xff\xd0" + bytes(range(1, 39))
    path.write_bytes(content)
    assert content.endswith(b"\xff\xd9")


def test_a_jpeg_damaged_in_the_middle_is_found_by_a_check(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    bad = in_classes(tmp_path) / "ant/3.jpg"
    overwritten(bad)
    for steps in (STEPS, (step("decode", decoder="opencv"), *STEPS)):
        made = FolderDataset(setup(tmp_path, steps=steps))
        (line,) = made.faults()
        assert line.startswith(f"{bad}: the JPEG is damaged: ")
        made.load(range(6))  # these decoders report no error, and fill the gap
    strict = FolderDataset(setup(tmp_path, steps=(step("decode", decoder="simplejpeg"), *STEPS)))
    assert refusal(strict.load, range(6)).startswith(f"{bad}: ")


def test_note_reports_that_damage_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwritten(in_classes(tmp_path) / "ant/3.jpg")
    monkeypatch.setattr(decode, "can_see_damage", lambda: False)
    made = FolderDataset(setup(tmp_path))
    assert list(made.faults()) == []
    assert made.describe()["notes"] == [
        f"only simplejpeg reports damaged JPEGs: {how_to_install('images')}"
    ]


def test_faults_are_found_without_a_model(tmp_path: Path) -> None:
    broken(tmp_path)
    made = FolderDataset(DatasetSetup(data_dir=tmp_path))
    assert len(list(made.faults())) == 3
    assert refusals(made.load, [0])[0].startswith("dataset 'folder' needs the model's inputs")


def test_a_broken_first_file_hides_no_other(tmp_path: Path) -> None:
    """Bug: with a symbolic size, the fault of the first file was reported for every file."""
    spec = image_spec(3, "h", "w")
    in_classes(tmp_path)
    (tmp_path / "ant/1.jpg").write_text("no")
    made = FolderDataset(DatasetSetup(inputs=(spec,), steps={"image": STEPS}, data_dir=tmp_path))
    (line,) = made.faults()
    assert line.startswith(f"{tmp_path}/ant/1.jpg: ")


def test_a_run_gives_up_after_twenty_bad_files(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / f"a/{i:02}.jpg").write_text("no")
    lines = refusals(FolderDataset(setup(tmp_path)).load, range(40))
    assert len(lines) == 2
    assert re.match(r".*/a/\d\d\.jpg and 19 more: ", lines[0])


def test_named_pipe_is_refused_and_not_read(tmp_path: Path) -> None:
    """Reading from a named pipe would block forever."""
    write(tmp_path / "0.png", 0)
    os.mkfifo(tmp_path / "1.png")
    (tmp_path / "labels.csv").write_text("file,label\n0.png,1\n1.png,1\n")
    assert refusal(FolderDataset, setup(tmp_path)) == f"{tmp_path}/1.png is not a file"


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    made = FolderDataset(setup(in_classes(tmp_path)))
    write(tmp_path / "ant/3.jpg", 17)
    os.utime(tmp_path / "ant/3.jpg", ns=(1, 1))
    told = "has changed since the run began: run again, and do not change it"
    assert refusal(made.load, range(6)) == f"{tmp_path}/ant/3.jpg {told}"


def test_the_memory_of_a_performance_run_is_bounded(tmp_path: Path) -> None:
    made = FolderDataset(setup(in_classes(tmp_path)))
    assert made.performance_count == preprocessed.MEMORY_LIMIT_BYTES // (3 * 16 * 16 * 4)


def test_dataset_describes_its_source_and_steps(tmp_path: Path) -> None:
    about = dict(FolderDataset(setup(in_classes(tmp_path))).describe())
    assert len(str(about.pop("digest"))) == 64
    versions = about.pop("versions")
    assert isinstance(versions, dict)
    assert set(versions) == {"numpy", "pillow"}
    assert about == {
        "name": "folder",
        "count": 6,
        "source": str(tmp_path),
        "exif_orientation": "ignored",
        "cache": "none",
        "notes": [],
        "steps": {"image": [{s.name: s.options} for s in STEPS]},
    }


def test_the_digest_changes_with_files_labels_and_steps(tmp_path: Path) -> None:
    in_classes(tmp_path)
    bgr = (step("decode", colour="bgr"), *STEPS)
    digests = [FolderDataset(setup(tmp_path)).describe()["digest"] for _ in range(2)]
    digests.append(FolderDataset(setup(tmp_path, steps=bgr)).describe()["digest"])
    (tmp_path / "ant").rename(tmp_path / "cat")
    digests.append(FolderDataset(setup(tmp_path)).describe()["digest"])
    write(tmp_path / "cat/1.jpg", 30)
    digests.append(FolderDataset(setup(tmp_path)).describe()["digest"])
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_another_colour_order_is_another_input(tmp_path: Path) -> None:
    in_classes(tmp_path)
    bgr = (step("decode", colour="bgr"), *STEPS)
    one, other = (rows(FolderDataset(setup(tmp_path, steps=s)), [0, 1]) for s in (STEPS, bgr))
    assert np.array_equal(one[:, ::-1], other)
    assert not np.array_equal(one, other)


# Tests of the cache.


def cached(tmp_path: Path, **more: Any) -> FolderDataset:
    return FolderDataset(setup(tmp_path / "data", cache_dir=tmp_path / "cache", **more))


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, index: int) -> None:
        raise AssertionError(f"sample {index} was decoded again")

    monkeypatch.setattr(ImageDataset, "_preprocessed", refuse)


def test_preprocessed_sample_is_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_classes(tmp_path / "data")
    first = rows(cached(tmp_path), [3, 1, 4])
    again = cached(tmp_path)
    no_decoding(monkeypatch)
    assert np.array_equal(rows(again, [1, 4, 3]), first[[1, 2, 0]])
    with pytest.raises(AssertionError, match="sample 0 was decoded again"):
        again.load([0])


def test_only_the_changed_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_classes(tmp_path / "data")
    first = rows(cached(tmp_path), [0, 1, 2])
    write(tmp_path / "data/ant/3.jpg", 40)
    second = cached(tmp_path)
    made: list[int] = []
    whole = second._preprocessed

    def noted(index: int) -> Any:
        made.append(index)
        return whole(index)

    monkeypatch.setattr(second, "_preprocessed", noted)
    now = rows(second, [0, 1, 2])
    assert made == [1]
    assert not np.array_equal(now[1], first[1])
    assert np.array_equal(now[[0, 2]], first[[0, 2]])


def test_other_steps_have_a_cache_of_their_own(tmp_path: Path) -> None:
    in_classes(tmp_path / "data")
    bgr = (step("decode", colour="bgr"), *STEPS)
    one = rows(cached(tmp_path), [0])
    other = rows(cached(tmp_path, steps=bgr), [0])
    assert not np.array_equal(one, other)
    assert np.array_equal(rows(cached(tmp_path), [0]), one)
    assert len(list((tmp_path / "cache/images").iterdir())) == 2


@pytest.mark.parametrize("name", ["rows", "records"])
@pytest.mark.parametrize("damage", ["cut", "zeros", "noise", "gone"])
def test_a_damaged_cache_costs_only_work(name: str, damage: str, tmp_path: Path) -> None:
    """Simulates a killed run, or a disk that lost data before they were written."""
    in_classes(tmp_path / "data")
    first = rows(cached(tmp_path), list(range(6)))
    (path,) = (tmp_path / "cache/images").glob(f"*/{name}")
    size = path.stat().st_size
    if damage == "gone":
        path.unlink()
    else:
        noise = np.random.default_rng(0).bytes(size)
        path.write_bytes({"cut": path.read_bytes()[: size // 2], "zeros": bytes(size), "noise": noise}[damage])  # fmt: skip
    assert np.array_equal(rows(cached(tmp_path), list(range(6))), first)
    assert np.array_equal(rows(cached(tmp_path), list(range(6))), first)


def test_two_that_fill_it_at_the_same_time_agree(tmp_path: Path) -> None:
    in_classes(tmp_path / "data", 20)
    wanted = rows(FolderDataset(setup(tmp_path / "data")), list(range(20)))
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(rows(cached(tmp_path), list(range(20)))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.append(rows(cached(tmp_path), list(range(20))))
    assert len(results) == 3
    assert all(np.array_equal(found, wanted) for found in results)


def test_unwritable_cache_is_not_used(tmp_path: Path) -> None:
    in_classes(tmp_path / "data")
    (tmp_path / "cache").write_text("a file where the folder should be")
    made = cached(tmp_path)
    assert re.fullmatch(
        rf"none: {tmp_path}/cache/images/\w+ cannot be written: Not a directory",
        str(made.describe()["cache"]),
    )
    assert rows(made, [0]).shape == (1, 3, 16, 16)


@pytest.mark.parametrize("short", [False, True])
def test_a_full_disk_is_reported_in_one_line(
    short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_classes(tmp_path / "data")

    def full(descriptor: int, parts: Any, at: int) -> int:
        if short:
            return 10
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    made = cached(tmp_path)
    assert refusal(made.load, range(6)) == (
        f"the cache {made.describe()['cache']} cannot take more samples (No space left on device): "
        "make room there, or set XDG_CACHE_HOME to a folder on a different disk"
    )


def test_a_disk_that_will_be_full_is_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_classes(tmp_path / "data")
    row = 3 * 16 * 16 * 4
    usage = SimpleNamespace(free=4 * row)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    made = cached(tmp_path)
    line = refusal(made.load, range(6))
    assert (
        "cannot take more samples (18.4 kB are needed, but only 12.3 kB are free): make room"
        in line
    )
    made.load([0, 1, 2])
    made.load([0, 1, 2, 3, 4, 5])  # the three additional rows fit into the memory


def test_progress_is_reported_on_the_thread_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_classes(tmp_path / "data")
    told: list[tuple[int, int]] = []
    release = threading.Event()

    def progress(done: int, total: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append((done, total))
        release.set()

    made = cached(tmp_path, progress=progress)
    whole = made._preprocessed

    def slow(index: int) -> Any:
        assert release.wait(30)
        return whole(index)

    monkeypatch.setattr(made, "_preprocessed", slow)
    made.load(range(6))
    assert told
    assert all(0 <= done < total == 6 for done, total in told)


def test_numbers_that_sort_otherwise_as_names_are_refused(tmp_path: Path) -> None:
    """Bug: the folder 10 became class 2, so that every later score was wrong."""
    for label in range(11):
        write(tmp_path / str(label) / "a.png", label)
    assert "'10' would be class 2" in refusal(FolderDataset, setup(tmp_path))


def test_same_fault_of_many_images_is_reported_once(tmp_path: Path) -> None:
    """Bug: eight images of the same wrong size caused eight lines."""
    made = FolderDataset(setup(in_classes(tmp_path), steps=(step("resize", size=8),)))
    count = len(made)
    assert count > 1
    first, *others = refusals(made.load, range(count))
    assert first.startswith(
        f"{tmp_path}/ant/1.jpg and {count - 1} more: after its steps the image is"
    )
    assert others == ["python -m harness data check folder lists all of them"]


def test_different_faults_keep_a_line_each() -> None:
    problems = ["a.jpg: it is cut off", "b.jpg: it is empty", "c.jpg: it is cut off", "no files"]
    assert say_once(problems) == [
        "a.jpg and 1 more: it is cut off",
        "b.jpg: it is empty",
        "no files",
    ]
