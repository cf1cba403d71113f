"""Starts child processes that run `main` of a module, and exchanges JSON messages with them.

A child imports what its parent could import, in the same order, and nothing from the folder the
command was typed in that its parent would not have found there.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from harness.core.console import PROGRAM_VARIABLE, program
from harness.core.shown.secrets import masked_values
from harness.errors import BY_EXIT_STATUS, HarnessError, PluginUnavailable, type_and_text

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from importlib import import_module; sys.exit(import_module(sys.argv.pop(1)).main())"
)


_KILL_AT_END = (
    """while read -r group; do last=$group; done; [ -z "$last" ] || kill -s KILL -- "-$last\""""
)
"""Reads process groups until the pipe closes, as it does when its writer ends, and kills the last one."""


class Guard:
    """Kills a foreign program and its children when this process ends, however it ends.

    The kernel's own way (`serve`) would need Python between this process and the program, at each start, and
    would spare the children. Without a shell in the system nothing is guarded.
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
        """group: the process group to kill from now on; None: it has ended."""
        if self._shell is not None and self._shell.stdin is not None:
            with suppress(OSError):
                self._shell.stdin.write(f"{'' if group is None else group}\n".encode())

    def close(self) -> None:
        """Kill what is watched."""
        if self._shell is not None:
            self._shell.communicate()


class Channel:
    """One end of a connection. `receive` returns None once the other end has closed or died."""

    def __init__(self, sock: socket.socket, *, is_child: bool = False) -> None:
        """is_child: what is sent holds texts from outside, in which secrets are masked."""
        self._socket = sock
        self._is_child = is_child
        self._received = b""

    def send(self, event: str, **values: Any) -> None:
        """Send a message. The death of the other end is left to `receive`."""
        if self._is_child:
            values = masked_values(values)
        with suppress(ConnectionError):
            self._socket.sendall(json.dumps({"event": event, **values}).encode() + b"\n")

    def send_error(self, error: BaseException) -> int:
        """Send the message `error` (status, text, trace); returns the exit status that fits it.

        The trace of a HarnessError is that of its cause, or "": its own text says enough.
        """
        if isinstance(error, HarnessError):
            status, text, cause = error.exit_status, str(error), error.__cause__
        else:
            status, text, cause = 1, type_and_text(error), error
        trace = "".join(traceback.format_exception(cause)) if cause is not None else ""
        self.send("error", status=status, text=text, trace=trace)
        return status

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None when the other end has closed. TimeoutError after timeout_s."""
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._received:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            except BlockingIOError:
                raise TimeoutError from None
            if not chunk:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

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
    """Start a child process that runs `module.main()` and exits with the status `main` returns.

    words: the child's sys.argv[1:].
    fds: descriptors the child inherits.
    log: file for what the child prints, on stdout and stderr; None: the parent's own.
    under: a command that turns into the one after it without a fork, as valgrind does.
    new_session: Ctrl-C in the terminal reaches the parent only.
    env: the child's environment variables; None: the parent's.
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


def connect(
    module: str,
    fds: Sequence[int] = (),
    *,
    log: IO[bytes] | None = None,
    under: Sequence[str] = (),
    new_session: bool = False,
    env: Mapping[str, str] | None = None,
) -> "tuple[subprocess.Popen[bytes], Channel]":
    """Start a child process whose `main` calls `serve`, with `fds` in this order; the rest: as `start`."""
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
    """Run `work(channel, *fds)` in the child process that `connect` started, and end the process.

    The process dies with its parent. An error becomes the message `error` and the exit status.
    """
    parent, number, *fds = map(int, sys.argv[1:])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process as any other signal does
    channel = Channel(socket.socket(fileno=number), is_child=True)
    status = 0
    try:
        work(channel, *fds)
    except BaseException as e:  # noqa: BLE001 - shown by the parent
        status = channel.send_error(e)
    end_process(status)


def end_process(status: int) -> NoReturn:
    """Ends this process without destructors: LoadGen's and the frameworks' can hang."""
    with suppress(OSError):
        sys.stdout.flush()
    _remove_generated_code()
    os._exit(status)


def _remove_generated_code() -> None:
    """Removes the files of Python that TensorFlow's AutoGraph wrote; it would do so when the interpreter ends."""
    for name, module in [*sys.modules.items()]:
        path = getattr(module, "__file__", None)
        if name.startswith("__autograph_generated_file") and path:
            with suppress(OSError):
                Path(path).unlink()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however the parent dies.

    Source: prctl(2), PR_SET_PDEATHSIG. parent: its process ID, which may be 1 in a container.
    """
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the closed socket must do
        return
    if os.getppid() != parent:  # died before the call
        os._exit(1)


def call(
    target: str,
    request: Mapping[str, Any],
    log: Path | None,
    *,
    under: Sequence[str] = (),
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Call a function in a child process, so that memory, threads and crashes of a framework end
    with that process.

    target: 'module:function', from a JSON object to a JSON object.
    log: file that what the child prints is appended to; None: its output is thrown away.
    under: as in `start`. limit_s: the child is killed after this time.
    Raises the function's HarnessError; a PluginUnavailable for any other error, and where the child
    dies or takes too long.
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
