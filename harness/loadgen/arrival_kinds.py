"""The kinds of arrival schedules that `arrivals` writes, by name; `--help` needs them without NumPy."""

from collections.abc import Mapping

KINDS: Mapping[str, str] = {
    "constant": "evenly spaced",
    "steps": "Poisson, each rate as long as the others",
    "ramp": "Poisson, the rate growing evenly from the first to the second",
    "gamma": "bursts: gaps with that coefficient of variation, 1 is Poisson",
    "loadgen": "LoadGen's own schedule of a seed",
}
