"""Reads COCO's detection data: images and a JSON file of annotations. The samples are in the order of the JSON file.

MLPerf uses the same order: see mlcommons/inference, vision/classification_and_detection/python/coco.py (commit
2432b10) and, for the subset, yolo/create_safe_annotations.py (commit 14e14d8). Images without objects are kept, as in
COCO's evaluation.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.core.numbers import number
from harness.datasets.parts.image.decode import check_file
from harness.datasets.parts.image.images import frame
from harness.datasets.parts.image.preprocessed import ImageDataset
from harness.datasets.parts.listing import Sample, plain, twice
from harness.datasets.parts.parallel import BadSample
from harness.datasets.parts.sources import given_folder, refuse
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, Step

SUBSET = "annotations/instances_val2017_safe.json"
"""File with the annotations for MLPerf's subset of 1,525 images. MLPerf's script writes this file next to the complete
annotations.
"""

ANNOTATIONS = ("annotations/instances_val2017.json", "annotations.json")
IMAGES = ("val2017", "images")
EXPECTED = f"{ANNOTATIONS[0]} and the images in {IMAGES[0]}/ (or {ANNOTATIONS[1]} and {IMAGES[1]}/)"


class CocoDataset(ImageDataset):
    """Images with annotated objects. The label of an image is a mapping for mAP, with the keys image_id, width, height,
    annotations and categories.

    If the model's steps pad the image, the label also contains frame: [x, y, width, height] of the image as fractions
    of the input. annotations: the image's objects, each with id, category_id, class, bbox ([x, y, width, height] in
    pixels), area and iscrowd. category_id is COCO's number, from 1 to 90 with gaps. class is the position of the
    category among the sorted ids, counted from 0, as in the answer of a model with 80 outputs. categories: the sorted
    ids.
    """

    name = "coco"

    def __init__(self, setup: DatasetSetup) -> None:
        folder = given_folder(setup, self.name, f"a folder with {EXPECTED}")
        path = folder / SUBSET
        images = [f"{IMAGES[0]}_safe", IMAGES[0]]
        if not path.exists():
            path, images = _first(folder, ANNOTATIONS), list(IMAGES)
        inside = _first(folder, images).relative_to(folder).as_posix()
        samples = _samples(path, inside)
        _add_frames(samples, next(iter(setup.steps.values()), ()))
        self._annotations, self._without_area = path, _count_without_area(samples)
        super().__init__(folder, samples, setup)

    def class_names(self) -> Mapping[int, str]:
        """Returns the names by category_id. Reads the annotations again, because a run does not keep the names in
        memory.
        """
        categories = json.loads(self._annotations.read_bytes())["categories"]
        return {int(one["id"]): str(one["name"]) for one in categories if "name" in one}

    def _content(self, index: int) -> bytes:
        """Reads the file of one image. Raises a BadSample if the image's size differs from the annotations, because the
        boxes would not fit.
        """
        data = super()._content(index)
        try:
            header = check_file(data)
        except ValueError as e:
            raise BadSample(f"{self._path(index)}: {e}") from e
        if (header.width, header.height) != self._sizes[index]:
            width, height = self._sizes[index]
            raise BadSample(
                f"{self._path(index)} is {header.width} x {header.height} pixels, but {width} x {height} in "
                f"{self._annotations}: the boxes belong to a different image"
            )
        return data

    @property
    def _looked_at(self) -> object:
        return self._sizes

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """Returns (width, height) of each image according to the annotations."""
        labels = [label for _, label in self._samples if isinstance(label, dict)]
        return [(label["width"], label["height"]) for label in labels]

    def _notes(self) -> list[str]:
        notes = [f"annotations of {self._annotations}", *super()._notes()]
        if self._without_area:
            notes.append(
                f"{self._without_area:,} boxes have no area: pycocotools counts each as an object, "
                "which no detection can match"
            )
        return notes


def _add_frames(samples: list[Sample], steps: Sequence[Step]) -> None:
    """Adds `frame` to the labels if the steps pad the images. Raises a ConfigError if the steps crop images, because
    cropping would cut objects off.
    """
    for step in steps:
        if step.name == "crop" or step.options.get("keep") == "shorter":
            raise ConfigError(
                f"dataset 'coco': the manifest's step {step.name!r} cuts objects off: resize with "
                "keep: none or pad"
            )
        if step.options.get("keep") == "pad":
            for _, label in samples:
                assert isinstance(label, dict)
                label["frame"] = list(frame(label["height"], label["width"], step.options["size"]))


def _count_without_area(samples: Sequence[Sample]) -> int:
    labels = [label for _, label in samples if isinstance(label, dict)]
    boxes = [one["bbox"] for label in labels for one in label["annotations"]]
    return sum(not (width and height) for _, _, width, height in boxes)


def _first(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder} has no {' or '.join(names)}; the dataset needs {EXPECTED}")


def _samples(path: Path, inside: str) -> list[Sample]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not valid JSON: {e}") from None
    try:
        return _joined(path, inside, content)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        what = f"no {e}" if isinstance(e, KeyError) else str(e)
        raise ConfigError(f"{path} is not a COCO annotation file (images, annotations, categories): {what}") from None  # fmt: skip


def _joined(path: Path, inside: str, content: Mapping[str, Any]) -> list[Sample]:
    """Returns all images with their annotations."""
    categories = sorted(int(c["id"]) for c in content["categories"])
    refuse(list(_problems(path, content, set(categories))))
    labels: dict[int, dict[str, Any]] = {
        image["id"]: {
            "image_id": int(image["id"]),
            "width": int(image["width"]),
            "height": int(image["height"]),
            "annotations": [],
            "categories": categories,
        }
        for image in content["images"]
    }
    for one in content["annotations"]:
        labels[one["image_id"]]["annotations"].append(
            {
                "id": one["id"],
                "category_id": one["category_id"],
                "class": categories.index(one["category_id"]),
                "bbox": [float(x) for x in one["bbox"]],
                "area": float(one["area"]),
                "iscrowd": int(one.get("iscrowd", 0)),
            }
        )
    return [Sample(f"{inside}/{i['file_name']}", labels[i["id"]]) for i in content["images"]]


def _problems(path: Path, content: Mapping[str, Any], categories: set[int]) -> Iterator[str]:
    for kind in ("images", "annotations", "categories"):
        yield from twice(f"{path}: {kind} has id", (one["id"] for one in content[kind]))
    files = (plain(one["file_name"]) for one in content["images"])
    yield from twice(f"{path}: images has file", files)
    images = {image["id"] for image in content["images"]}
    for one in content["annotations"]:
        named = f"{path}: annotation {one['id']}"
        if one["image_id"] not in images:
            yield f"{named} names image {one['image_id']}, which does not exist"
        if one["category_id"] not in categories:
            yield f"{named} names category {one['category_id']}, which does not exist"
        if fault := _box_fault(one):
            yield f"{named} {fault}"
    for image in content["images"]:
        sides = image["width"], image["height"]
        if not all((number(side) or 0) >= 1 for side in sides):
            yield f"{path}: image {image['id']} is {sides[0]!r:.40} x {sides[1]!r:.40} pixels"


def _box_fault(one: Mapping[str, Any]) -> str:
    """Returns the reason why a box is invalid, or '' if the box is valid. pycocotools would silently score invalid
    boxes.
    """
    box, area = one["bbox"], one["area"]
    if len(box) != 4:
        return f"has {len(box)} numbers in bbox, not 4"
    for value in (*box, area):
        if number(value) is None:
            return f"has {value!r:.40} in bbox or area, which is not a number"
    if min(box[2], box[3], area) < 0:
        return f"has a negative size: bbox {box}, area {area}"
    return ""


_: type[Dataset] = CocoDataset
