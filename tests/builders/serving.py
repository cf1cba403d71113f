"""Runs the verb `serve` in a separate process."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


class Served(NamedTuple):
    process: "subprocess.Popen[str]"
    port: int

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with closing(connection):
            connection.connect()
            yield connection

    def get(self, path: str) -> Any:
        with self.connection() as connection:
            connection.request("GET", path)
            return json.load(connection.getresponse())

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Returns (exit status, text on stderr)."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, errors


@contextmanager
def serving(
    *words: str,
    env: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    host: str = "127.0.0.1",
) -> Iterator[Served]:
    """env: variables added to this process's environment. under: words before the command. host: the server's address."""
    serve = [sys.executable, "-m", "harness", "serve", *words, "--listen", f"{host}:0"]
    command = [*under, *serve]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            if "--grpc" in words:
                assert " on grpc://127.0.0.1:" in line
                line = process.stdout.readline()
            assert line, process.stderr.read()
            before, _, port = line.strip().rpartition(":")
            backend = words[words.index("--backend") + 1]
            named = words[0] == "tinylm" and "--name" in words
            names = words[words.index("--name") + 1].replace(",", ", ") if named else words[0]
            assert before == f"serving {names} ({backend}) on http://{host}"
            yield Served(process, int(port))
        finally:
            process.kill()
