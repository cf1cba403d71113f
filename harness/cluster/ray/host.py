"""The harness's actor on a node of a Ray cluster. The actor starts nodes and commands as child processes, and ends
these processes.

When the actor ends, the kernel ends its child processes. The actor ends together with the raylet or the cluster's
client.
"""

import json
import os
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness.cluster.ray.command import Command, inside, put, sealed, unsealed
from harness.errors import HarnessError, one_line

NODE_MODULE = "harness.serve.node.child"
ORPHAN_S = 30.0
"""The actor outlives its raylet by this time, because a run that is about to end still needs the actor."""


class NodeActor:
    """The harness's actor on a node. Its methods take and return JSON or a file's content."""

    def __init__(self) -> None:
        _forget_rays_threads()
        end_with_raylet()
        self._stack = ExitStack()
        self._command: Command | None = None

    def serve(self, text: str) -> str:
        """Starts `serve --node` at this node's address, or at `host`. Returns the server's address (`addresses`)."""
        from harness.cluster.processes import NodeProcesses

        setup = json.loads(text)
        address = _address()
        _go_to(setup["cwd"])
        try:
            processes = self._stack.enter_context(NodeProcesses(NODE_MODULE))
            host = setup["host"] or address
            processes.start(setup["name"], {"config": setup["config"], "cpus": [], "host": host})
            return json.dumps({"addresses": processes.addresses()})
        except HarnessError as e:
            return _refused(e, address)

    def facts(self, _text: str) -> str:
        """Returns the machine, the versions and settings (`environment`), and which of the requested models are on the
        node's disk.
        """
        from harness.machine.host import fingerprint
        from harness.models.manifest.lookup import load_model, named_models

        models = []
        for name in named_models():
            with suppress(HarnessError):  # the backend's module is not installed on this node
                if load_model(name).is_here:
                    models.append(name)
        return json.dumps({"address": _address(), "environment": fingerprint(), "models": models})

    def put(self, name: str, data: bytes) -> str:
        """Writes a file into the command's folder. data: in the form that `sealed` returns."""
        put(self._commands().folder, name, unsealed(name, data))
        return "{}"

    def start(self, text: str) -> str:
        """Starts the command (`words`), which writes its results to `out` in the command's folder."""
        setup = json.loads(text)
        _go_to(setup["cwd"])
        self._commands().start(setup["words"], setup["out"])
        return "{}"

    def state(self, text: str) -> str:
        return json.dumps(self._commands().state(json.loads(text)["log_from"]))

    def read(self, name: str) -> bytes | None:
        """Returns a file from the command's folder in the form that `sealed` returns, or None if it no longer exists."""
        try:
            return sealed(inside(self._commands().folder, name).read_bytes())
        except FileNotFoundError:
            return None

    def clear(self, _text: str) -> str:
        """Removes the command and its folder, so that the next command can start."""
        if self._command is not None:
            self._command.close()
            self._command = None
        return "{}"

    def interrupt(self, _text: str) -> str:
        self._commands().interrupt()
        return "{}"

    def _commands(self) -> Command:
        if self._command is None:
            self._command = Command()
        return self._command

    def end(self) -> None:
        """Ends all processes that the actor started, and waits until they have ended."""
        self.clear("{}")
        self._stack.close()


def end_with_raylet() -> None:
    """Ends this process's actor ORPHAN_S after the actor's raylet has ended. Ray 2.60 does not end the actor if the
    head is gone, too.
    """
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()


def _end_after(raylet: int) -> None:
    while os.getppid() == raylet:
        time.sleep(1)
    time.sleep(ORPHAN_S)
    os._exit(1)  # `sys.exit` would wait for the actor's thread, which may be blocked in Ray


def _go_to(cwd: str) -> None:
    """Changes to the driver's working directory if this machine has such a folder, so that relative paths have the same
    meaning.
    """
    with suppress(OSError):
        os.chdir(cwd)


def _address() -> str:
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def _refused(error: HarnessError, address: str) -> str:
    refusal: dict[str, Any] = {
        "error": one_line(error),
        "status": error.exit_status,
        "address": address,
    }
    return json.dumps(refusal)


def _forget_rays_threads() -> None:
    """Unsets OMP_NUM_THREADS if Ray has set it, so that a model uses as many threads as it would without Ray."""
    at_start = Path("/proc/self/environ").read_bytes()
    if b"OMP_NUM_THREADS=" not in at_start:
        os.environ.pop("OMP_NUM_THREADS", None)
