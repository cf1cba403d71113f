"""The actor on a node of a Ray cluster: starts what is asked of it as a child process, and ends it.

The child dies with the actor, by the kernel, and the actor with the raylet and with the cluster's client.
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
"""An actor goes on for so long without its raylet: a run that is about to end needs it."""


class NodeActor:
    """An actor on a node. Methods take and return JSON, or the bytes of a file."""

    def __init__(self) -> None:
        _forget_rays_threads()
        end_with_raylet()
        self._stack = ExitStack()
        self._command: Command | None = None

    def serve(self, text: str) -> str:
        """Starts `serve --node` on this node's address, or on `host`. Returns its address (`addresses`)."""
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
        """The machine, versions and settings (`environment`), and the named models that are on its disk."""
        from harness.machine.host import fingerprint
        from harness.models.manifest.lookup import load_model, named_models

        models = []
        for name in named_models():
            with suppress(HarnessError):  # its module is not installed here
                if load_model(name).is_here:
                    models.append(name)
        return json.dumps({"address": _address(), "environment": fingerprint(), "models": models})

    def put(self, name: str, data: bytes) -> str:
        """A file for the folder of the command, sealed."""
        put(self._commands().folder, name, unsealed(name, data))
        return "{}"

    def start(self, text: str) -> str:
        """Starts the command (`words`), which leaves its results in `out` of the command's folder."""
        setup = json.loads(text)
        _go_to(setup["cwd"])
        self._commands().start(setup["words"], setup["out"])
        return "{}"

    def state(self, text: str) -> str:
        return json.dumps(self._commands().state(json.loads(text)["log_from"]))

    def read(self, name: str) -> bytes | None:
        """A file of the command's folder, sealed; None where it is there no more."""
        try:
            return sealed(inside(self._commands().folder, name).read_bytes())
        except FileNotFoundError:
            return None

    def clear(self, _text: str) -> str:
        """Removes the command and its folder, so that another one can start."""
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
        """Everything that was started has ended when this returns."""
        self.clear("{}")
        self._stack.close()


def end_with_raylet() -> None:
    """Ends the actor of this process ORPHAN_S after its raylet. Ray 2.60 does not, where the head is gone as well."""
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()


def _end_after(raylet: int) -> None:
    while os.getppid() == raylet:
        time.sleep(1)
    time.sleep(ORPHAN_S)
    os._exit(1)  # the actor's own thread may be waiting for Ray


def _go_to(cwd: str) -> None:
    """Relative paths are as on the driver, if this machine has the folder, too."""
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
    """Unsets OMP_NUM_THREADS where Ray has set it: a model has the threads that it has without Ray."""
    at_start = Path("/proc/self/environ").read_bytes()
    if b"OMP_NUM_THREADS=" not in at_start:
        os.environ.pop("OMP_NUM_THREADS", None)
