"""Connects to a Ray cluster from a separate process, and reserves whole nodes of the cluster.

Ray starts threads, changes signal handlers and may block. Processes that measure or supervise therefore do not import
Ray. Ray transfers JSON and file contents in both directions. With --transport actor, Ray also transfers the bytes that
connections carry.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.config.parse import RAY_NODES, parse_endpoint
from harness.core.extras import how_to_install
from harness.core.units import counted
from harness.errors import BY_EXIT_STATUS, ConfigError, PluginUnavailable, one_line

CONNECT_LIMIT_S = 5.0
CONNECT_TRIES = 3
LET_IN_LIMIT_S = 90.0
"""Connecting fails after LET_IN_LIMIT_S. Ray gives up on an attempt if its head needs more than 30 s to start a server
for the client, so the limit allows CONNECT_TRIES attempts.
"""

_DIED_AT_START = (
    "Starting Ray client server failed",
    "Initialization failure from server",
    "client has already been disconnected",
)
"""Messages that Ray returns if its server for this client has died."""

PLACE_LIMIT_S = 60.0
"""Time that Ray may take to reserve the nodes. A cluster that scales automatically must already have started the nodes.
"""

END_LIMIT_S = 5.0
"""Maximum time that the hosts may take to end the processes that they started; the time is limited because a frozen
node never reports an end.
"""

FILE_LIMIT_S = 60.0
"""Time that copying a file to or from a node may take."""

_LOOK_EVERY_S = 0.2

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # With 0, the cluster ends the harness's actors as soon as the client is gone.
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
}


class RayNode(NamedTuple):
    """A live node in the cluster."""

    node_id: str
    address: str
    cpus: float
    gpus: float

    def __str__(self) -> str:
        gpus = f", {counted(int(self.gpus), 'GPU')}" if self.gpus else ""
        return f"{self.address} ({counted(int(self.cpus), 'CPU')}{gpus})"


class Host(NamedTuple):
    """The harness's actor on a node, which reserves this node."""

    name: str
    actor: Any
    strategy: Any = None
    """Scheduling strategy that places more actors on the host's node."""


@contextmanager
def connected(nodes: str) -> Iterator[Any]:
    """Yields the module `ray`, connected to the cluster. nodes: 'ray://HOST:PORT'.

    Raises PluginUnavailable if Ray is not installed or if the cluster fails within the block. Raises ConfigError if the
    cluster fails before the block begins.
    """
    os.environ.update(_ENVIRONMENT)
    if _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    if find_spec("ray") is None:
        raise PluginUnavailable(f"ray:// needs Ray: {how_to_install('ray')}")
    _check_listening(nodes)
    import ray

    try:
        _let_in(ray, nodes)
    except Exception as e:
        raise ConfigError(
            f"{nodes} is not a Ray cluster that Ray {ray.__version__} can use ({_reason(e)}): it must be the port of "
            "Ray's client, with the same versions of Ray and Python, and the same token (RAY_AUTH_TOKEN) if it has one"
        ) from e
    try:
        yield ray
    except (ray.exceptions.RayError, ConnectionError) as e:
        raise PluginUnavailable(
            f"{nodes} fails ({_reason(e).rstrip('.')}): `ray status` and the logs of its machines show why; a full disk or "
            "full memory can be the cause"
        ) from e
    finally:
        ray.shutdown()


def _let_in(ray: Any, nodes: str) -> None:
    """Connects with a time limit, because Ray waits forever if the head's server for this client cannot reach the
    cluster.
    """
    errors: list[Exception] = []

    def connect() -> None:
        try:
            _connect(ray, nodes)
        except Exception as e:  # noqa: BLE001 - raised below
            errors.append(e)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(LET_IN_LIMIT_S)
    if errors:
        raise errors[0]
    if thread.is_alive():
        raise TimeoutError(
            f"its server for this client is not ready after {LET_IN_LIMIT_S:g} s (ray_client_server_*.err on the head shows why)"
        )


