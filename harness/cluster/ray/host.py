"""The actor on a node of a Ray cluster: starts what is asked of it as a child process, and ends it.

The child dies with the actor, by the kernel, and the actor with the raylet and with the cluster's client.
"""

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness.cluster.ray.command import Command, inside, put
from harness.errors import HarnessError, one_line

HOST_MODULE = "harness.serve.node.child"


class Host:
    """One on a node, which has all its processors. Its methods take and return JSON."""

    def __init__(self) -> None:
        _forget_rays_threads()
        self._stack = ExitStack()
        self._command: Command | None = None

    def serve(self, text: str) -> str:
        """Starts `serve --node` on this node's address. Returns its address (`addresses`)."""
        from harness.cluster.processes import HostProcesses

        setup = json.loads(text)
        address = _address()
        with suppress(
            OSError
        ):  # relative paths are as on the driver, where the folder is on this disk, too
            os.chdir(setup["cwd"])
        try:
            hosts = self._stack.enter_context(HostProcesses(HOST_MODULE))
            hosts.start(setup["name"], {"config": setup["config"], "cpus": [], "host": address})
            return json.dumps({"addresses": hosts.addresses()})
        except HarnessError as e:
            return _refused(e, address)

    def facts(self, _text: str) -> str:
        """The machine, versions and settings (`environment`), and the named models that are on its disk."""
        from harness.machine.host import fingerprint
        from harness.models.manifest.lookup import load_model, named_models

        models = [name for name in named_models() if load_model(name).is_here]
        told = {"address": _address(), "environment": fingerprint(), "models": models}
        return json.dumps(told)

    def put(self, name: str, content: bytes) -> str:
        """A file for the folder of the command."""
        put(self._commands().folder, name, content)
        return "{}"

    def start(self, text: str) -> str:
        setup = json.loads(text)
        with suppress(OSError):
            os.chdir(setup["cwd"])
        self._commands().start(setup["words"], setup["out"])
        return "{}"

    def state(self, text: str) -> str:
        return json.dumps(self._commands().state(json.loads(text)["log_from"]))

    def read(self, name: str) -> bytes | None:
        """A file of the command's folder; None where it is there no more."""
        try:
            return inside(self._commands().folder, name).read_bytes()
        except FileNotFoundError:
            return None

    def interrupt(self, _text: str) -> str:
        self._commands().interrupt()
        return "{}"

    def _commands(self) -> Command:
        if self._command is None:
            self._command = Command()
            self._stack.callback(self._command.close)
        return self._command

    def end(self) -> None:
        """Everything that was started has ended when this returns."""
        self._stack.close()


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
