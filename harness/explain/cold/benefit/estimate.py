"""Estimates the time that a worker saves by sharing a model's weights: rho = b / q - n (o + s).

b: size of the weights in bytes. q: read rate without sharing. n: number of shared objects (tensors). o: time to get an
object from its owner and to return it. s: time until the first byte of an object is available. Sharing pays off if rho
> 0.
Source: Dakkak et al., TrIMS (2019), section V-B. TrIMS also measures the constants once per machine.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Constants(NamedTuple):
    """Constants of this machine. read_bytes_per_s: rate of reads from the page cache into new memory."""

    read_bytes_per_s: float
    given_ns: float
    touched_ns: float

    @property
    def cost_ns(self) -> float:
        """Cost of sharing one object."""
        return self.given_ns + self.touched_ns

    @property
    def even_bytes(self) -> float:
        """Size in bytes of a tensor that takes as long to read as to share.

        Sharing a smaller tensor costs more time than it saves.
        """
        return self.read_bytes_per_s * self.cost_ns / 1e9


def pays(saved_ns: float, weights_bytes: int, owner_bytes: int) -> bool:
    """Whether sharing saves both time and memory. The owner's memory counts, so two workers and an owner together must
    need less memory than two separate workers.

    TrIMS ignores the owner's memory, because one owner serves a whole node. For a small model, the owner's memory
    matters.
    """
    return saved_ns > 0 and weights_bytes > owner_bytes


def benefit_ns(sizes_bytes: Sequence[int], constants: Constants) -> float:
    """Returns rho in ns, which is negative if reading is faster. sizes_bytes: the size of each object."""
    read_ns = sum(sizes_bytes) / constants.read_bytes_per_s * 1e9
    return read_ns - len(sizes_bytes) * constants.cost_ns
