"""Reads the course of a run in progress from the run's metrics endpoint.

The endpoint's address comes from the run's folder, which is not trusted. This module therefore calls only addresses of
this machine, and accepts a reply only if it names the same run.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic

import psutil
from pydantic import ValidationError

from harness.browse import within
from harness.core.config.parse import Endpoint, parse_endpoint
from harness.core.files import PARTIAL
from harness.errors import HarnessError
from harness.results import run_folder
from harness.run.supervisor.metrics.course import REPLY, SNAPSHOTS_PATH, Snapshot

LIMIT_S = 1.0
"""Time limit for connecting and, separately, for the reply."""

MOST_BYTES = 32 * 2**20


def newest(root: Path, path: str) -> Snapshot | str:
    """Returns the state of the run whose unfinished folder is at `path`, or why the state is unknown."""
    found = snapshots(root, path, inf)
    return found if isinstance(found, str) else found[-1]


def snapshots(root: Path, path: str, after_s: float) -> Sequence[Snapshot] | str:
    """Returns the run's states later than `after_s`, oldest first, and at least the newest; or why they are unknown.

    path: the run's unfinished folder. after_s: on the machine's monotonic clock.
    """
    try:
        noted = within.read_file(root, f"{path}/{run_folder.ENDPOINT}").decode("ascii")
        endpoint = parse_endpoint(noted)
        host = _of_this_machine(endpoint.host)
    except FileNotFoundError:
        return (
            "its folder has no metrics endpoint: the run has ended, or was made with --no-metrics"
        )
    except (OSError, HarnessError, ValueError) as e:
        return f"its {run_folder.ENDPOINT} cannot be used: {e}"
    try:
        content = _fetch(endpoint._replace(host=host), f"{SNAPSHOTS_PATH}?after={after_s}")
    except OSError as e:
        return f"the run does not answer at {endpoint} ({e.strerror or e}): it has ended, or died"
    try:
        reply = REPLY.validate_json(content)
    except ValidationError:
        return f"the answer from {endpoint} is not the state of a run"
    if reply.run != path.rpartition("/")[2].removesuffix(PARTIAL) or not reply.snapshots:
        return f"a different run answers at {endpoint}: this run has ended, or died"
    return reply.snapshots


def _of_this_machine(host: str) -> str:
    """Returns the address to call, which must belong to this machine. Raises ValueError if the address belongs to
    another machine.
    """
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    if address.is_loopback or host in own:
        return host
    raise ValueError(f"{host} is not an address of this machine")


def _fetch(endpoint: Endpoint, path: str) -> bytes:
    """Returns the content at `path`. The whole reply must arrive within LIMIT_S."""
    deadline_s = monotonic() + LIMIT_S
    answer = b""
    with socket.create_connection(endpoint, LIMIT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {endpoint}\r\n\r\n".encode())
        while len(answer) < MOST_BYTES:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no complete answer within {LIMIT_S:g} s")
            connection.settimeout(left_s)
            part = connection.recv(65_536)
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if re.match(rb"HTTP/1\.[01] 200 ", head) is None:
        raise ConnectionError("the answer is not a page")
    return body
