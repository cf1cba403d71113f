"""Keeps the alternate signal stack of a thread.

OpenVINO installs a stack for each compiled model, and restores the previous stack when the model ends. If two models
end in the order in which they began, the second restores the stack of the first, whose memory is freed. The next
signal, e.g. SIGTERM, then ends the process with a segmentation fault.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

DISABLED = 2
"""SS_DISABLE: signals use the thread's normal stack."""


class SignalStack(ctypes.Structure):
    """stack_t of sigaltstack."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None)


def current() -> SignalStack:
    """Returns the alternate signal stack of this thread."""
    found = SignalStack()
    _libc.sigaltstack(None, ctypes.byref(found))
    return found


@contextmanager
def kept() -> Iterator[None]:
    """Restores the thread's stack after the block, unless it is smaller than the new stack.

    The processor's registers may need the larger stack.
    """
    before = current()
    yield
    if before.flags & DISABLED or before.size >= current().size:
        _libc.sigaltstack(ctypes.byref(before), None)
