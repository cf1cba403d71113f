"""Fake folders of the kernel's, in its format: the files are the interface."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MAX_UJ = 262_143_328_850


def files(folder: Path, content: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def powercap(root: Path) -> Path:
    """One package with cores and memory, the platform, and the control type itself."""
    files(root / "intel-rapl", {"enabled": 1})
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
    ):
        files(root / zone, {"name": name, "energy_uj": 1_000_000, "max_energy_range_uj": MAX_UJ})
    return root


@contextmanager
def counting(counter: Path, watts: float) -> Iterator[None]:
    """energy_uj grows as it would at this power; it wraps on its way."""
    stop = threading.Event()

    def run() -> None:
        value, period_s = MAX_UJ - 500_000, 0.02
        fresh = counter.with_name("fresh")
        while not stop.wait(period_s):
            value = (value + int(watts * period_s * 1e6)) % MAX_UJ
            fresh.write_text(f"{value}\n")
            if counter.exists():
                fresh.replace(counter)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
