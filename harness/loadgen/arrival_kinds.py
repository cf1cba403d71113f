"""Names the kinds of arrival schedules that `arrivals` writes, for `--help`, which must not wait for NumPy."""

from collections.abc import Mapping

KINDS: Mapping[str, str] = {
    "constant": "evenly spaced",
    "steps": "Poisson, at each of the rates in turn, for an equal time",
    "ramp": "Poisson, at a rate that rises or falls evenly from the first to the second",
    "gamma": "bursts: gaps with the coefficient of variation --cv, where 1 is Poisson",
    "loadgen": "LoadGen's own schedule for --seed",
}
