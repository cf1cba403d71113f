"""Lists the kinds of arrival schedules that `arrivals` writes. `--help` reads this list without importing NumPy."""

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    about: str
    fewest: int = 1
    """Minimum number of rates."""
    most: int = 1
    """Maximum number of rates."""


KINDS: Mapping[str, Kind] = {
    "constant": Kind("evenly spaced"),
    "steps": Kind("Poisson, with each rate for an equal part of the duration", 2, 1000),
    "ramp": Kind(
        "Poisson, at a rate that changes linearly from the first value to the second", 2, 2
    ),
    "gamma": Kind("bursts: gaps with the coefficient of variation --cv; 1 is Poisson"),
    "loadgen": Kind("LoadGen's own schedule for --seed"),
}
