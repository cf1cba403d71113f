"""Runs a worker that shares weights. At its parent's request, the worker opens instances, runs one sample and forks."""

import hashlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.core import registry
from harness.core.child import Channel, serve
from harness.core.config.run_config import from_plain
from harness.core.registry import plugin
from harness.errors import PluginUnavailable
from harness.explain.cold.sharing.adapt import adapt
from harness.explain.cold.trials.process import first_sample
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import model_from_json
from harness.models.opened.loading import open_backends
from harness.types import Backend, Batch

LEAST_WAIT_S = 10.0
"""A forked process must respond within this time plus twenty times the time that its parent took for the sample."""


class Worker:
    """Opens and runs instances of one model; `stack` closes them."""

    def __init__(self, request: Mapping[str, Any], stack: ExitStack) -> None:
        """request: a mapping with `config`, `model`, `path`, `dataset`, `threads`, `runs`, `way` and `folder`."""
        self._request, self._stack = request, stack
        self._config = from_plain(request["config"])
        self._model = model_from_json(request["model"])
        self._instances: list[tuple[Backend, Batch]] = []
        self.took_s = 0.0
        registry.load("backend", self._config.backend)
        adapt(request["way"], self._config.backend, Path(request["folder"]))

    def load(self, answer: Path) -> dict[str, Any]:
        """Opens one more instance and runs the sample on it. Returns times in ns. answer: the file for the answer."""
        path, group = Path(self._request["path"]), InstanceGroup(1, self._request["threads"], 1)
        begun_ns = time.monotonic_ns()
        (backend,) = open_backends(self._config, self._model, path, group, self._stack)
        load_ns = time.monotonic_ns() - begun_ns
        batch, _ = first_sample(self._config, self._model, backend, self._request["dataset"])
        self._instances.append((backend, batch))
        result = {"load_ns": load_ns, **self.run(answer)}
        self.took_s = (time.monotonic_ns() - begun_ns) / 1e9
        return result

    def run(self, answer: Path) -> dict[str, Any]:
        """Runs the sample on the newest instance."""
        backend, batch = self._instances[-1]
        spent_ns: list[int] = []
        outputs: Any = None
        with plugin(f"backend {self._config.backend!r}: infer"):
            for _ in range(1 + self._request["runs"]):
                begun_ns = time.monotonic_ns()
                outputs = backend.infer(batch)
                spent_ns.append(time.monotonic_ns() - begun_ns)
        named = outputs if isinstance(outputs, Mapping) else {"": outputs}
        arrays = [np.ascontiguousarray(named[name]) for name in sorted(named)]
        np.savez(answer, *arrays, allow_pickle=False)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
        return {"first_ns": spent_ns[0], "steady_ns": round(median(spent_ns[1:])), "sha256": digest}

    def fork(self, answer: Path) -> dict[str, Any]:
        """Forks this process.

        The child runs the sample on the instance that was loaded before the fork, and lives until this process ends.
        `pid` in the result is the child's process ID. Raises PluginUnavailable if the child dies or hangs.
        """
        ours, theirs = socket.socketpair()
        begun_ns = time.monotonic_ns()
        pid = os.fork()
        if not pid:
            ours.close()
            self._answer_in_child(Channel(theirs), begun_ns, answer)
        theirs.close()
        channel = Channel(ours)
        try:
            message = channel.receive(LEAST_WAIT_S + 20 * self.took_s)
        except TimeoutError:
            message = {
                "text": "the forked process does not answer, because a fork does not copy the framework's threads"
            }
        if message is None:
            message = {"text": "the forked process dies in its first run"}
        if "text" in message:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise PluginUnavailable(str(message["text"]))
        self._stack.callback(channel.close)
        return {**message["result"], "pid": pid}

    def _answer_in_child(self, channel: Channel, begun_ns: int, answer: Path) -> None:
        """Runs the sample in the child, and never returns. The process ends when the parent closes its end of the
        socket or dies.
        """
        try:
            forked_ns = time.monotonic_ns() - begun_ns
            channel.send("result", result={"load_ns": forked_ns, **self.run(answer)})
            channel.receive()
        except BaseException as e:  # noqa: BLE001 - reported by the parent
            channel.send_error(e)
        finally:
            os._exit(0)


def main() -> None:
    serve(_work)


def _work(channel: Channel) -> None:
    """Handles messages: first `open` with the request, then `load` and `fork` with the file for an answer. The message
    None ends the worker process.
    """
    message = channel.receive()
    if message is None:
        return
    with ExitStack() as stack:
        worker = Worker(message["request"], stack)
        channel.send("result", result={})
        while (message := channel.receive()) is not None:
            act = {"load": worker.load, "fork": worker.fork}[message["event"]]
            channel.send("result", result=act(Path(message["answer"])))
