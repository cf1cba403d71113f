"""Runs the real command in a separate process, and checks the conditions that hold however the command ends."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cli.main import main
from harness.results.recheck import check

ROOT = Path(__file__).parent.parent.parent
FAULTY = Path(__file__).parent / "faulty.py"
DATA = Path(__file__).parent / "data/faulty_data.py"
LIMIT_S = 300
"""Time limit for any command. On a busy machine, an official accuracy run takes half of this time."""

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
SERVER = ("--scenario", "server")
SHORT = ("--target-qps", "500", "--queries", "700", "--slo", "p99=2s")
"""With 700 queries, p99 allows one late query, and the run takes 1.4 s. Even a busy machine meets the bound of 2 s."""

SOON = ("--hang-timeout", "6s")
"""Time after which a step counts as blocked; a shorter time would also catch the start of a run on a busy machine."""


_PROGRESS = re.compile(
    r"harness: ((performance|accuracy|answers)(:| \d+ %)|loading the|warm-up and|measuring the machine|scoring the|"
    r"computing the|drawing the).*\n"
)
"""Lines that are printed if a step takes more than 5 s, as on a busy machine."""


def only_all(*values: Any) -> list[Any]:
    """Returns rows that only `./test.sh --all` runs; `./test.sh` runs one row of each kind."""
    several = [v if isinstance(v, tuple) else (v,) for v in values]
    return [pytest.param(*v, marks=pytest.mark.slow) for v in several]


class Ended(NamedTuple):
    status: int
    printed: str
    said: str

    @property
    def first_line(self) -> str:
        return next((x for x in self.said.splitlines() if "SLO" not in x), "")


def _without_port(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Turns the metrics port off, because another run on this machine may use it."""
    if arguments and arguments[0].startswith("-") and "--metrics" not in arguments:
        return (*arguments, "--no-metrics")
    return arguments


def start(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    default_port: bool = False,
) -> "subprocess.Popen[str]":
    if not default_port:
        arguments = _without_port(arguments)
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "harness", *arguments],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> Ended:
    """Waits until the process ends; only a bug in the harness may print a traceback."""
    printed, said = process.communicate(timeout=LIMIT_S)
    assert "Traceback" not in said, said
    return Ended(process.returncode, printed, _PROGRESS.sub("", said))


def run(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    default_port: bool = False,
) -> Ended:
    return ended(start(*arguments, env=env, prefix=prefix, default_port=default_port))


def run_here(*arguments: str) -> Ended:
    """Runs a command that is refused before the run, in this process because a new process takes a second to start."""
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as said:
        status = main([*_without_port(arguments)])
    assert "Traceback" not in said.getvalue(), said.getvalue()
    return Ended(status, printed.getvalue(), _PROGRESS.sub("", said.getvalue()))


def run_faulty(name: str, out: Path, *more: str) -> Ended:
    """Starts a short Server run with the backend of this name in faulty.py."""
    done = run(*SERVER, "--backend", f"{FAULTY}:{name}", "--out", str(out), *SHORT, *more)
    assert_nothing_left(out)
    return done


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


def codes(folder: Path) -> list[str]:
    """Returns the codes of the reasons in a run that must be INVALID, both in its result and according to `check`."""
    content = result(folder)
    assert content["verdict"] == "INVALID"
    found = [r["code"] for r in content["reasons"]]
    if (folder / "config.yaml").is_file() and "not-saved" not in found:
        assert check(folder) == []
    return found


def doubts(folder: Path) -> list[str]:
    return [d["code"] for d in result(folder)["doubts"]]


def wait_until_it_runs(process: "subprocess.Popen[str]", folder: Path) -> None:
    """Waits until LoadGen opens its log, and half a second longer for the first answers."""
    log = folder / "performance/run_1/mlperf_log_detail.txt"
    deadline = time.monotonic() + 30
    while not (log.is_file() and log.stat().st_size):
        assert process.poll() is None, "ended before its run began"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pids: Sequence[int]) -> bool:
    """Returns whether all of these processes end within ten seconds."""
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def unprivileged(folder: Path) -> None:
    """Lets the user NOBODY work in `folder`, or skips the test if this is impossible."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    readable = subprocess.run(
        [*NOBODY, "test", "-r", str(ROOT / "pyproject.toml"), "-a", "-x", sys.executable],
        check=False,
    )
    if readable.returncode:
        pytest.skip("the checkout or the interpreter is not readable for others")
    folder.chmod(0o777)
    for above in folder.parents:
        if above == Path(tempfile.gettempdir()) or not above.is_relative_to(tempfile.gettempdir()):
            break
        above.chmod(0o755)


def assert_nothing_left(out: Path) -> None:
    """Checks that no measured process still works in the run's folder."""
    left = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        pid = int(entry.parent.name)
        try:
            words = (entry.parent / "cmdline").read_bytes()
            open_files = [str(f.readlink()) for f in (entry.parent / "fd").iterdir()]
        except OSError:
            continue
        if b"harness.run.measured.process" in words and any(str(out) in f for f in open_files):
            left.append(pid)
    assert left == []
