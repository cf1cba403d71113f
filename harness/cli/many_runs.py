"""Checks the configuration for a verb that makes several runs, and starts the verb if the configuration has no problem."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from harness.cli.run_options import Invocation
from harness.core.config.run_config import RunConfig
from harness.errors import refuse

T = TypeVar("T")

_REPLAYING = ("run", "peak", "profile")
"""Verbs that can replay arrivals from a file or run a closed loop. All other verbs issue queries at a Poisson rate."""

_SHARING = ("run", "peak", "sweep")
"""Verbs that can divide their load among several hosts."""


def execute(
    verb: str,
    call: Invocation[T],
    problems: Callable[[RunConfig, T], Iterator[str]],
    job: Callable[..., int],
) -> int:
    """Runs the job, and returns its exit status. Raises a single ConfigError that lists every problem.

    problems: yields problems caused by the combination of the configuration and the verb's options. job: called as
    job(config, verb's options, function that measures one run, as_json=, quiet=).
    """
    from harness.cluster import job as one_run

    refuse([*problems(call.config, call.own), *_problems(verb, call.config)])
    return job(call.config, call.own, one_run.measure, as_json=call.as_json, quiet=call.quiet)


def _problems(verb: str, config: RunConfig) -> Iterator[str]:
    from harness.machine.power.meters.ptdaemon import NAME
    from harness.run.supervisor import ptdaemon_session

    if config.load_hosts is not None and verb not in _SHARING:
        yield f"{verb} generates its load in one process: drop --load-hosts"
    others = (config.arrivals, config.concurrency, config.streams)
    if any(one is not None for one in others) and verb not in _REPLAYING:
        yield f"{verb} uses Poisson arrivals: drop --arrivals, --concurrency and --streams"
    if ptdaemon_session.is_requested(config):
        yield f"--meter {NAME} measures one run: drop it"
