"""Several raylets on this machine, each a node of a Ray cluster with token authentication, and their child processes."""

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import is_running
from tests.stand_ins.network_namespace import THERE, Machine

STARTS = 4
LOCAL = "127.0.0.1"

WAITS = pytest.mark.limit_s(1800)
"""Time limit for tests that may have to wait until other tests' clusters end."""

_SCRIPT = """
import json, sys
from ray.cluster_utils import Cluster
MEMORY = 80_000_000
each = {"object_store_memory": MEMORY, **({"node_ip_address": sys.argv[2]} if sys.argv[2] else {})}
head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": int(sys.argv[1]), **each}
cluster = Cluster(initialize_head=True, head_node_args=head)
processes = cluster.head_node.all_processes.values()
pids = [one.process.pid for several in processes for one in several]
print(json.dumps([cluster.address, pids]), flush=True)
for line in sys.stdin:
    node = cluster.add_node(num_cpus=1, **each)
    (raylet,) = node.all_processes["raylet"]
    print(json.dumps(raylet.process.pid), flush=True)
cluster.shutdown()
"""


class Raylets:
    """A running cluster; its head executes no work."""

    def __init__(self, process: "subprocess.Popen[str]", host: str, port: int) -> None:
        self._process = process
        self.nodes = f"ray://{host or LOCAL}:{port}"
        self.pids: list[int] = []
        """Process ids of the raylets."""
        self.address: str
        """The head's address, to which raylets connect."""
        self.head: list[int]
        """Process ids of the head."""
        self.address, self.head = self._told()

    def _told(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "Ray has ended"
        return json.loads(line)

    def add(self) -> int:
        """Starts another raylet; returns its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        pid: int = self._told()
        self.pids.append(pid)
        return pid

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def hosts(self, raylet: int) -> list[int]:
        """Returns the process ids of our actors on this node and of their child processes."""
        ours = (b"ray::NodeActor", b"ray::TunnelEnd", b"harness")
        return [pid for pid in _below(raylet) if any(word in words_of(pid) for word in ours)]

    def wait_for_nodes(self, count: int, limit_s: float = 90) -> dict[int, int]:
        """Waits for `count` processes of `serve --node`; returns the process of each raylet."""
        end_s = time.monotonic() + limit_s
        found: dict[int, int] = {}
        while len(found) < count and time.monotonic() < end_s:
            time.sleep(0.1)
            found = {
                raylet: pid
                for raylet in self.pids
                for pid in _below(raylet)
                if b"harness.serve.node.child" in words_of(pid)
            }
        assert len(found) == count
        return found


@contextmanager
def raylet_on(there: Machine, head: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a raylet on a different machine. head: the `address` of the head."""
    words = ["start", "--address", head, "--node-ip-address", THERE, "--num-cpus", "1", "--block"]
    memory = ["--object-store-memory", "80000000"]
    command = [*there.under, sys.executable, "-m", "ray.scripts.scripts", *words, *memory]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def raylets(count: int, host: str = "", **settings: str) -> Iterator[Raylets]:
    """Starts a cluster; commands started within the block use the cluster's token.

    host: this machine's address for all processes; '': Ray chooses. settings: Ray's environment variables.
    """
    with socket.create_server((host or LOCAL, 0)) as free:
        port = free.getsockname()[1]
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        **settings,
    }
    before = dict(os.environ)
    with _alone():
        os.environ.update(variables)
        try:
            cluster = _started(host, port)
            try:
                for _ in range(count):
                    cluster.add()
                yield cluster
            finally:
                cluster.end()
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _alone() -> Iterator[None]:
    """Allows one cluster at a time on this machine, because two heads give their clients' servers the same ports."""
    with Path(tempfile.gettempdir(), "harness-tests-ray.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _started(host: str, port: int) -> Raylets:
    """Starts a cluster, in several attempts on a busy machine, because Ray gives up after 30 s."""
    for _ in range(STARTS):
        command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, str(port), host]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with suppress(AssertionError):
            return Raylets(process, host, port)
        process.communicate(timeout=60)
    raise AssertionError("Ray did not start: see above")


def freeze(pids: Sequence[int], number: signal.Signals = signal.SIGSTOP) -> None:
    for pid in pids:
        os.kill(pid, number)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _below(pid: int) -> list[int]:
    """Returns the process ids of all descendants."""
    try:
        text = "".join(p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return []
    children = [int(word) for word in text.split()]
    return [*children, *(one for child in children for one in _below(child))]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


QUERIES = 600
SLOW_BATCH = (
    *("--backend-option", "ms=50", "--instances", "1", "--threads", "1"),
    *("--queries", str(QUERIES), "--request-timeout", "2s"),
)


def on(cluster: Raylets, count: int = 2) -> tuple[str, ...]:
    return ("--nodes", cluster.nodes, "--node-count", str(count))


def has_ended(pids: list[int], limit_s: float = 5) -> bool:
    end_s = time.monotonic() + limit_s
    while any(map(is_running, pids)) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not any(map(is_running, pids))
