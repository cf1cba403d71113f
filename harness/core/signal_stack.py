"""Preserves a thread's alternate signal stack.

OpenVINO installs a stack for each compiled model, and restores the previous stack when the model is deleted. If two
models are deleted in the order of their creation, the second deletion restores the first model's stack, although the
memory of that stack has been freed. The next signal, such as SIGTERM, then causes a segmentation fault.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

DISABLED = 2
"""SS_DISABLE, which means that signals use the thread's normal stack."""


class SignalStack(ctypes.Structure):
    """Structure stack_t that sigaltstack takes."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None)


def current() -> SignalStack:
    """Returns this thread's alternate signal stack."""
    found = SignalStack()
    _libc.sigaltstack(None, ctypes.byref(found))
    return found


@contextmanager
def kept() -> Iterator[None]:
    """After the block, restores the thread's previous stack, unless the previous stack is smaller than the new one.

    The larger stack may be necessary to store the processor's registers.
    """
    before = current()
    yield
    if before.flags & DISABLED or before.size >= current().size:
        _libc.sigaltstack(ctypes.byref(before), None)
