"""Loads the tables in data/: benchmarks, seeds, drafters, limits and default powers."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.core.formats.strict_yaml import load_mapping
from harness.submit.endpoints.cohorts import Cohort

_DATA = Path(__file__).parent / "data"


class Model(NamedTuple):
    """A benchmark, whose folder in the tree has the same name."""

    name: str
    dataset: str
    samples: int
    """Number of samples in the performance data set; in an agentic benchmark, number of trajectories."""
    sets: Sequence[str]
    """Accepted names of accuracy data sets, without the part after `::`."""
    parts: Sequence[str]
    """Data sets that must all be scored; empty if scoring one of `sets` is enough."""
    accuracy_samples: int
    least: Mapping[str, float] = MappingProxyType({})
    """Maps a metric to its minimum score."""
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})
    """Maps a metric to its minimum and maximum value."""
    gates: Mapping[str, float] = MappingProxyType({})
    """Maps `inline` and `swe_bench` to an agentic benchmark's minimum scores, as fractions."""
    tokens_per_turn: tuple[float, float] | None = None

    @property
    def is_agentic(self) -> bool:
        return bool(self.gates)


class SeedSet(NamedTuple):
    id: str
    cohort: Cohort
    seeds: Mapping[str, int]
    """Maps each seed's name in point.yaml to the seed."""

    def window(self) -> Sequence[Cohort]:
        """Returns the cohorts that may use the seed set."""
        return self.cohort.following(_table("seeds")["adoptable_cohorts"])


class Drafter(NamedTuple):
    benchmark: str
    approved: Cohort
    model: str
    checksum: str

    def earliest(self) -> Cohort:
        return self.approved.following(_table("drafters")["lead_cohorts"] + 1)[-1]


@cache
def _table(name: str) -> dict[str, Any]:
    return load_mapping(_DATA / f"{name}.yaml")


def limits() -> Mapping[str, Any]:
    """Returns the content of data/rules.yaml."""
    return _table("rules")


def power_defaults() -> Mapping[str, Any]:
    """Returns the content of data/power.yaml."""
    return _table("power")


@cache
def models() -> Mapping[str, Model]:
    """Returns the benchmarks by name."""
    table = _table("models")
    return {name: _model(name, row, table) for name, row in table["models"].items()}


def least_queries() -> Mapping[str, int]:
    counts: Mapping[str, int] = _table("models")["least_queries"]
    return counts


def _model(name: str, row: Mapping[str, Any], table: Mapping[str, Any]) -> Model:
    share = table["within"]
    per_turn = row.get("tokens_per_turn")
    return Model(
        name,
        row["dataset"],
        row["samples"],
        tuple(row["sets"]),
        tuple(row["sets"]) if row.get("all_sets") else (),
        row["accuracy_samples"],
        {metric: value * table["tolerance"] for metric, value in row.get("metrics", {}).items()},
        {
            metric: (value * (1 - share), value * (1 + share))
            for metric, value in row.get("within", {}).items()
        },
        row.get("gates", {}),
        (per_turn[0], per_turn[1]) if per_turn else None,
    )


SEEDS = ("scheduler_rng_seed", "sample_index_rng_seed", "model_seed")
"""Names of the seeds in point.yaml."""


@cache
def seed_sets() -> Sequence[SeedSet]:
    return tuple(
        SeedSet(row["id"], Cohort.parse(row["cohort"]), {name: row[name] for name in SEEDS})
        for row in _table("seeds")["sets"]
    )


def adoptable(cohort: Cohort) -> Sequence[SeedSet]:
    """Returns the seed sets that a submission to the cohort may use, starting with the newest."""
    found = [one for one in seed_sets() if cohort in one.window()]
    return sorted(found, key=lambda one: one.cohort, reverse=True)


@cache
def drafters(benchmark: str) -> Sequence[Drafter]:
    return tuple(
        Drafter(row["benchmark"], Cohort.parse(row["approved"]), row["model"], row["checksum"])
        for row in _table("drafters")["drafters"]
        if row["benchmark"] == benchmark
    )
