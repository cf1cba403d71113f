"""Estimates what sharing a model's weights saves a worker: rho = b / q - n (o + s).

b: bytes of the weights. q: rate at which they are read otherwise. n: objects that are shared, here tensors. o: time
to be given one by its owner, and to give it back. s: time until its first byte is there. Sharing pays where rho > 0.
Source: Dakkak et al., TrIMS (2019), section V-B, which takes the constants once for a machine, as is done here.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Constants(NamedTuple):
    """Constants of this machine. read_bytes_per_s: from the page cache into new memory."""

    read_bytes_per_s: float
    given_ns: float
    touched_ns: float

    @property
    def cost_ns(self) -> float:
        """Cost of sharing one object."""
        return self.given_ns + self.touched_ns

    @property
    def even_bytes(self) -> float:
        """A tensor of this size is read as fast as it is shared: below, sharing costs more than it saves."""
        return self.read_bytes_per_s * self.cost_ns / 1e9


def pays(saved_ns: float, weights_bytes: int, owner_bytes: int) -> bool:
    """Whether sharing saves time, and two workers with an owner take less memory than two workers without.

    TrIMS' owner serves a whole node and its memory is left out there; for a small model it is all that counts.
    """
    return saved_ns > 0 and weights_bytes > owner_bytes


def benefit_ns(sizes_bytes: Sequence[int], constants: Constants) -> float:
    """rho in ns; negative: reading is faster. sizes_bytes: of each object."""
    read_ns = sum(sizes_bytes) / constants.read_bytes_per_s * 1e9
    return read_ns - len(sizes_bytes) * constants.cost_ns
