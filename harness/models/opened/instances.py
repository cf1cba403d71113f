"""How the work is laid out: instances x threads x batch on the cores really available."""

from harness.core.config.run_config import MAX_BATCH, RunConfig
from harness.core.units import counted
from harness.errors import ConfigError
from harness.loadgen.plan import Instances
from harness.loadgen.scenario import Scenario
from harness.machine.cores import Cores
from harness.models.manifest.model import Model

DEFAULT_MAX_BATCH = 8

LOADGEN_FROM_CORES = 4
"""From so many cores on, Server's plan leaves one to the thread that issues: with fewer, that one
would be worth more to the model, and the thread gets its time between the instances'."""


def plan(config: RunConfig, scenario: Scenario, model: Model, cores: Cores) -> Instances:
    """Streams: one instance with all cores. Otherwise one a core: that gives the best throughput on
    most CPUs; a search finds out for a given model.

    A ConfigError where more threads are asked for than can compute at once.
    """
    kept = int(scenario.scheduled and cores.planned >= LOADGEN_FROM_CORES)
    budget = cores.planned - kept
    count = config.instances or (1 if scenario.streams else max(1, budget // (config.threads or 1)))
    threads = config.threads or max(1, budget // count)
    if count * threads > cores.threads and not config.oversubscribe:
        raise ConfigError(
            f"{counted(count, 'instance')} x {counted(threads, 'thread')} are {count * threads} threads, "
            f"{cores.threads} can compute at the same time ({cores}): lower --instances or "
            "--threads, or add --oversubscribe"
        )
    found = Instances(count, threads, _max_batch(config, scenario, model), cores.worth)
    return _pinned(found, scenario, cores) if config.pin else found


def _max_batch(config: RunConfig, scenario: Scenario, model: Model) -> int:
    hint = model.manifest.max_batch if model.manifest else None
    largest = config.max_batch or hint or DEFAULT_MAX_BATCH
    if scenario.streams:  # a query is answered at once, in one batch where the user allows it
        samples = scenario.samples_per_query(config)
        largest = min(samples, config.max_batch or samples)
    return min(largest, MAX_BATCH)


def _pinned(found: Instances, scenario: Scenario, cores: Cores) -> Instances:
    """LoadGen's thread gets what is left, or answers itself. In Server it works while the instances
    do, so without a core of its own it is on theirs.
    """
    *own, rest = cores.assigned(found.instances, found.threads)
    at_work = [*own, rest] if scenario.scheduled else own
    owns = all(at_work) and cores.apart(at_work)
    issuer = own[0] if scenario.streams else rest
    return found._replace(pinned=tuple(own), issuer=issuer, owns_cores=owns)
