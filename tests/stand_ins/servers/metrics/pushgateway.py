"""A real Pushgateway for tests: from PATH, or from Debian's package without installation."""

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stand_ins.servers.metrics.prometheus_server import free_port, unpacked

PROGRAM = "prometheus-pushgateway"


def program(folder: Path) -> Path:
    """Returns the path of the Pushgateway; skips the test if none is installed."""
    for name in ("pushgateway", PROGRAM):
        if found := shutil.which(name):
            return Path(found)
    return unpacked(PROGRAM, folder) / PROGRAM


@contextmanager
def pushgateway(folder: Path) -> Iterator[str]:
    """Yields the address of a Pushgateway."""
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        words = [str(program(folder)), f"--web.listen-address={address}"]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                pushed(f"http://{address}")
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def pushed(url: str) -> str:
    """Returns the page that Prometheus would scrape."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")
