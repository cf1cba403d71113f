"""Counts processor and kernel events around calls, through perf_event_open(2).

Virtual machines often have no hardware counters, and kernel.perf_event_paranoid may forbid their use. If a counter is
unavailable, the result contains the reason instead of a number.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from typing import NamedTuple, Self

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _SOFTWARE = 0, 1
# maps a name to (type, config), from include/uapi/linux/perf_event.h
EVENTS = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache-references": (_HARDWARE, 2),
    "cache-misses": (_HARDWARE, 3),
    "branches": (_HARDWARE, 4),
    "branch-misses": (_HARDWARE, 5),
    "task-clock": (_SOFTWARE, 1),  # ns
    "page-faults": (_SOFTWARE, 2),
    "context-switches": (_SOFTWARE, 3),
}
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0
_TIMES = 1 | 2  # the read_format that includes the total times enabled and running
_ENABLE, _DISABLE = 0x2400, 0x2401
_READ = struct.Struct("=QQQ")


class Reading(NamedTuple):
    """A counter's value, or the reason why it is missing.

    value: scaled up if the kernel time-shared the counter. None if `reason` is set.
    """

    value: float | None
    reason: str = ""


class Counters:
    """Counts events of this thread, and of the threads that it starts, between `start` and `stop`."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def __enter__(self) -> Self:
        for name, (kind, config) in EVENTS.items():
            try:
                self._files[name] = _open(kind, config)
            except OSError as e:
                self._reasons[name] = _why(e)
        return self

    def __exit__(self, *_error: object) -> None:
        for file in self._files.values():
            os.close(file)

    def start(self) -> None:
        self._control(_ENABLE)

    def stop(self) -> None:
        self._control(_DISABLE)

    def _control(self, request: int) -> None:
        import fcntl

        for file in self._files.values():
            fcntl.ioctl(file, request, 0)

    def read(self) -> Mapping[str, Reading]:
        """Returns the total counts of all intervals between `start` and `stop`."""
        readings = {name: Reading(None, why) for name, why in self._reasons.items()}
        for name, file in self._files.items():
            value, enabled, running = _READ.unpack(os.read(file, _READ.size))
            if enabled and not running:
                readings[name] = Reading(None, "not supported: the counter was never scheduled")
            else:
                readings[name] = Reading(value * enabled / running if running else float(value))
        return {name: readings[name] for name in EVENTS}


def _open(kind: int, config: int) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "unknown architecture")
    flags = _DISABLED | _INHERIT | _EXCLUDE_HV
    if kind == _HARDWARE:
        flags |= _EXCLUDE_KERNEL  # because perf_event_paranoid = 2 forbids counting kernel events
    attribute = struct.pack("=IIQQQQQ", kind, _ATTRIBUTE_BYTES, config, 0, 0, _TIMES, flags).ljust(
        _ATTRIBUTE_BYTES, b"\0"
    )
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(number, attribute, 0, -1, -1, 0)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def _why(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "not allowed: sysctl kernel.perf_event_paranoid or the container forbids it"
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "not supported: this machine, virtual machine or container has no such counter"
    return f"not supported: {error.strerror}"
