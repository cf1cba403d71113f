"""Computes means, intervals and shares of a cold start from its trials."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from harness.core.stats import mean_half_width


class Phase(NamedTuple):
    key: str
    """The key in a trial, without the suffix _ns."""
    share: str
    """Entry of SHARES to which the phase belongs, or "" if the phase is not part of the first answer."""
    title: str


SHARES = ("input", "loading", "compute")
"""The three parts of the time of a first answer (TrIMS, section VI-B)."""

PHASES = (
    Phase("read", "loading", "read from the disk"),
    Phase("deserialise", "loading", "deserialise"),
    Phase("prepare", "loading", "optimise graph, prepack weights"),
    Phase("rest", "loading", "rest of the load"),
    Phase("input", "input", "prepare the input"),
    Phase("first", "compute", "first run"),
)
"""The parts, in order, of a first answer in a process that has already imported its framework."""

OUTSIDE = (
    Phase("process", "", "start of the process"),
    Phase("framework", "", "import of the framework"),
)
"""Phases that take the same time for every model of the framework, so they are not part of the first answer."""


class Estimate(NamedTuple):
    """A mean over trials, and half the width of its 95 % interval (Student's t); the half-width is None for a single
    trial.
    """

    mean: float
    half: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Computes the estimate. values: at least one value."""
    if len(values) < 2:
        return Estimate(values[0], None)
    return Estimate(mean(values), mean_half_width(values))


def phase_times(trials: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Phase, Estimate]]:
    """Yields the phases of the first answer that were measured separately."""
    for phase in PHASES:
        values = [trial[f"{phase.key}_ns"] for trial in trials]
        if any(value is not None for value in values):
            yield phase, estimate([value or 0 for value in values])


def total(trials: Sequence[Mapping[str, Any]]) -> Estimate:
    """Estimates the time of the first answer after the import, in ns."""
    return estimate(_totals(trials))


def _totals(trials: Sequence[Mapping[str, Any]]) -> list[int]:
    return [sum(trial[f"{p.key}_ns"] or 0 for p in PHASES) for trial in trials]


def saving(cold: Sequence[Mapping[str, Any]], warm: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """Estimates the time in ns that the page cache saves after the import, from the pairs of a cold and a warm trial.
    Returns None without at least two pairs.
    """
    if len(cold) != len(warm) or len(cold) < 2:
        return None
    return estimate([a - b for a, b in zip(_totals(cold), _totals(warm), strict=True)])


def loading(trials: Sequence[Mapping[str, Any]]) -> Estimate:
    """Estimates the loading part of the first answer, in ns."""
    return estimate(
        [sum(t[f"{p.key}_ns"] or 0 for p in PHASES if p.share == "loading") for t in trials]
    )


def one(trials: Sequence[Mapping[str, Any]], key: str) -> Estimate:
    """Estimates one time in ns. key: the key of a phase, or `steady`."""
    return estimate([trial[f"{key}_ns"] for trial in trials])


def shares(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """Returns the share of each part in SHARES, computed from sums over the trials. The shares add up to 1."""
    spent = dict.fromkeys(SHARES, 0)
    for trial in trials:
        for phase in PHASES:
            spent[phase.share] += trial[f"{phase.key}_ns"] or 0
    everything = sum(spent.values())
    return {name: ns / everything for name, ns in spent.items()}
