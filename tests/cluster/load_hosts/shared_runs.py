"""Runs whose load several hosts share."""

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.builders.serving import ROOT
from tests.cluster.load_hosts.agents import Host

# These doubts and reasons depend on the load of the machine.
BUSY = {"client-bound", "slo-missed", "early-stopping"}


def words(url: str, out: Path, *more: str) -> list[str]:
    return [
        *("--scenario", "server", "--backend", "kserve", "--url", url, "--model", "digits"),
        *("--no-metrics", "--out", str(out), *more),
    ]


def result_of(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "result.json").read_text())
    return content


def columns_of(out: Path) -> dict[str, Any]:
    with np.load(out / "performance/run_1/completions.npz") as file:
        return dict(file)


class Started:
    """A run in a separate process that has already received its first answers."""

    def __init__(self, url: str, out: Path, *more: str) -> None:
        command = [sys.executable, "-m", "harness", *words(url, out, *more)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.printed = ""

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def until(self, pattern: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.printed += line
            if re.search(pattern, line):
                return
        raise AssertionError(self.printed)

    def hosts(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [c for c in children if "harness.run.measured.process" in c.cmdline()]

    def end(self) -> int:
        assert self.process.stderr is not None
        self.printed += self.process.stderr.read()
        return self.process.wait(60)


def named(*ports: int) -> tuple[str, str]:
    return "--load-hosts", ",".join(f"127.0.0.1:{port}" for port in ports)


def children(host: Host) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(host.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # the child process may just have ended
            if "harness.run.measured.process" in child.cmdline():
                found.append(child)
    return found
