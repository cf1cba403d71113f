"""Runs the official client once, and records the host log and the server's metrics during the run."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.core.child import wait
from harness.core.clock import wall_ns
from harness.core.files import sha256, write_json
from harness.core.formats.strict_yaml import write_yaml
from harness.errors import ConfigError, one_line
from harness.machine.host_log import HOST_CSV, HostReader
from harness.submit.endpoints.client.checkout import CHECKOUT, prove
from harness.submit.endpoints.client.config import mode_of
from harness.submit.endpoints.environments import environment_variables
from harness.submit.endpoints.runs import CONFIG, LOG, RUN, Attempt
from harness.wire.server_metrics import ServerMetrics

BYTECODE = "bytecode"
"""Folder in WORK for the client's compiled Python modules, so that Python does not change the client's checkout."""

HOST_EVERY_S = 1.0
_SERVICES_END_S, _POLL_S = 10.0, 0.1
"""The client's services are killed if they still run _SERVICES_END_S seconds after the client has ended; the harness
checks them every _POLL_S seconds.
"""


Look = Callable[[float], None]


def run_client(
    program: Path,
    work: Path,
    attempt: Attempt,
    asked: Mapping[str, Any],
    metrics: ServerMetrics | None,
    look: Look,
) -> int:
    """Runs one point into `attempt`, and returns the client's exit status.

    look: called twice a second with the seconds since the client started. After Ctrl-C, waits until the client has
    ended, and raises Stopped.
    """
    try:
        attempt.folder.mkdir(parents=True)
        write_yaml(attempt.folder / CONFIG, asked)
    except OSError as e:
        raise ConfigError(
            f"{attempt.folder} cannot be written ({e.strerror}): pass a different --work"
        ) from e
    before, began_monotonic_ns = prove(work / CHECKOUT), time.monotonic_ns()
    words = [str(program), "benchmark", "from-config", "--config", str(attempt.folder / CONFIG)]
    words += ["--mode", mode_of(asked)]
    began_ns, began_s = wall_ns(), time.monotonic()
    with (
        (attempt.folder / LOG).open("wb") as log,
        _host_log(attempt.folder) as host,
        _started(words, work / BYTECODE, log) as process,
    ):
        status = _wait(process, look, metrics, host)
    after = prove(work / CHECKOUT)
    content = {
        "status": status,
        "began_ns": began_ns,
        "took_s": time.monotonic() - began_s,
        "monotonic_ns": [began_monotonic_ns, time.monotonic_ns()],
        "asked": dict(asked),
        "asked_sha256": sha256(attempt.folder / CONFIG),
        "client": after.to_json(),
        "changed": before.digest != after.digest or bool(after.changed),
        "server": None if metrics is None else _of_server(metrics),
        "server_absent": "not read" if metrics is None else metrics.absent or None,
    }
    write_json(attempt.folder / RUN, content)
    return status


@contextmanager
def _started(words: Sequence[str], bytecode: Path, log: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts the client in a separate session, so that Ctrl-C reaches the client only through this process."""
    try:
        process = subprocess.Popen(
            words,
            env=environment_variables(bytecode),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as e:
        raise ConfigError(f"{words[0]} did not start: {one_line(e)}") from e
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        _end_group(process.pid)


def _end_group(group: int) -> None:
    """Waits for the client's services, which may outlive a stopped client, and kills any services that remain."""
    with suppress(ProcessLookupError):
        for _ in range(round(_SERVICES_END_S / _POLL_S)):
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)


def _wait(
    process: "subprocess.Popen[bytes]",
    look: Look,
    metrics: ServerMetrics | None,
    host: Callable[[], None],
) -> int:
    read_s = time.monotonic()
    _read(metrics)

    def both(took_s: float) -> None:
        nonlocal read_s
        look(took_s)
        if time.monotonic() - read_s >= HOST_EVERY_S:
            read_s = time.monotonic()
            host()
            _read(metrics)

    status = wait(process, both, signal.SIGINT)
    _read(metrics)
    return status


def _read(metrics: ServerMetrics | None) -> None:
    if metrics is not None:
        metrics.look()


def _of_server(metrics: ServerMetrics) -> dict[str, Any]:
    """Returns the first and the last reading of the server's metrics, and the largest number of requests that ran at
    the same time.
    """
    rows = metrics.rows
    if not rows:
        return {}
    running = [row["running_requests"] for row in rows if "running_requests" in row]
    most = {"most_running": max(running)} if running else {}
    active = {} if (found := _active_s(rows)) is None else {"active_s": found}
    return {"first": rows[0], "last": rows[-1], "readings": len(rows), **most, **active}


def _active_s(rows: Sequence[Mapping[str, float]]) -> float | None:
    """Returns the time between the first and the last increase of the server's token count; None if the count did not
    increase.
    """
    counts = [
        (row["wall_ns"], row["generated_tokens"]) for row in rows if "generated_tokens" in row
    ]
    grew = [later for (_, low), (later, high) in pairwise(counts) if high > low]
    return (grew[-1] - grew[0]) / 1e9 if grew else None


@contextmanager
def _host_log(folder: Path) -> Iterator[Callable[[], None]]:
    """Yields a function that takes one reading of the machine's state. Writes all readings to host.csv at the end."""
    reader = HostReader()
    reader.look()
    try:
        yield reader.look
    finally:
        with suppress(OSError):
            reader.log.write(folder / HOST_CSV)
