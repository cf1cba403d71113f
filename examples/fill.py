from contextlib import contextmanager
from functools import partial

import numpy as np

from harness.types import Point, Ready


class Fill:
    about = "one value written into an array"

    def points(self, threads):  # must not import a framework, because `--list` calls it
        for size in (2**12, 2**20, 2**26):
            yield Point(
                settings={"bytes": size}, open=partial(self.ready, size), work=size, unit="B"
            )

    @contextmanager
    def ready(self, size):  # allocate the memory here, because only the call is timed
        array = np.ones(size, np.uint8)
        yield Ready(partial(array.fill, 7))
