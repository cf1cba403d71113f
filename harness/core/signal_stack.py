"""Keeps the alternate signal stack of a thread.

OpenVINO installs a stack for each compiled model, and restores the previous stack when the model is deleted. If two
models are deleted in the order of their creation, the second model restores the first model's stack, although its
memory is freed. The next signal, e.g. SIGTERM, then causes a segmentation fault.
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
