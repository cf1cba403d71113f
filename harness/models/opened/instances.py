"""Chooses the instance group (instances x threads x batch) for the available cores."""

from harness.core import registry
from harness.core.config.parse import each_device
from harness.core.config.run_config import RunConfig
from harness.core.config.schema import MAX_BATCH
from harness.core.units import counted
from harness.errors import ConfigError
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import Scenario
from harness.machine.cores import Cores
from harness.models.manifest.model import Model

DEFAULT_MAX_BATCH = 8
GPU_MAX_BATCH = 64
"""The default maximum batch on a GPU, which is large because GPUs are faster with large batches. For example, one
stream of an H100 runs ResNet-50 in float16 at 11,700 samples/s with batches of 32, and at 13,900 samples/s with batches
of 256.
"""

OFFLINE_STREAMS = 4
SERVER_STREAMS = 3
"""In Offline and in Server, the backend `torch` runs this many instances per GPU, so that some instances can copy data
while others compute. More instances increase the throughput for full batches. For ResNet-50 in float16 on an H100, 2
instances process 9,900 samples/s, 3 process 11,100 and 4 process 11,800. However, more instances slow down small
batches, because the instances compute at the same time. Server's p99 at 85 % load is 27 ms with 3 instances and 31 ms
with 4.
"""

STAGING_THREADS = 4
"""Number of threads that copy an instance's samples into memory that a GPU can read. With 16 threads, a query waits
0.09 ms longer.
"""

CONNECTIONS = 64
"""Number of concurrent requests to each server. The server queues these requests."""

LOADGEN_FROM_CORES = 4
"""With at least this many cores, Server reserves one core for the thread that issues queries. With fewer cores, that
thread shares the cores with the instances, because the model needs the cores more.
"""


