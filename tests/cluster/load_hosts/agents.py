"""Load hosts that a test starts, as a user does on each machine."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.serve.test_serve import ROOT


class Host(NamedTuple):
    process: "subprocess.Popen[str]"
    port: int


@contextmanager
def load_host(*options: str, under: Sequence[str] = (), host: str = "127.0.0.1") -> Iterator[Host]:
    """under: begins the command. host: where it listens."""
    command = [*under, sys.executable, "-m", "harness", "load-host", "--listen", f"{host}:0"]
    command += options
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            before, _, port = process.stdout.readline().strip().rpartition(":")
            assert before == f"load host on {host}"
            yield Host(process, int(port))
        finally:
            process.kill()
