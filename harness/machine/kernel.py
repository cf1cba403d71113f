"""Reads text files of the kernel, below /proc and /sys."""

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