def _connect(ray: Any, nodes: str) -> None:
    """Connects, and tries again if the head's server for this client dies while it starts.

    Ray forks this server while gRPC threads run, which kills one in fifteen servers. Source: ray-project/ray issue
    63202.
    """
    for tries_left in reversed(range(CONNECT_TRIES)):
        try:
            ray.init(nodes, logging_level="error", log_to_driver=False, namespace="mlperf-harness")
        except (RuntimeError, ConnectionError) as e:
            if not tries_left or not any(text in str(e) for text in _DIED_AT_START):
                raise
        else:
            return


def _has_token() -> bool:
    """Returns whether the user has a cluster token. Ray sends this token only on request."""
    return (
        "RAY_AUTH_TOKEN" in os.environ
        or Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser().is_file()
    )


def _check_listening(nodes: str) -> None:
    """Raises ConfigError if no server listens, because Ray would otherwise wait half a minute for a server."""
    server = parse_endpoint(nodes.removeprefix(RAY_NODES))
    try:
        socket.create_connection((server.host, server.port), CONNECT_LIMIT_S).close()
    except OSError as e:
        raise ConfigError(
            f"no Ray cluster answers at {nodes} ({one_line(e)}): run `ray get-auth-token --generate`, then "
            f"`RAY_AUTH_MODE=token ray start --head --ray-client-server-port {server.port}`"
        ) from e


def nodes_of(ray: Any) -> Sequence[RayNode]:
    """Returns the live nodes, starting with the nodes that have the most processors."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            about = (node["NodeID"], node["NodeManagerAddress"])
            found.append(RayNode(*about, has.get("CPU", 0.0), has.get("GPU", 0.0)))
    return sorted(found, key=lambda node: (-node.cpus, -node.gpus, node.address, node.node_id))


@contextmanager
def placed(
    ray: Any, count: int, *, is_gone: Callable[[], bool], gpus: bool = False
) -> Iterator[Sequence[Host]]:
    """Yields hosts on `count` nodes. Each host reserves all processors on its node and, if `gpus` is set, also all
    GPUs.

    is_gone: returns whether the process that requested the hosts has ended. At the end of the block, the hosts end all
    processes that they have started.
    """
    nodes = nodes_of(ray)
    fit = [node for node in nodes if node.cpus >= 1 and (node.gpus >= 1 or not gpus)]
    if len(fit) < count:
        raise ConfigError(
            f"{counted(count, 'node')} are requested, but only {counted(len(fit), 'node')} of the cluster can be used"
            f"{' (with a GPU)' if gpus else ''}: {'; '.join(map(str, nodes)) or 'it has none'}"
        )
    from ray.util.placement_group import placement_group, remove_placement_group

    bundles = [{"CPU": node.cpus, **({"GPU": node.gpus} if gpus else {})} for node in fit[:count]]
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    hosts: list[Host] = []
    try:
        late = (
            f"{counted(count, 'whole node')} did not become free in {PLACE_LIMIT_S:g} s: `ray status` lists what "
            "runs there"
        )
        _wait(ray, [group.ready()], PLACE_LIMIT_S, is_gone, late)
        hosts += _hosts(ray, group, bundles)
        yield hosts
    finally:
        with suppress(Exception):  # a cluster that is gone has already ended the hosts
            ray.wait(
                [host.actor.end.remote() for host in hosts],
                num_returns=len(hosts),
                timeout=END_LIMIT_S,
            )
        for host in hosts:
            with suppress(Exception):
                ray.kill(host.actor)
        with suppress(Exception):
            remove_placement_group(group)


def _hosts(ray: Any, group: Any, bundles: Sequence[Mapping[str, float]]) -> list[Host]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from harness.cluster.ray.host import NodeActor

    made = []
    for number, bundle in enumerate(bundles):
        strategy = PlacementGroupSchedulingStrategy(group, number)
        actor = ray.remote(NodeActor).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=strategy,
        )
        made.append(Host(f"node-{number + 1}", actor.remote(), strategy))
    return made


def tunnel_ends(ray: Any, hosts: Sequence[Host], ports: Sequence[int]) -> Sequence[Any]:
    """Starts a `TunnelEnd` on each host's node for the node's port, and returns all `TunnelEnd` actors. The actors end
    together with the placement group.
    """
    from harness.cluster.ray.tunnel import MOST_CALLS, TunnelEnd

    return [
        ray.remote(TunnelEnd)
        .options(num_cpus=0, max_concurrency=MOST_CALLS, scheduling_strategy=host.strategy)
        .remote(port)
        for host, port in zip(hosts, ports, strict=True)
    ]


@contextmanager
def every_node(ray: Any) -> Iterator[Sequence[Host]]:
    """Yields a host on each node that has a processor, even if the node is busy. A host's name consists of the node's
    address and Ray's ID.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from harness.cluster.ray.host import NodeActor

    hosts = []
    try:
        for node in nodes_of(ray):
            if node.cpus >= 1:
                there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
                actor = ray.remote(NodeActor).options(num_cpus=0, scheduling_strategy=there)
                hosts.append(Host(f"{node.address} {node.node_id[:8]}", actor.remote()))
        yield hosts
    finally:
        for host in hosts:
            with suppress(Exception):
                ray.kill(host.actor)


