"""Scores detections by COCO's mean average precision for boxes. The metric uses pycocotools, like MLPerf's
accuracy-coco.py.
"""

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.types import Answer, Array, Metric, Score

COLUMNS = 7


class MeanAveragePrecision:
    """Mean average precision of the detected boxes. An answer is a (k, 7) float32 array with the rows [sample, ymin,
    xmin, ymax, xmax, score, class].

    Coordinates are fractions of the model's input. If no box is detected, the array is empty.

    Each label is a mapping with these keys:
    image_id
    width, height: size of the image in pixels
    annotations: objects with bbox [x, y, width, height] in pixels, category_id and, optionally, iscrowd and area
    categories (optional): category id of each class, in order of the classes (default: all ids that occur, ascending)
    frame (optional): place of the image in the model's input, [x, y, width, height] as fractions of the input
    (default: the whole input)
    """

    def __init__(self, dtype: str) -> None:
        if np.dtype(dtype) != np.float32:
            raise ValueError(
                f"map needs float32 rows of {COLUMNS}, but the answers are {dtype}: postprocess with boxes"
            )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        categories = _categories(labels)
        detections = [_detections(answer, labels[answer.sample], categories) for answer in answers]
        if not any(label["annotations"] for label in labels.values()):
            raise ValueError("no image has an annotation: mean average precision is undefined")
        stats = _evaluated(np.concatenate(detections), labels, categories)
        value, at_50, at_75 = (100.0 * max(0.0, float(share)) for share in stats[:3])
        return Score(
            metric="map",
            value=value,
            unit="%",
            samples=len(labels),
            line=f"mAP={value:.3f}%",
            details={"map50": at_50, "map75": at_75},
        )


def _categories(labels: Mapping[int, Any]) -> Sequence[int]:
    for label in labels.values():
        if "categories" in label:
            return [int(category) for category in label["categories"]]
    return sorted({a["category_id"] for label in labels.values() for a in label["annotations"]})


def _detections(answer: Answer, label: Any, categories: Sequence[int]) -> Array:
    """Converts an answer to (k, 7) float64 rows: image id, x, y, width, height, score, category id."""
    if len(answer.payload) % (4 * COLUMNS):
        raise ValueError(
            f"the answer to sample {answer.sample} has {len(answer.payload)} bytes, which is not a "
            f"multiple of {COLUMNS} float32 numbers: postprocess with boxes"
        )
    rows = np.frombuffer(answer.payload, np.float32).reshape(-1, COLUMNS)
    if (rows[:, 0] != answer.sample).any():
        raise ValueError(f"the answer to sample {answer.sample} has boxes of other samples")
    classes = rows[:, 6].astype(int)
    if len(classes) and not 0 <= classes.min() <= classes.max() < len(categories):
        raise ValueError(
            f"the answer to sample {answer.sample} has classes from {classes.min()} to "
            f"{classes.max()}, but there are {len(categories)} categories"
        )
    size = np.array([label["width"], label["height"]] * 2, np.float32)
    boxes = rows[:, [2, 1, 4, 3]]
    if "frame" in label:
        x, y, width, height = label["frame"]
        inside = (boxes - np.array([x, y] * 2)) / np.array([width, height] * 2)
        boxes = np.clip(inside, 0, 1).astype(np.float32)
    boxes = boxes * size
    detections = np.empty((len(rows), COLUMNS))
    detections[:, 0] = label["image_id"]
    detections[:, 1:3] = boxes[:, :2]
    detections[:, 3:5] = boxes[:, 2:] - boxes[:, :2]
    detections[:, 5] = rows[:, 5]
    detections[:, 6] = np.asarray(categories)[classes] if len(rows) else 0
    return detections


def _evaluated(detections: Array, labels: Mapping[int, Any], categories: Sequence[int]) -> Array:
    """Returns the twelve numbers that pycocotools computes. The first is mAP; the second and third are mAP at IoUs of
    0.5 and 0.75.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not len(detections):
        return np.zeros(12)  # pycocotools refuses an empty result
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = _dataset(labels, categories)
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(detections), "bbox")
        evaluation.params.imgIds = [label["image_id"] for label in labels.values()]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats: Array = evaluation.stats
    return stats


def _dataset(labels: Mapping[int, Any], categories: Sequence[int]) -> dict[str, Any]:
    annotations = [
        {
            "iscrowd": 0,
            "area": annotation["bbox"][2] * annotation["bbox"][3],
            **annotation,
            "image_id": label["image_id"],
        }
        for label in labels.values()
        for annotation in label["annotations"]
    ]
    # IDs start at 1, because pycocotools treats an annotation with ID 0 as missing.
    numbered = [{**annotation, "id": i} for i, annotation in enumerate(annotations, 1)]
    images = [
        {"id": label["image_id"], "width": label["width"], "height": label["height"]}
        for label in labels.values()
    ]
    return {
        "images": images,
        "annotations": numbered,
        "categories": [{"id": category} for category in categories],
    }


_: type[Metric] = MeanAveragePrecision
