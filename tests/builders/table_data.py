"""Datasets in which sample i is the number i, for a model that looks its output up in a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.types import Batch, DatasetSetup

SIDE = 640
COUNT = 20


class Numbers:
    """The label of every second sample is the model's best class; the other samples are labelled with its third-best
    class.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        self.setup = setup

    def __len__(self) -> int:
        return COUNT

    def load(self, indices: Sequence[int]) -> None:
        return None

    def unload(self, indices: Sequence[int]) -> None:
        return None

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"number": np.array(indices, np.int64)[:, np.newaxis]})

    def label(self, index: int) -> Any:
        best = np.argsort(-logits()[index])
        return int(best[0] if index % 2 == 0 else best[2])

    def describe(self) -> Mapping[str, object]:
        return {"name": "numbers", "count": len(self)}


class Boxes(Numbers):
    """Each image has a box of category 7, which the model finds, and a box of category 9, which it never finds."""

    def label(self, index: int) -> Any:
        x, y, width, height = placed(index)
        place = [x - width / 2, y - height / 2, width, height]
        found = {"bbox": place, "category_id": 7}
        missed = {"bbox": [500, 500, 50, 50], "category_id": 9}
        return {
            "image_id": 100 + index,
            "width": SIDE,
            "height": SIDE,
            "annotations": [found, missed] if index != 3 else [missed],
        }


def logits() -> Any:
    """Returns (COUNT, 10) outputs; the values in each row differ."""
    random = np.random.default_rng(1)
    return np.stack([random.permutation(10) for _ in range(COUNT)]).astype(np.float32)


def placed(index: int) -> tuple[float, float, float, float]:
    """Returns centre x, centre y, width and height in pixels."""
    return 100.0 + 8 * index, 200.0, 64.0, 32.0 + 8 * index


def heads() -> Any:
    """Returns (COUNT, 4 + 2 classes, 3 anchors): the box, a slightly shifted copy, and no box."""
    made = np.zeros((COUNT, 6, 3), np.float32)
    for i in range(COUNT):
        made[i, :4, 0] = made[i, :4, 1] = placed(i)
        made[i, 0, 1] += 4
        made[i, 4, :2] = 0.75, 0.5
    made[3] = 0  # the model finds no box in this image
    return made
