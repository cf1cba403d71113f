"""Names the shared memory of a measured process, and removes the memory after the process has ended, even after a
crash.
"""

from contextlib import suppress
from pathlib import Path

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.models.opened.remote import servers_of
from harness.remote import SharesSamples
from harness.wire.remote_backend import link_to

REGIONS = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux

_DETACH_S = 2.0


def region_of(pid: int) -> str:
    """Returns the name of a measured process's region."""
    return f"mlperf-harness-{pid}"


def release(config: RunConfig, pid: int) -> None:
    """Removes the region of a process that has ended, and asks the servers to detach from it. Never raises an error."""
    if dict(config.backend_option).get("encoding") != "shm":
        return
    region = region_of(pid)
    with suppress(OSError):
        (REGIONS / region).unlink()
    for server in servers_of(config):
        link = link_to(server, _DETACH_S)
        # The server may be gone, or may already have released the region.
        with suppress(Exception):
            remote: type[SharesSamples] = registry.load("backend", config.backend)
            link.exchange(remote.detach(region, server.address.transport))
        link.close()
