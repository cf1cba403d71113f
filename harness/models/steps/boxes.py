"""Converts the output of a YOLO head to detections, with class-wise non-maximum suppression."""

from collections.abc import Sequence

import numpy as np

from harness.types import Array, show_shape

COLUMNS = 7
"""The columns of MLPerf's detection log: sample index, ymin, xmin, ymax, xmax, score, class."""

_BLOCK = 64
"""Number of boxes that are compared at once."""


def detections(
    head: Array, indices: Sequence[int], *, score: float, iou: float, most: int, side: int
) -> list[Array]:
    """Returns n arrays (k <= most, 7) float32, each with the best detection first. Coordinates are fractions of `side`,
    in [0, 1].

    head: (n, 4 + classes, anchors) with centre x, y, width, height in input pixels, then scores.
    indices: (n,) sample indices. An anchor counts only for its best class, and only if the score of this class is above
    `score`. If two boxes of one class overlap by more than `iou`, the box with the lower score is dropped.
    """
    if head.ndim != 3 or head.shape[1] < 5:
        raise ValueError(
            f"a YOLO head is [n, 4 + classes, anchors], but this one is {show_shape(head.shape)}"
        )
    rows = np.asarray(head, np.float32)
    tables = []
    for one, best, index in zip(rows, rows[:, 4:].max(axis=1), indices, strict=True):
        chosen = np.flatnonzero(best > score)
        chosen = chosen[np.argsort(-best[chosen], kind="stable")]
        few = one[:, chosen]
        boxes, labels = _corners(few[:4]), few[4:].argmax(axis=0)
        kept = suppress(boxes, labels, iou=iou, most=most)
        table = np.empty((len(kept), COLUMNS), np.float32)
        table[:, 0] = index
        table[:, 1:5] = np.clip(boxes[kept] / np.float32(side), 0, 1)
        table[:, 5] = best[chosen[kept]]
        table[:, 6] = labels[kept]
        tables.append(table)
    return tables


def _corners(boxes: Array) -> Array:
    """Converts (4, k) centre x, y, width, height to (k, 4) ymin, xmin, ymax, xmax."""
    x, y, width, height = boxes
    halves = height / 2, width / 2
    return np.stack((y - halves[0], x - halves[1], y + halves[0], x + halves[1]), axis=1)


def suppress(boxes: Array, labels: Array, *, iou: float, most: int) -> Array:
    """Returns the positions of the boxes to keep, at most `most`. boxes: (k, 4) ymin, xmin, ymax, xmax, best first.

    Each block of boxes is compared with the boxes kept so far, and then the boxes in the block are compared with each
    other. Classes are compared directly, because separating classes by a coordinate offset would lose precision in
    float32.
    """
    kept = np.empty(0, np.intp)
    for start in range(0, len(boxes), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(boxes)))
        block = block[~_overlap(boxes, labels, kept, block, iou).any(axis=0)]
        overlap = _overlap(boxes, labels, block, block, iou)
        stays = np.ones(len(block), bool)
        for i in range(len(block)):
            if stays[i]:
                stays[i + 1 :] &= ~overlap[i, i + 1 :]
        kept = np.concatenate((kept, block[stays]))[:most]
        if len(kept) == most:
            break
    return kept


def _overlap(boxes: Array, labels: Array, first: Array, second: Array, iou: float) -> Array:
    """Returns a boolean array (len(first), len(second)): whether two boxes have the same class and overlap by more than
    `iou`.
    """
    a, b = boxes[first].T[:, :, np.newaxis], boxes[second].T[:, np.newaxis, :]
    heights = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    widths = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    shared = np.maximum(heights, 0) * np.maximum(widths, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    # A product is used instead of a quotient, because boxes without an area would divide 0 by 0. With the product, such
    # boxes do not overlap anything.
    over = shared > iou * (areas[0] + areas[1] - shared)
    pairs: Array = over & (labels[first][:, np.newaxis] == labels[second])
    return pairs