def call(ray: Any, host: Host, method: str, *values: str | bytes) -> Any:
    """Returns the result of a method that transfers a file."""
    try:
        return ray.get(getattr(host.actor, method).remote(*values), timeout=FILE_LIMIT_S)
    except Exception as e:
        raise PluginUnavailable(f"{host.name}: {_reason(e)}") from e


def ask(
    ray: Any,
    hosts: Sequence[Host],
    method: str,
    setup: Mapping[str, Any],
    limit_s: float,
    is_gone: Callable[[], bool],
) -> Sequence[dict[str, Any]]:
    """Returns the hosts' results from a method that takes and returns JSON. Raises the first error from any host."""
    asked = {
        getattr(host.actor, method).remote(json.dumps({**setup, "name": host.name})): host
        for host in hosts
    }

    # Raises a node's error immediately, while the other nodes are still working.
    def check(done: Any) -> None:
        answer_of(ray, done, asked[done].name)

    _wait(ray, [*asked], limit_s, is_gone, f"the nodes did not answer in {limit_s:g} s", check)
    return [answer_of(ray, one, host.name) for one, host in asked.items()]


def answer_of(ray: Any, done: Any, name: str) -> dict[str, Any]:
    """Returns the JSON result of a host's method, or raises the method's error as one line. name: the host's name."""
    try:
        answer: dict[str, Any] = json.loads(ray.get(done))
    except Exception as e:
        raise PluginUnavailable(f"{name}: {_reason(e)}") from e
    if "error" in answer:
        error = BY_EXIT_STATUS.get(answer["status"], PluginUnavailable)
        raise error(f"{answer['address']}: {answer['error']}")
    return answer


def _reason(error: Exception) -> str:
    """Returns the last line of the error, because Ray's message comes after a traceback from several machines."""
    text = str(error)
    if "No module named 'harness" in text:
        return "the harness is not installed where Ray runs: install this version on each node and on the head"
    return one_line(text.strip().splitlines()[-1] if text.strip() else type(error).__name__)


class AskerGone(Exception):
    """Raised if the process that requested the hosts has ended or no longer needs them."""


def _wait(
    ray: Any,
    asked: Sequence[Any],
    limit_s: float,
    is_gone: Callable[[], bool],
    text: str,
    look: Callable[[Any], object] = lambda _: None,
) -> None:
    """Waits until all calls have returned. look: called with each result. text: the error message if `limit_s` is
    exceeded.
    """
    open_, left_s = list(asked), limit_s
    while open_:
        if is_gone():
            raise AskerGone
        if left_s <= 0:
            raise PluginUnavailable(text)
        done, open_ = ray.wait(open_, timeout=_LOOK_EVERY_S)
        for one in done:
            look(one)
        left_s -= 0 if done else _LOOK_EVERY_S