def plan(config: RunConfig, scenario: Scenario, model: Model, cores: Cores) -> InstanceGroup:
    """Returns the instance group of a run. `tune` searches for the best group for a given model.

    Stream scenarios use one instance with all cores. Other scenarios use one instance per core, which gives the best
    throughput on most CPUs. On GPUs, these scenarios use one instance per GPU, or several instances per GPU with the
    backend `torch`. Raises ConfigError if the configuration requests more threads than can compute at the same time.
    """
    if config.node_urls:
        most = _max_batch(config, scenario, model)
        return InstanceGroup(1, 1, most, cores.worth, nodes=len(config.node_urls))
    if config.url:
        most = _max_batch(config, scenario, model)
        requests = -(-scenario.samples_per_query(config) // most)
        usual = min(16, requests) if scenario.streams else max(CONNECTIONS, config.concurrency or 0)
        connections = config.connections or usual
        return InstanceGroup(1, 1, most, cores.worth, connections=connections)
    reserved = int(scenario.scheduled and cores.planned >= LOADGEN_FROM_CORES)
    budget = cores.planned - reserved
    most = max(1, budget // (config.threads or 1))
    gpus = each_device(config.device) if config.device != "cpu" else []
    if gpus:
        streams = SERVER_STREAMS if scenario.scheduled else OFFLINE_STREAMS
        most = min(most, len(gpus) * (streams if config.backend == "torch" else 1))
    count = config.instances or model.workers or (1 if scenario.streams else most)
    if len(gpus) > count:
        raise ConfigError(
            f"--device {config.device}: {counted(count, 'instance')} cannot use "
            f"{counted(len(gpus), 'GPU')}: name fewer GPUs"
            + ("" if scenario.streams else ", or raise --instances")
        )
    threads = _threads(config, max(1, budget // count))
    if gpus and not config.threads:
        threads = min(threads, STAGING_THREADS)
    if count * threads > cores.threads and not config.oversubscribe:
        raise ConfigError(
            f"{counted(count, 'instance')} x {counted(threads, 'thread')} need {count * threads} threads, but "
            f"{cores.threads} can compute at the same time ({cores}): lower --instances or "
            "--threads, or add --oversubscribe"
        )
    group = InstanceGroup(count, threads, _max_batch(config, scenario, model), cores.worth)
    in_tokens = model.generation is not None or (model.generates and not config.url)
    batched = model.workers is None and not in_tokens
    here = not gpus and config.load_hosts is None and config.streams is None
    if scenario.all_at_once and not gpus and batched and _set_batch(config, model) is None:
        group = group._replace(may_shrink=True)
    may_drop = scenario.streams and batched and here and _may_drop_threads(config, group)
    group = group._replace(may_drop_threads=may_drop)
    if scenario.scheduled and config.dispatch == "elastic" and batched and here:
        group = group._replace(wide=_wide(group, cores, budget))
    if config.pin:
        return _pinned(group, scenario, cores)
    return group._replace(owns_cores=_is_alone(group, scenario, cores))


def _threads(config: RunConfig, share: int) -> int:
    """Returns the number of threads per instance. share: number of cores per instance. Raises ConfigError if the
    backend computes on one thread but the user requests more threads.
    """
    if config.backend not in registry.OF_ONE_THREAD:
        return config.threads or share
    if config.threads not in (None, 1):
        raise ConfigError(
            f"--threads {config.threads}: backend {config.backend!r} computes on one thread: drop --threads, "
            "and raise --instances"
        )
    return 1


def _may_drop_threads(config: RunConfig, group: InstanceGroup) -> bool:
    """Returns whether the harness may reduce the number of threads. Returns False with --pin, because the number of
    threads determines the cores.
    """
    fixed = config.backend in registry.WITH_FIXED_THREADS
    return group.threads > 1 and not (config.threads or config.pin or fixed)


def _max_batch(config: RunConfig, scenario: Scenario, model: Model) -> int:
    # the server forms the batches, so a request contains one sample unless the user sets a size
    if config.url:
        return min(config.max_batch or 1, MAX_BATCH)
    # batches contain one sample, because waiting queries may need different models
    if model.workers is not None:
        return 1
    default = DEFAULT_MAX_BATCH if config.device == "cpu" else GPU_MAX_BATCH
    largest = _set_batch(config, model) or default
    if scenario.streams:  # a query is one batch, unless the user limits batches to fewer samples
        samples = scenario.samples_per_query(config)
        largest = min(samples, config.max_batch or samples)
    return min(largest, MAX_BATCH)


def _set_batch(config: RunConfig, model: Model) -> int | None:
    """Returns the maximum batch size from --max-batch or the manifest, or None if neither sets it."""
    return config.max_batch or (model.manifest.max_batch if model.manifest else None)


def _wide(group: InstanceGroup, cores: Cores, budget: int) -> tuple[int, ...]:
    """Returns one logical processor per instance for the wide instance, or () if a wide instance is not possible.

    Returns () unless several one-thread instances use all available cores, because otherwise the kernel may move the
    instances. Also returns () under a CPU quota, because spinning threads would use up the quota.
    """
    count = group.instances
    if count == 1 or count != budget or group.threads > 1 or cores.quota is not None:
        return ()
    return tuple(processors[0] for processors in cores.groups[:count])


def _is_alone(group: InstanceGroup, scenario: Scenario, cores: Cores) -> bool:
    """Returns whether no other thread of this process needs a core while the instance computes. The result does not
    depend on pinning.

    In stream scenarios, LoadGen's thread itself runs the model. Returns False under a CPU quota, because spinning
    threads use up time that the instance needs later.
    """
    return scenario.streams and group.threads <= cores.planned and cores.quota is None


def _pinned(group: InstanceGroup, scenario: Scenario, cores: Cores) -> InstanceGroup:
    """Assigns cores to the instances. LoadGen's thread gets the remaining cores. In stream scenarios, LoadGen's thread
    itself runs the model.

    In Server, LoadGen's thread works at the same time as the instances, and shares the instances' cores if no other
    core is left.
    """
    *own, rest = cores.assigned(group.instances, group.threads)
    busy = [*own, rest] if scenario.scheduled else own
    owns = all(busy) and cores.apart(busy)
    issuer = own[0] if scenario.streams else rest
    return group._replace(pinned=tuple(own), issuer=issuer, owns_cores=owns)
