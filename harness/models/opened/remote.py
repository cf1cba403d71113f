"""Opens remote plug-ins: the servers that the options name, and the backends that send requests to these servers."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.core import registry
from harness.core.config.address import is_private, parse_address
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.shown.secrets import learn
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.remote import HasName
from harness.types import Backend, BackendSetup
from harness.wire.connections import Server, check_limits, tls_context
from harness.wire.http1 import is_sendable, joined
from harness.wire.remote_backend import remote_backend

REQUEST_TIMEOUT_S = 10.0
TIMEOUT_REQUESTS = 20

BLOCKING = 16
"""Number of connections that are calibrated at the same time, each by one thread."""

MOST_QPS_ELSEWHERE = 100.0
"""Maximum rate in queries/s to a server outside private networks, unless --yes-load-this-host is set."""


def server_problems(config: RunConfig) -> Iterator[str]:
    """Yields problems with the options for the servers of --url; does not connect to the servers."""
    name = config.backend
    known, remote = name in registry.BACKENDS, name in registry.REMOTE_BACKENDS
    if remote and not config.url:
        yield f"backend {name!r} sends requests to a server: name it with --url, e.g. http://127.0.0.1:8000"
    if config.url and known and not remote:
        others = ", ".join(n for n in registry.REMOTE_BACKENDS if n in registry.BACKENDS)
        yield f"--url names a server, but backend {name!r} runs the model here: use {others}"
    if len({url.startswith(("grpc:", "grpcs:")) for url in config.url}) > 1:
        yield "--url mixes gRPC and HTTP addresses: name all replicas with the same protocol"
    if config.url and "processes" in dict(config.backend_option):
        yield "--backend-option processes is for models on this machine, but --url names a server: drop the option"
    if config.nodes is not None and not config.node_urls:
        yield "--nodes applies to single runs only: drop it, or measure each run with `run`"
    if config.qdl and remote and known and not issubclass(registry.load("backend", name), HasName):
        yield nameless(name)
    for header, source in config.header:
        variable = source.removeprefix("env:")
        value = os.environ.get(variable)
        learn(value or "")
        if not value:
            yield f"--header {header}={source}: the environment variable {variable} is not set"
        elif not is_sendable(value):
            yield (
                f"--header {header}={source}: {variable} has a line break or another character that HTTP forbids: "
                "remove it"
            )


def without_token_times(config: RunConfig, slo: Slo) -> str:
    """Returns the problem if an SLO needs token times but replies are not streamed."""
    endpoint = dict(config.backend_option).get("endpoint")
    cause = "stream=off" if endpoint is None else f"endpoint={endpoint} or stream=off"
    return (
        f"--slo {slo} needs token times, but the server does not stream: drop it, or use --backend openai without "
        f"{cause}"
    )


def nameless(backend: str) -> str:
    """Returns the problem if a backend in a run for MLPerf's Network division has no `name`."""
    return f"--qdl: backend {backend!r} has no request for the server's name: use kserve, or a plug-in with name()"


def remote_problems(config: RunConfig, verb: str) -> Iterator[str]:
    """Yields a problem if the backend is remote but the verb changes how the model runs on this machine."""
    if config.url or config.backend in registry.REMOTE_BACKENDS:
        yield (
            f"`{verb}` changes how a model runs on this machine, but backend {config.backend!r} sends requests "
            "to a server: use `peak`, `sweep --rate`, `profile` or `compare`"
        )


def servers_of(config: RunConfig) -> list[Server]:
    """Returns the servers of --url, in the given order."""
    headers = tuple(
        (name, os.environ[source.removeprefix("env:")]) for name, source in config.header
    )
    for _, value in headers:
        learn(value)
    addresses = [parse_address(url) for url in config.url]
    grpc = any(a.grpc for a in addresses)
    tls = tls_context(config.insecure, grpc=grpc) if any(a.tls for a in addresses) else None
    return [Server(address=a, headers=headers, tls=tls if a.tls else None) for a in addresses]


def metrics_pages(config: RunConfig) -> list[Server]:
    """Returns the addresses of the servers' metrics, if the user gives any. --header applies only to --url."""
    if config.server_metrics:
        addresses = [parse_address(url) for url in config.server_metrics]
        tls = tls_context(config.insecure) if any(a.tls for a in addresses) else None
        return [Server(address=a, tls=tls if a.tls else None) for a in addresses]
    return [
        replace(s, address=s.address._replace(prefix=joined(s.address.prefix, "/metrics")))
        for s in servers_of(config)
        if not s.address.grpc
    ]


def request_timeout_s(config: RunConfig, slowest_ns: int = 0) -> float:
    """Returns the time limit for a request. slowest_ns: duration of the slowest request in the warm-up."""
    if config.request_timeout_ns is not None:
        return config.request_timeout_ns / NS_PER_S
    return max(REQUEST_TIMEOUT_S, TIMEOUT_REQUESTS * slowest_ns / NS_PER_S)


def remote_class(
    config: RunConfig, cls: Any, connections: int
) -> Callable[[BackendSetup], Backend] | None:
    """Returns a function that creates a remote plug-in's backends, or None for a plug-in that runs the model on this
    machine.

    connections: number of connections per server. Raises ConfigError if the plug-in does not support --url, or if the
    machine has too few ports or file descriptors.
    """
    remote = hasattr(cls, "request") and not hasattr(cls, "infer")
    if not remote:
        if config.url:
            raise ConfigError(
                f"--url names a server, but backend {config.backend!r} runs the model here"
            )
        return None
    if not config.url:
        raise ConfigError(
            f"backend {config.backend!r} sends requests to a server: name it with --url"
        )
    check_limits(connections, len(config.url))
    server, timeout_s = servers_of(config)[0], request_timeout_s(config)
    transport = server.address.transport
    if transport not in getattr(cls, "transports", ("http",)):
        raise ConfigError(
            f"--url {server.address}: backend {config.backend!r} does not support gRPC: pass an "
            "address with http://"
        )
    return lambda setup: remote_backend(cls(replace(setup, transport=transport)), server, timeout_s)


def check_hosts(config: RunConfig, peers: Sequence[str]) -> None:
    """Raises ConfigError if the run would put load on a public server. peers: IP addresses, or '' for a Unix socket."""
    rate = config.target_qps
    slow = config.concurrency is None and rate is not None and rate <= MOST_QPS_ELSEWHERE
    strangers = [peer for peer in peers if not is_private(peer)]
    if config.yes_load_this_host or slow or not strangers:
        return
    raise ConfigError(
        f"--url: {strangers[0]} is neither this machine nor in a private network: if you may load it, "
        f"add --yes-load-this-host; else send at most {MOST_QPS_ELSEWHERE:g} queries/s with --scenario server "
        "--target-qps"
    )
