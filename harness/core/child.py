"""Starts child processes that run a module's `main`, exchanges JSON messages with them, and runs external programs.

A child has the same import path as its parent, in the same order. A child imports from the working directory only if
its parent does.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import IO, Any, NoReturn

from harness.core.console import PROGRAM_VARIABLE, program
from harness.core.shown.secrets import masked_values
from harness.core.signals import Stopped
from harness.errors import BY_EXIT_STATUS, HarnessError, PluginUnavailable, type_and_text

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from importlib import import_module; sys.exit(import_module(sys.argv.pop(1)).main())"
)


def run_program(
    words: Sequence[str],
    limit_s: float | None = None,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Runs an external program without input, and waits until it ends. The result's `stdout` contains both stdout and
    stderr.
    """
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=limit_s,
        start_new_session=start_new_session,
        check=False,
    )


_KILL_AT_END = (
    """while read -r group; do last=$group; done; [ -z "$last" ] || kill -s KILL -- "-$last\""""
)
"""Shell script that reads process group IDs until its pipe is closed, and then kills the last group."""


class Guard:
    """Kills an external program and its children when this process ends for any reason.

    The kernel's signal (`_die_with`) would require an additional Python process per start, between this process and the
    program, and would not reach the program's children. On a system without a shell, the program is not killed.
    """

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._shell = subprocess.Popen(
                ["sh", "-c", _KILL_AT_END],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )

    def watch(self, group: int | None) -> None:
        """group: the process group that is killed from now on, or None after the program has ended."""
        if self._shell is not None and self._shell.stdin is not None:
            with suppress(OSError):
                self._shell.stdin.write(f"{'' if group is None else group}\n".encode())

    def close(self) -> None:
        """Kills the watched process group."""
        if self._shell is not None:
            self._shell.communicate()


class Channel:
    """One end of a connection to another process. `receive` returns None after the other end has closed or died."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        is_child: bool = False,
        message_limit_s: float | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """is_child: whether sent messages may contain texts from outside the harness, in which secrets must be masked.
        message_limit_s: maximum time to wait for the rest of a message after its first byte. most_bytes: maximum
        message size.

        None means no limit. `receive` raises ConnectionAbortedError if the other end exceeds a limit.
        """
        self._socket = sock
        self._is_child = is_child
        self._message_limit_s = message_limit_s
        self._most_bytes = most_bytes
        self._received = bytearray()
        self._waited_s = 0.0  # time spent so far waiting for the rest of a message

    def send(self, event: str, **values: Any) -> None:
        """Sends a message. Does not report that the other end has died; the next `receive` reports it."""
        if self._is_child:
            values = masked_values(values)
        with suppress(ConnectionError):
            self._socket.sendall(json.dumps({"event": event, **values}).encode() + b"\n")

    def send_error(self, error: BaseException) -> int:
        """Sends the message `error` (status, text, trace). Returns the matching exit status.

        For a HarnessError, the trace belongs to the error's cause; without a cause, the trace is "", because the
        message is enough.
        """
        if isinstance(error, HarnessError):
            status, text, cause = error.exit_status, str(error), error.__cause__
        else:
            status, text, cause = 1, type_and_text(error), error
        trace = "".join(traceback.format_exception(cause)) if cause is not None else ""
        self.send("error", status=status, text=text, trace=trace)
        return status

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Returns the next message, or None if the other end has closed the connection.

        Raises TimeoutError if the message is not complete after timeout_s.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        looked = 0
        while (end := self._received.find(b"\n", looked)) < 0:
            looked = len(self._received)
            if self._most_bytes is not None and looked > self._most_bytes:
                raise ConnectionAbortedError(f"a message is longer than {self._most_bytes:,} bytes")
            asked_s = time.monotonic()
            self._socket.settimeout(self._left_s(deadline_s, asked_s))
            try:
                chunk: bytes | None = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            except (BlockingIOError, TimeoutError):
                chunk = None
            if looked:
                self._waited_s += time.monotonic() - asked_s
            if chunk is None:
                raise self._too_late()
            if not chunk:
                return None
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._waited_s = 0.0
        message: dict[str, Any] = json.loads(line)
        return message

    def _left_s(self, deadline_s: float | None, now_s: float) -> float | None:
        """Returns how long to wait for the next bytes; None if no limit applies."""
        limits_s = [] if deadline_s is None else [deadline_s - now_s]
        if self._message_limit_s is not None and self._received:
            limits_s.append(self._message_limit_s - self._waited_s)
        return max(0.0, min(limits_s)) if limits_s else None

    def _too_late(self) -> Exception:
        """Returns the error to raise if no byte arrives in time. Only time spent inside `receive` counts towards the
        message limit.
        """
        limit_s = self._message_limit_s
        if limit_s is not None and self._waited_s >= limit_s:
            return ConnectionAbortedError(f"a message was incomplete after {limit_s:g} s")
        return TimeoutError()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def start(
    module: str,
    words: Sequence[str] = (),
    *,
    fds: Sequence[int] = (),
    log: IO[bytes] | None = None,
    under: Sequence[str] = (),
    new_session: bool = False,
    env: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Starts a child process that runs `module.main()` and exits with the status that `main` returns.

    words: the child's sys.argv[1:]. fds: file descriptors that the child inherits. log: file for the child's stdout and
    stderr; None means the parent's stdout and stderr. under: a command such as valgrind, which must execute the words
    after it without a fork. new_session: whether Ctrl-C in the terminal reaches only the parent. env: the child's
    environment variables; None means the parent's variables.
    """
    return subprocess.Popen(
        [*under, sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), module, *words],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=None if log is None else subprocess.STDOUT,
        start_new_session=new_session,
        env={**(os.environ if env is None else env), PROGRAM_VARIABLE: program()},
    )


