"""One YOLO head -> detections, class-wise non-maximum suppression included."""

from collections.abc import Sequence

import numpy as np

from harness.types import Array

COLUMNS = 7
"""Of MLPerf's detection log: sample index, ymin, xmin, ymax, xmax, score, class."""


def detections(
    head: Array, indices: Sequence[int], *, score: float, iou: float, most: int, side: int
) -> list[Array]:
    """head: (n, 4 + classes, anchors): centre x, y, width, height in input pixels, then scores.
    indices: (n,) of the samples. Each anchor counts for its best class, if that scores more than
    `score`; of two boxes of one class that overlap by more than `iou` the lower score goes.

    -> n arrays (k <= most, 7) float32, the best first, coordinates in [0, 1] of `side`.
    """
    if head.ndim != 3 or head.shape[1] < 5:
        raise ValueError(f"a YOLO head is (n, 4 + classes, anchors), this one is {head.shape}")
    rows = np.asarray(head, np.float32)
    scores, labels = rows[:, 4:].max(axis=1), rows[:, 4:].argmax(axis=1)
    found = []
    for one, best, label, index in zip(rows, scores, labels, indices, strict=True):
        chosen = np.flatnonzero(best > score)
        chosen = chosen[np.argsort(-best[chosen], kind="stable")]
        boxes = _corners(one[:4, chosen])
        kept = suppress(boxes, label[chosen], iou=iou, most=most)
        made = np.empty((len(kept), COLUMNS), np.float32)
        made[:, 0] = index
        made[:, 1:5] = np.clip(boxes[kept] / np.float32(side), 0, 1)
        made[:, 5] = best[chosen[kept]]
        made[:, 6] = label[chosen[kept]]
        found.append(made)
    return found


def _corners(boxes: Array) -> Array:
    """(4, k) centre x, y, width, height -> (k, 4) ymin, xmin, ymax, xmax."""
    x, y, width, height = boxes
    halves = height / 2, width / 2
    return np.stack((y - halves[0], x - halves[1], y + halves[0], x + halves[1]), axis=1)


def suppress(boxes: Array, labels: Array, *, iou: float, most: int) -> Array:
    """boxes: (k, 4) ymin, xmin, ymax, xmax, the best first. -> positions that stay, at most `most`.

    Classes are compared, not moved apart by an offset, which would cost float32 its precision.
    """
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = np.arange(len(boxes))
    kept: list[int] = []
    while len(left) and len(kept) < most:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        rest = boxes[left]
        heights = np.minimum(rest[:, 2], boxes[best, 2]) - np.maximum(rest[:, 0], boxes[best, 0])
        widths = np.minimum(rest[:, 3], boxes[best, 3]) - np.maximum(rest[:, 1], boxes[best, 1])
        shared = np.maximum(heights, 0) * np.maximum(widths, 0)
        # Multiplied instead of divided: a box without area overlaps nothing.
        same = shared > iou * (areas[left] + areas[best] - shared)
        left = left[~(same & (labels[left] == labels[best]))]
    return np.array(kept, np.intp)
