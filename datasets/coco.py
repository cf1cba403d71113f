"""COCO detection: images and an annotations JSON, in the JSON's order as MLPerf has it.

See mlcommons/inference, vision/classification_and_detection/python/coco.py (commit 2432b10). An
image without objects stays in the set, as in COCO's own evaluation.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.datasets.images import frame
from harness.datasets.listing import Sample, twice
from harness.datasets.preprocessed import ImageDataset
from harness.datasets.sources import given_folder, refuse
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup, Step

ANNOTATIONS = ("annotations/instances_val2017.json", "annotations.json")
IMAGES = ("val2017", "images")
EXPECTED = f"{ANNOTATIONS[0]} and the images in {IMAGES[0]}/ (or {ANNOTATIONS[1]} and {IMAGES[1]}/)"


class CocoDataset(ImageDataset):
    """Label: {image_id, width, height, annotations, categories}, all that an mAP needs; and, where
    the model's steps pad, frame: [x, y, width, height] of the image in parts of the input.

    annotations: the image's, each {id, category_id, class, bbox [x, y, width, height] in pixels,
    area, iscrowd}. category_id is COCO's own (1 to 90 with gaps); class is its place among the
    sorted category ids, from 0: what a model with 80 outputs answers. categories: the sorted ids.
    """

    name = "coco"

    def __init__(self, setup: DatasetSetup) -> None:
        folder = given_folder(setup, self.name, f"a folder with {EXPECTED}")
        path = _first(folder, ANNOTATIONS)
        images = _first(folder, IMAGES)
        samples = _samples(path, images.relative_to(folder).as_posix())
        _add_frames(samples, next(iter(setup.steps.values()), ()))
        super().__init__(folder, samples, setup)


def _add_frames(samples: list[Sample], steps: Sequence[Step]) -> None:
    """A ConfigError where steps cut parts of images off: boxes could not be placed."""
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


def _first(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder} has no {' or '.join(names)}; expected are {EXPECTED}")


def _samples(path: Path, inside: str) -> list[Sample]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not JSON: {e}") from None
    try:
        return _joined(path, inside, content)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        what = f"no {e}" if isinstance(e, KeyError) else str(e)
        raise ConfigError(f"{path} is not COCO's annotations (images, annotations, categories): {what}") from None  # fmt: skip


def _joined(path: Path, inside: str, content: Mapping[str, Any]) -> list[Sample]:
    """Every image with its annotations."""
    images, annotations = content["images"], content["annotations"]
    categories = sorted(int(c["id"]) for c in content["categories"])
    labels: dict[int, dict[str, Any]] = {
        image["id"]: {
            "image_id": int(image["id"]),
            "width": int(image["width"]),
            "height": int(image["height"]),
            "annotations": [],
            "categories": categories,
        }
        for image in images
    }
    refuse(list(_problems(path, content, labels, categories)))
    for one in annotations:
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
    return [Sample(f"{inside}/{image['file_name']}", labels[image["id"]]) for image in images]


def _problems(
    path: Path, content: Mapping[str, Any], labels: Mapping[int, Any], categories: list[int]
) -> Iterator[str]:
    for kind in ("images", "annotations", "categories"):
        yield from twice(f"{path}: {kind} has id", (one["id"] for one in content[kind]))
    yield from twice(f"{path}: images has file", (one["file_name"] for one in content["images"]))
    known = set(categories)
    for one in content["annotations"]:
        if one["image_id"] not in labels:
            yield f"{path}: annotation {one['id']} is of image {one['image_id']}, which is not there"
        if one["category_id"] not in known:
            yield f"{path}: annotation {one['id']} is of category {one['category_id']}, which is not there"  # fmt: skip
        if len(one["bbox"]) != 4:
            yield f"{path}: annotation {one['id']} has {len(one['bbox'])} numbers in bbox, not 4"


_: type[Dataset] = CocoDataset
