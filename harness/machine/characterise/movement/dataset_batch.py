"""The benchmark `dataset-batch`, which gathers loaded samples from the dataset `synthetic` into one input array."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from harness.core import registry
from harness.types import Benchmark, Dataset, DatasetSetup, Point, Ready, TensorSpec

IMAGE = (3, 224, 224)
BATCHES = (1, 8, 64)
IN_ORDER, SCATTERED = "in order", "scattered"
LOADED = 128


class DatasetBatch:
    """Gathers batches.

    The work at each point is the number of bytes in the batch. Consecutive samples become a view of the loaded samples
    and are not copied. Scattered samples are copied into one array.
    """

    about = "a batch gathered from a dataset's samples"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        for batch in BATCHES:
            for order in (IN_ORDER, SCATTERED):
                yield Point(
                    settings={"order": order, "batch": batch},
                    open=partial(_ready, order, batch),
                    work=0 if order == IN_ORDER else 4 * batch * int(np.prod(IMAGE)),
                    unit="B",
                )


@contextmanager
def _ready(order: str, batch: int) -> Iterator[Ready]:
    spec = TensorSpec("image", "float32", ("batch", *IMAGE))
    dataset: Dataset = registry.load("dataset", "synthetic")(DatasetSetup(inputs=(spec,), seed=1))
    held = list(range(LOADED))
    dataset.load(held)
    chosen = held[:batch]
    if order == SCATTERED:
        chosen = np.random.default_rng(0).permutation(held)[:batch].tolist()
    is_view = dataset.batch(chosen).inputs["image"].base is not None
    try:
        yield Ready(partial(dataset.batch, chosen), facts={"is_a_view": is_view})
    finally:
        dataset.unload(held)


_: type[Benchmark] = DatasetBatch
