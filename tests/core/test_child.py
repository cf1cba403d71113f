"""Child processes run our functions, report their errors, and die with their parent."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.child import Channel, call, connect, serve
from harness.errors import ConfigError, PluginUnavailable

HERE = __name__
ROOT = Path(__file__).parents[2]


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    told = {"text": "a\nb", "size": 1 << 17, "filler": "x" * 70_000}
    ours.send("one", **told)
    ours.send("two")
    assert theirs.receive(1.0) == {"event": "one", **told}
    assert theirs.receive(1.0) == {"event": "two"}


def test_only_receive_reports_that_the_other_end_is_dead(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    theirs.close()
    ours.send("plan", plan={})
    assert ours.receive(1.0) is None


def test_no_message_within_the_time_is_a_timeout(pair: tuple[Channel, Channel]) -> None:
    ours, _theirs = pair
    with pytest.raises(TimeoutError):
        ours.receive(0.01)


def test_a_slow_reader_does_not_cut_the_sender_off() -> None:
    """Bug: a load host was dropped because the coordinator itself was paused after it had read half of a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours, message_limit_s=0.2)
        theirs.sendall(b'{"event": ')
        with pytest.raises(TimeoutError):
            channel.receive(0.01)
        time.sleep(0.3)
        theirs.sendall(b'"one"}\n{"half')
        assert channel.receive(0.01) == {"event": "one"}
        for _ in range(5):  # the message must arrive byte by byte
            theirs.sendall(b" ")
            with pytest.raises(TimeoutError):
                channel.receive(0.01)
        with pytest.raises(ConnectionAbortedError, match=r"was incomplete after 0\.2 s"):
            channel.receive(0.5)


def test_an_error_is_sent_with_its_status_text_and_cause(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    assert ours.send_error(ConfigError("--out is taken")) == 2
    told = {"event": "error", "status": 2, "text": "--out is taken", "trace": ""}
    assert theirs.receive(1.0) == told
    unavailable = PluginUnavailable("it raised")
    unavailable.__cause__ = ValueError("the cause")
    assert ours.send_error(unavailable) == 3
    assert (theirs.receive(1.0) or {})["trace"].endswith("ValueError: the cause\n")
    assert ours.send_error(KeyError("ours")) == 1
    message = theirs.receive(1.0) or {}
    assert (message["status"], message["text"]) == (1, "KeyError: 'ours'")
    assert message["trace"].endswith("KeyError: 'ours'\n")


def echo(request: Mapping[str, Any]) -> Mapping[str, Any]:
    sys.stdout.write("printed\n")
    match request.get("fails"):
        case "user":
            raise ConfigError("the user's")
        case "own":
            raise KeyError("ours")
        case "dies":
            os._exit(7)
        case "hangs":
            time.sleep(60)
        case "result":
            return {"object": object()}
    return request


def test_call_returns_what_the_function_returns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    request = {"a": [1], "filler": "x" * 300_000}
    assert call(f"{HERE}:echo", request, log) == request
    assert call(f"{HERE}:echo", {"b": None}, None) == {"b": None}
    assert log.read_text() == "printed\n"


@pytest.mark.parametrize(
    ("fails", "error", "text"),
    [
        ("user", ConfigError, r"^the user's$"),
        ("own", PluginUnavailable, r"^KeyError: 'ours': see .*log$"),
        ("dies", PluginUnavailable, r":echo ended with status 7: see .*log$"),
        ("hangs", PluginUnavailable, r":echo took longer than 3 s: see .*log$"),
        ("result", PluginUnavailable, r"not JSON serializable: see .*log$"),
    ],
)
def test_call_raises_what_the_function_raises(
    fails: str, error: type[Exception], text: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    limit_s = 3 if fails == "hangs" else None
    with pytest.raises(error, match=text):
        call(f"{HERE}:echo", {"fails": fails}, log, limit_s=limit_s)
    assert ("KeyError: 'ours'\n" in log.read_text()) == (fails == "own")


def test_call_names_a_missing_function(tmp_path: Path) -> None:
    with pytest.raises(PluginUnavailable, match="no attribute 'nosuch': see "):
        call(f"{HERE}:nosuch", {}, tmp_path / "log")


def trace(_request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Makes TensorFlow generate code, and returns the files."""
    import tensorflow as tf

    tf.function(lambda x: x * 2)(1.0)
    return {"files": [str(path) for path in Path(tempfile.gettempdir()).glob("*autograph*")]}


@pytest.mark.slow
def test_generated_code_is_removed_from_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: runs, conversions and points of `machine` left files of AutoGraph in /tmp."""
    pytest.importorskip("tensorflow")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert call(f"{HERE}:trace", {}, None)["files"]
    assert not list(tmp_path.iterdir())


def _send_pid_and_wait(channel: Channel, *fds: int) -> None:
    channel.send("ready", pid=os.getpid(), sizes=[os.fstat(fd).st_size for fd in fds])
    channel.receive()


def main() -> None:
    """Entry point of the child processes that these tests start with `connect`."""
    serve(_send_pid_and_wait)


def test_a_child_gets_the_descriptors_and_ends_when_its_channel_closes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with path.open("rb") as file:
        process, channel = connect(HERE, [file.fileno()])
    with process:
        assert channel.receive(60.0) == {"event": "ready", "pid": process.pid, "sizes": [5]}
        channel.close()
        assert process.wait(60.0) == 0


_STARTS_A_CHILD = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from harness.core.child import connect
process, channel = connect({HERE!r})
print((channel.receive() or {{}}).get("pid"), flush=True)
sys.stdin.read()
"""


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # A stopped process cannot notice that its channel has closed.
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
    deadline_s = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline_s:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # the process is dead, and init has not reaped it yet
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid}").exists()


def _has_pid_namespaces() -> bool:
    words = ["unshare", "--map-root-user", "--pid", "--fork", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(words, check=False).returncode


@pytest.mark.skipif(not _has_pid_namespaces(), reason="no PID namespaces here")
def test_a_child_of_the_first_process_of_a_container_runs() -> None:
    """Bug: a parent with process ID 1 was mistaken for a dead parent."""
    words = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]
    command = [*words, sys.executable, "-c", _STARTS_A_CHILD]
    none = subprocess.DEVNULL
    done = subprocess.run(command, stdin=none, capture_output=True, text=True, check=True)
    assert done.stdout.strip().isdecimal(), done.stderr
