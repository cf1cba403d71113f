"""COCO mean average precision of boxes, by pycocotools. As MLPerf's accuracy-coco.py."""

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.types import Answer, Array, Metric, Score

COLUMNS = 7


class MeanAveragePrecision:
    """Answers: (k, 7) float32 rows [sample, ymin, xmin, ymax, xmax, score, class] of each sample,
    coordinates in parts of the model's input; no bytes where nothing was found.

    Labels: mappings of image_id, width and height (pixels) and annotations, each with bbox
    [x, y, width, height] in pixels, category_id and, optionally, iscrowd and area. Further:
    `categories`: the category id of each class, in order (default: all that occur, ascending);
    `frame`: where the image lies in the model's input, [x, y, width, height] in parts of it
    (default: it fills it).
    """

    def __init__(self, dtype: str) -> None:
        if np.dtype(dtype) != np.float32:
            raise ValueError(f"map needs float32 rows of {COLUMNS}, the answers are {dtype}")

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        categories = _categories(labels)
        found = [_detections(answer, labels[answer.sample], categories) for answer in answers]
        if not any(label["annotations"] for label in labels.values()):
            raise ValueError("no image has an annotation: there is no precision to have")
        stats = _evaluated(np.concatenate(found), labels, categories)
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
    """-> (k, 7) float64 image id, x, y, width, height, score, category id."""
    if len(answer.payload) % (4 * COLUMNS):
        raise ValueError(
            f"sample {answer.sample} is answered with {len(answer.payload)} bytes, which are no "
            f"float32 rows of {COLUMNS}: postprocess with boxes"
        )
    rows = np.frombuffer(answer.payload, np.float32).reshape(-1, COLUMNS)
    if (rows[:, 0] != answer.sample).any():
        raise ValueError(f"sample {answer.sample} is answered with boxes of other samples")
    classes = rows[:, 6].astype(int)
    if len(classes) and not 0 <= classes.min() <= classes.max() < len(categories):
        raise ValueError(
            f"sample {answer.sample} is answered with classes from {classes.min()} to "
            f"{classes.max()}, there are {len(categories)}"
        )
    size = np.array([label["width"], label["height"]] * 2, np.float32)
    boxes = rows[:, [2, 1, 4, 3]]
    if "frame" in label:
        x, y, width, height = label["frame"]
        inside = (boxes - np.array([x, y] * 2)) / np.array([width, height] * 2)
        boxes = np.clip(inside, 0, 1).astype(np.float32)
    boxes = boxes * size
    made = np.empty((len(rows), COLUMNS))
    made[:, 0] = label["image_id"]
    made[:, 1:3] = boxes[:, :2]
    made[:, 3:5] = boxes[:, 2:] - boxes[:, :2]
    made[:, 5] = rows[:, 5]
    made[:, 6] = np.asarray(categories)[classes] if len(rows) else 0
    return made


def _evaluated(found: Array, labels: Mapping[int, Any], categories: Sequence[int]) -> Array:
    """pycocotools' twelve numbers; the first three: mAP, and mAP at an IoU of 0.5 and of 0.75."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not len(found):
        return np.zeros(12)  # pycocotools cannot take an empty result
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = _dataset(labels, categories)
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
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
    # From 1: pycocotools takes an annotation of id 0 for none.
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
