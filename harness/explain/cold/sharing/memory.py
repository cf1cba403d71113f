"""Reads how much memory processes use, counting shared pages once (proportional set size, PSS).

A page that n processes map counts as 1/n in each process. Source: proc(5), /proc/PID/smaps_rollup.
"""

import re
from collections.abc import Iterable
from pathlib import Path


def pss_bytes(pids: Iterable[int]) -> int:
    """Adds up the processes' PSS. Raises OSError if the kernel does not report the PSS, or if a process has ended."""
    return sum(_pss_bytes(pid) for pid in pids)


def _pss_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/{pid}/smaps_rollup has no Pss")
    return int(found[1]) * 1024
