"""The verbs that make runs of their own: peak, sweep (over rates or a grid), tune, profile, run --repeats."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.explain.profile import job as profile
from harness.explain.profile.options import ProfileOptions
from harness.machine.power.meters.ptdaemon import NAME
from harness.run.supervisor import ptdaemon_session
from harness.run.supervisor.job import measure
from harness.search import repeats
from harness.search.grid import job as grid
from harness.search.grid.cells.options import Grid
from harness.search.options import PeakOptions, RepeatOptions, SweepOptions, TuneOptions
from harness.search.peak import job as peak
from harness.search.sweep import job as sweep
from harness.search.tune import job as tune


class Verb(NamedTuple):
    """problems: of a configuration and the verb's own options. execute: returns the exit status."""

    problems: Callable[[RunConfig, Any], Iterator[str]]
    execute: Callable[..., int]


def _repeat(config: RunConfig, options: RepeatOptions, *, as_json: bool, quiet: bool) -> int:
    assert options.repeats is not None
    return repeats.repeat(config, options.repeats, measure, as_json=as_json, quiet=quiet)


def _peak(config: RunConfig, options: PeakOptions, *, as_json: bool, quiet: bool) -> int:
    return peak.find(config, options, measure, as_json=as_json, quiet=quiet)


def _sweep(config: RunConfig, options: SweepOptions, *, as_json: bool, quiet: bool) -> int:
    return sweep.sweep(config, options, measure, as_json=as_json, quiet=quiet)


def _tune(config: RunConfig, options: TuneOptions, *, as_json: bool, quiet: bool) -> int:
    return tune.tune(config, options, measure, as_json=as_json, quiet=quiet)


def _grid(config: RunConfig, options: Grid, *, as_json: bool, quiet: bool) -> int:
    return grid.sweep(config, options, measure, as_json=as_json, quiet=quiet)


def _profile(config: RunConfig, options: ProfileOptions, *, as_json: bool, quiet: bool) -> int:
    return profile.profile(config, options, measure, as_json=as_json, quiet=quiet)


_MANY = {"run": "--repeats", "peak": "peak", "sweep": "sweep"}
"""What makes more runs than the one that --audit is; tune and a grid refuse it in their own words."""

VERBS = {
    "run": Verb(lambda config, options: repeats.problems(config, options.repeats), _repeat),
    "peak": Verb(peak.problems, _peak),
    "sweep": Verb(sweep.problems, _sweep),
    "tune": Verb(tune.problems, _tune),
    "grid": Verb(grid.problems, _grid),
    "profile": Verb(profile.problems, _profile),
}


def execute(verb: str, config: RunConfig, options: object, *, as_json: bool, quiet: bool) -> int:
    """Returns the exit status; one ConfigError with every problem."""
    chosen = VERBS[verb]
    found = list(chosen.problems(config, options))
    if config.harness_scheduled and verb not in ("run", "peak", "profile"):
        found.append(f"{verb} offers Poisson arrivals: drop --arrivals and --concurrency")
    if config.audit is not None and verb in _MANY:
        found.append(f"--audit is one run, {_MANY[verb]} makes many: drop it")
    if ptdaemon_session.asked(config):
        found.append(f"--meter {NAME} measures one run: drop it")
    if found:
        raise ConfigError("\n".join(found))
    return chosen.execute(config, options, as_json=as_json, quiet=quiet)
