"""The benchmark `gpu-copy`, which measures the bandwidth between host and GPU (pinned and pageable) and within the GPU,
for several sizes.

Uses the method of Comm|Scope (Pearson et al., ICPE 2019).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.machine.characterise.gpu import device
from harness.types import Benchmark, Point, Ready

EXPONENTS = (12, 16, 20, 24, 28)
TO_GPU, FROM_GPU, WITHIN = "to the GPU", "from the GPU", "within the GPU"
PINNED, PAGEABLE, OF_GPU = "pinned", "pageable", "of the GPU"
WAYS = (
    (TO_GPU, PINNED),
    (TO_GPU, PAGEABLE),
    (FROM_GPU, PINNED),
    (FROM_GPU, PAGEABLE),
    (WITHIN, OF_GPU),
)
"""Directions of copies, and the kind of host memory. The largest copy within the GPU far exceeds the GPU's cache."""


class GpuCopy:
    """Measures copies.

    The work at each point is the number of copied bytes. Within the GPU, each byte is read once and written once.
    """

    about = "copies between host and GPU, pinned and pageable, and within it, by size"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        for way, memory in WAYS if device.is_here() else ():
            for exponent in EXPONENTS:
                size = 2**exponent
                settings = {"library": device.LIBRARY, "way": way, "memory": memory, "bytes": size}
                ready = partial(_ready, way, memory, size)
                yield Point(settings=settings, open=ready, work=size, unit="B")


@contextmanager
def _ready(way: str, memory: str, size: int) -> Iterator[Ready]:
    torch = device.torch_on_gpu()
    there = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    here = torch.ones(size, dtype=torch.uint8, pin_memory=memory == PINNED)
    source, target = {
        TO_GPU: (here, there),
        FROM_GPU: (there, here),
        WITHIN: (there, torch.empty_like(there)),
    }[way]
    copy = partial(target.copy_, source, non_blocking=memory != PAGEABLE)
    yield Ready(device.ended(torch, copy), facts={"device": torch.cuda.get_device_name()})


_: type[Benchmark] = GpuCopy