LOOK_EVERY_S = 0.5
STOP_LIMIT_S = 60.0
"""A stopped program gets this long to save its files, in s."""


def wait(
    process: "subprocess.Popen[bytes]",
    look: Callable[[float], None],
    stop: signal.Signals = signal.SIGTERM,
) -> int:
    """Waits for a program that saves its files when it is stopped. Returns its exit status.

    look: called twice a second with the elapsed seconds. stop: signal that is sent to the program if this process is
    stopped. If this process was stopped, raises Stopped once the program has ended.
    """
    began_s = time.monotonic()
    try:
        while True:
            look(time.monotonic() - began_s)
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_EVERY_S)
    except Stopped:
        with suppress(ProcessLookupError):
            process.send_signal(stop)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def connect(
    module: str,
    fds: Sequence[int] = (),
    *,
    log: IO[bytes] | None = None,
    under: Sequence[str] = (),
    new_session: bool = False,
    env: Mapping[str, str] | None = None,
) -> "tuple[subprocess.Popen[bytes], Channel]":
    """Starts a child process whose `main` calls `serve`, with `fds` in this order. For the other parameters, see
    `start`.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        passed = (theirs.fileno(), *fds)
        words = [str(number) for number in (os.getpid(), *passed)]
        try:
            process = start(
                module, words, fds=passed, log=log, under=under, new_session=new_session, env=env
            )
        except BaseException:
            ours.close()
            raise
    return process, Channel(ours)


def serve(work: Callable[..., None]) -> NoReturn:
    """Runs `work(channel, *fds)` in the child process that `connect` started, and ends the process.

    The process ends when its parent dies. An error is sent as the message `error` and sets the exit status.
    """
    parent, number, *fds = map(int, sys.argv[1:])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process like any other signal
    channel = Channel(socket.socket(fileno=number), is_child=True)
    status = 0
    try:
        work(channel, *fds)
    except BaseException as e:  # noqa: BLE001 - shown by the parent
        status = channel.send_error(e)
    end_process(status)


def end_process(status: int) -> NoReturn:
    """Ends this process without running destructors, because destructors in LoadGen and the frameworks may hang."""
    with suppress(OSError):
        sys.stdout.flush()
    _remove_generated_code()
    os._exit(status)


def _remove_generated_code() -> None:
    """Removes the Python files that TensorFlow's AutoGraph generates, because AutoGraph removes them only when the
    interpreter ends normally.
    """
    for name, module in [*sys.modules.items()]:
        path = getattr(module, "__file__", None)
        if name.startswith("__autograph_generated_file") and path:
            for file in (Path(path), Path(cache_from_source(path))):
                with suppress(OSError):
                    file.unlink()
            # The folder may not be empty, because other processes keep files there.
            with suppress(OSError):
                Path(cache_from_source(path)).parent.rmdir()


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies for any reason.

    Source: prctl(2), PR_SET_PDEATHSIG. parent: the parent's process ID, which may be 1 in a container.
    """
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # Outside Linux, the child ends when its socket is closed.
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # the parent died before prctl, so no signal will arrive
        os._exit(1)


def call(
    target: str,
    request: Mapping[str, Any],
    log: Path | None,
    *,
    under: Sequence[str] = (),
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Calls a function in a child process, so that a framework's memory, threads and crashes end
    with that process.

    target: 'module:function', where the function takes and returns a JSON object. log: file to which the child's output
    is appended, or None to discard the output. under: see `start`. limit_s: time after which the child is killed.
    Raises the function's HarnessError. Raises a PluginUnavailable for any other error, or if the child dies or takes
    too long.
    """
    hint = "" if log is None else f": see {log}"
    with (log or Path(os.devnull)).open("ab") as output:
        process, channel = connect(__name__, log=output, under=under)
        with process, closing(channel):
            try:
                channel.send("call", target=target, request=request)
                message = channel.receive(limit_s)
            except TimeoutError:
                process.kill()
                raise PluginUnavailable(f"{target} took longer than {limit_s} s{hint}") from None
            except BaseException:
                process.kill()
                raise
        if message is None:
            raise PluginUnavailable(f"{target} ended with status {process.returncode}{hint}")
        if message["event"] == "error":
            output.write(message["trace"].encode())
            error = BY_EXIT_STATUS.get(message["status"])
            raise error(message["text"]) if error else PluginUnavailable(message["text"] + hint)
    result: dict[str, Any] = message["result"]
    return result


def main() -> None:
    serve(_answer)


def _answer(channel: Channel) -> None:
    message = channel.receive()
    if message is None:
        return
    module, _, name = message["target"].partition(":")
    function = getattr(importlib.import_module(module), name)
    channel.send("result", result=function(message["request"]))
