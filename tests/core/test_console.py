"""The stderr of frameworks goes to a log, and the harness's messages reach the user."""

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.core import console
from harness.core.console import frameworks_output, say

ROOT = Path(__file__).parents[2]
CODE = """
import os, subprocess, sys, warnings
from harness.core.console import frameworks_output, say
from harness.errors import ConfigError

def noise():
    os.write(2, b"from C++\\n")
    print("from Python", file=sys.stderr)
    warnings.warn("a warning")
    subprocess.run(["sh", "-c", "echo from a child >&2"], check=True)

error = {error}
try:
    with frameworks_output() as log:
        noise()
        say("for the user")
        if error is not None:
            raise error
        log.seek(0)
        text = log.read().decode()
    print(text)
finally:
    say("afterwards")
    os.write(2, b"C++ again\\n")
"""


def run(error: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", CODE.format(error=error)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_everything_that_frameworks_print_is_in_the_log_and_nowhere_else() -> None:
    """Bug: TensorFlow's C++ warnings appeared between the lines of `pitfalls`."""
    done = run("None")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "harness: for the user\nharness: afterwards\nC++ again\n"
    for text in ("from C++", "from Python", "a warning", "from a child"):
        assert text in done.stdout
    assert "harness" not in done.stdout.replace("harness.", "")


def test_a_bug_prints_the_log_and_a_user_mistake_does_not() -> None:
    done = run("RuntimeError('ours')")
    assert "from C++" in done.stderr
    assert done.stderr.index("from a child") < done.stderr.index("RuntimeError: ours")
    done = run("ConfigError('yours')")
    assert "from C++" not in done.stderr
    assert "ConfigError: yours" in done.stderr


def test_a_stream_in_place_of_stderr_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with frameworks_output():
        before = console.stderr()
        say("one")
    say("two")
    assert before is sys.stderr
    assert console.stderr() is sys.stderr
    assert capsys.readouterr().err == "harness: one\nharness: two\n"


def test_messages_of_a_thread_go_to_its_own_stream(capsys: pytest.CaptureFixture[str]) -> None:
    own = io.StringIO()
    with console.messages_to(own):
        say("here")
        other = threading.Thread(target=say, args=("elsewhere",))
        other.start()
        other.join()
        # Stderr is not a terminal here, so the command shows no progress.
        assert not console.stderr().isatty()
    say("afterwards")
    assert own.getvalue() == "harness: here\n"
    assert capsys.readouterr().err == "harness: elsewhere\nharness: afterwards\n"


def test_an_export_into_a_closed_pipe_ends_without_an_error() -> None:
    command = [sys.executable, "-m", "harness", "export", "tests/golden/runs/server"]
    with subprocess.Popen(
        [*command, "--format", "jsonl"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
