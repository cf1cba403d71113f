"""Keeps the alternate signal stack of a thread.

OpenVINO installs one for each compiled model, and puts the one before it back when the model ends. Of two models that
end in the order in which they began, the second puts back the stack of the first, whose memory is gone: the next signal,
such as SIGTERM, then ends the process with a segmentation fault.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

DISABLED = 2
"""SS_DISABLE: signals use the thread's own stack."""


class SignalStack(ctypes.Structure):
    """stack_t of sigaltstack."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None)


def current() -> SignalStack:
    """The alternate signal stack of this thread."""
    found = SignalStack()
    _libc.sigaltstack(None, ctypes.byref(found))
    return found


@contextmanager
def kept() -> Iterator[None]:
    """The thread has the stack again that it had before the block, unless that is smaller than the new one, which a
    processor's registers may need.
    """
    before = current()
    yield
    if before.flags & DISABLED or before.size >= current().size:
        _libc.sigaltstack(ctypes.byref(before), None)
