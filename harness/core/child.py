"""A function of ours in a process of its own: what it imports and allocates goes with it, and a
framework that takes its process down takes no other.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import BY_EXIT_STATUS, HarnessError, PluginUnavailable, one_line

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); \
from harness.core.child import main; main()"


def call(
    target: str, request: Mapping[str, Any], log: Path, *, under: Sequence[str] = ()
) -> dict[str, Any]:
    """target: 'module:function', from JSON to JSON. log: file for what it prints, appended to.

    under: a command that runs the one behind it, as valgrind does.
    Raises what it raised; a PluginUnavailable where that is no HarnessError, or the process died.
    """
    reader, writer = os.pipe()
    command = [*under, sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), target, str(writer)]
    with os.fdopen(reader, "rb") as answer, log.open("ab") as output:
        try:
            process = subprocess.Popen(
                command,
                pass_fds=(writer,),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(writer)
        with process:
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
                text = answer.read()
            except BaseException:
                process.kill()
                raise
    if not text:
        raise PluginUnavailable(f"{target} ended with status {process.returncode}: see {log}")
    found: dict[str, Any] = json.loads(text)
    if "error" in found:
        error: type[HarnessError] | None = BY_EXIT_STATUS.get(found["status"])
        raise error(found["error"]) if error else PluginUnavailable(f"{found['error']}: see {log}")
    result: dict[str, Any] = found["result"]
    return result


def main() -> None:
    """Entry: argv holds the function and the descriptor for its answer, stdin the request."""
    die_with_parent()
    module, _, name = sys.argv[-2].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        found = {"result": function(json.load(sys.stdin))}
    except HarnessError as e:
        found = {"error": str(e), "status": e.exit_status}
    except BaseException as e:  # noqa: BLE001 - told to the caller
        traceback.print_exc()
        found = {"error": f"{type(e).__name__}: {one_line(e)}", "status": 1}
    sys.stdout.flush()
    with os.fdopen(int(sys.argv[-1]), "wb") as answer:
        answer.write(json.dumps(found).encode())
    os._exit(0)  # no destructors: the frameworks' can hang


class Channel:
    """One end. The other end's death shows as None from `receive`, and nowhere else."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = b""

    def send(self, event: str, **values: Any) -> None:
        with suppress(ConnectionError):
            self._socket.sendall(json.dumps({"event": event, **values}).encode() + b"\n")

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


def die_with_parent() -> None:
    """SIGKILL when the parent dies, however it dies (prctl(2), PR_SET_PDEATHSIG)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the closed socket must do
        return
    if os.getppid() == 1:
        os._exit(1)
