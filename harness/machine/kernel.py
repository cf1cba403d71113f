"""Reads the kernel's text files below /proc and /sys, and makes system calls that Python does not offer."""

import ctypes
import os
from pathlib import Path


def text(path: Path) -> str:
    """Returns the file's text without surrounding white space, or '' if the kernel does not provide the file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def boot_id() -> str:
    """Returns the ID of the machine's current boot, or "" if it cannot be read. The ID is the same in all
    containers.
    """
    return text(Path("/proc/sys/kernel/random/boot_id"))


def call(function: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Calls a function in the C library. Raises OSError if the function fails, and AttributeError if it does not exist."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = getattr(libc, function)(*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
