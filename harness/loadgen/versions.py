"""Finds the installed version of LoadGen, its MLPerf round, and the round's seeds."""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Seeds


class Round(NamedTuple):
    """A round of MLPerf Inference. One version of LoadGen contains the round's seeds."""

    name: str
    seeds: Seeds


PINNED_VERSION = "6.0.17"


ROUNDS = {
    PINNED_VERSION: Round(
        "v6.1", Seeds(2085463073848966840, 2747215439041700203, 16159082839903944936)
    ),
}


def installed_version() -> str:
    try:
        return version("mlcommons-loadgen")
    except PackageNotFoundError:
        return "unknown"


def seeds_of(config: RunConfig) -> Seeds:
    """Returns the run's seeds. Without --mlperf, the user may set the seeds with --seed or individually; otherwise, the
    round sets the seeds.
    """
    official = ROUNDS.get(installed_version(), ROUNDS[PINNED_VERSION]).seeds
    if config.seed is not None:
        official = Seeds(config.seed, config.seed, config.seed)
    configured = Seeds(
        config.qsl_seed if config.qsl_seed is not None else official.qsl,
        config.sample_index_seed if config.sample_index_seed is not None else official.sample_index,
        config.schedule_seed if config.schedule_seed is not None else official.schedule,
    )
    return official if config.mlperf else configured
