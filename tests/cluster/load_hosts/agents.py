"""Load hosts that a test starts as a user would."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.builders.serving import ROOT


class Host(NamedTuple):
    process: "subprocess.Popen[str]"
    port: int


@contextmanager
def load_host(
    *options: str, under: Sequence[str] = (), host: str = "127.0.0.1", forging: str = ""
) -> Iterator[Host]:
    """under: words before the command. host: the load host's address. forging: how the host falsifies its rows
    (forging_host.py).
    """
    program = ["-m", "harness", "load-host"]
    if forging:
        program = ["-m", "tests.cluster.load_hosts.forging_host", forging]
    command = [*under, sys.executable, *program, "--listen", f"{host}:0", *options]
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
