"""Requests a short time slice from Linux, so that a thread gets a core as soon as the thread wakes up.

The scheduler runs a waking thread before threads whose slices end later. Since Linux 6.12, each thread may choose its
slice without special privileges. Source: sched_setattr(2), and struct sched_attr in linux/sched/types.h.
"""

import ctypes
import os
import struct

from harness.machine.kernel import call

SLICE_NS = 100_000
"""The shortest slice that Linux accepts."""

_GET = {"x86_64": 315, "aarch64": 275, "riscv64": 275}
"""Number of the system call sched_getattr on each architecture; the number of sched_setattr is one less.
"""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_POLICY, _RUNTIME = 1, 5
_TIME_SHARED = (0, 3)
"""SCHED_OTHER and SCHED_BATCH; other policies do not use slices."""


def shorten_slice() -> str:
    """Shortens the calling thread's slice to SLICE_NS. Returns the reason if the slice cannot be shortened, otherwise
    "".
    """
    architecture = os.uname().machine
    if architecture not in _GET:
        return f"the system call is not known for {architecture}"
    try:
        before = _attributes(_GET[architecture])
        if before[_POLICY] not in _TIME_SHARED:
            return "the thread is a real-time thread, which has no slice"
        wanted = (*before[:_RUNTIME], SLICE_NS, *before[_RUNTIME + 1 :])
        call("syscall", _GET[architecture] - 1, 0, _ATTRIBUTES.pack(*wanted), 0)
        after = _attributes(_GET[architecture])
    except (OSError, AttributeError) as e:  # AttributeError means that the system is not Linux
        return getattr(e, "strerror", None) or "only Linux has it"
    if after[_RUNTIME] != SLICE_NS:
        return f"Linux {os.uname().release} has one slice for all threads, Linux 6.12 and later one per thread"
    return ""


def _attributes(get: int) -> tuple[int, ...]:
    content = ctypes.create_string_buffer(_ATTRIBUTES.size)
    call("syscall", get, 0, content, _ATTRIBUTES.size, 0)
    return _ATTRIBUTES.unpack(content.raw)
