"""Reads text files of the kernel, below /proc and /sys, and makes system calls that Python has no function for."""

import ctypes
import os
from pathlib import Path


def text(path: Path) -> str:
    """The file's text without blanks around it; '' where the kernel has no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def boot_id() -> str:
    """The number of this boot of the machine, which its containers share; "" where it cannot be read."""
    return text(Path("/proc/sys/kernel/random/boot_id"))


def call(function: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Calls a function of the C library. An OSError where it fails; an AttributeError where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = getattr(libc, function)(*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
