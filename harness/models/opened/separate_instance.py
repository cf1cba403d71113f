"""Runs an instance in a process of its own.

This serves backends that hold the GIL, and frameworks that have one thread pool per process. To the rest
of the measured process it is a backend like any other: the instance's thread hands over a batch and
waits, without the GIL. Arrays lie in shared memory, and each part is written by one side only; JSON lines
say which array lies where.
"""

import dataclasses
import gc
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from harness.core import registry
from harness.core.child import Channel, connect, serve
from harness.errors import BY_EXIT_STATUS, PluginUnavailable
from harness.types import Array, Backend, BackendSetup, Batch, Outputs, TensorSpec

_ALIGNMENT_BYTES = 64
_EXIT_LIMIT_S = 10.0

Layout = Sequence[tuple[str, str, Sequence[int], int]]
"""(name, dtype, shape, first byte) of each array."""


class Arena:
    """Arrays in shared memory (a memfd), written by one process and read by another. It only grows."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None

    def put(self, arrays: Iterable[tuple[str, Any]]) -> Layout:
        """Overwrites the arrays of the previous call."""
        placed, end = [], 0
        for name, values in arrays:
            array = np.asarray(values)
            if array.dtype.hasobject:
                raise ValueError(f"an array of {array.dtype} cannot leave its process")
            placed.append((name, array, end))
            end += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if (
            end >= os.fstat(self._fd).st_size
        ):  # also on the first call: an empty file cannot be mapped
            os.ftruncate(self._fd, 2 * end + _ALIGNMENT_BYTES)
        layout = [(name, array.dtype.str, array.shape, start) for name, array, start in placed]
        for (_, view), (_, array, _) in zip(self.get(layout), placed, strict=True):
            view[...] = array
        return layout

    def get(self, layout: Layout) -> list[tuple[str, Array]]:
        """Views, valid until the other side calls `put` again."""
        size = os.fstat(self._fd).st_size
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._fd, size)  # views of the old map keep it alive
        return [
            (name, np.ndarray(tuple(shape), np.dtype(dtype), self._map, start))
            for name, dtype, shape, start in layout
        ]


class SeparateInstance:
    """The backend `name` in another process; harness/types.py, Backend, describes the methods."""

    def __init__(self, name: str, setup: BackendSetup) -> None:
        self._name = name
        self._setup = setup

    def __enter__(self) -> Self:
        self._fds = [os.memfd_create(f"harness-{side}") for side in ("inputs", "outputs")]
        self._process, self._channel = connect(__name__, self._fds)
        self._inputs, self._outputs = (Arena(fd) for fd in self._fds)
        try:
            self._load()
        except BaseException:
            self._end(0)
            raise
        return self

    def _load(self) -> None:
        setup = dataclasses.asdict(self._setup)
        model = self._setup.model
        self._channel.send(
            "load", name=self._name, setup={**setup, "model": str(model) if model else None}
        )
        reply = self._answer()
        self._about: Mapping[str, object] = reply["describe"]
        if reply["signature"] is not None:
            specs = tuple(TensorSpec(n, dtype, tuple(s)) for n, dtype, s in reply["signature"])
            self.signature: Callable[[], tuple[TensorSpec, ...]] = lambda: specs
        if reply["outputs"] is not None:
            names = tuple(reply["outputs"])
            self.outputs: Callable[[], tuple[str, ...]] = lambda: names

    def _answer(self) -> dict[str, Any]:
        """Receives the other process's reply; raises the exception that the other process raised."""
        message = self._channel.receive()
        if message is None:
            status = self._process.wait()
            raise PluginUnavailable(
                f"the process of an instance of backend {self._name!r} ended by itself, with status {status}"
            )
        if message["event"] == "error":
            sys.stderr.write(message["trace"])
            raise BY_EXIT_STATUS.get(message["status"], RuntimeError)(message["text"])
        return message

    def infer(self, batch: Batch) -> Outputs:
        layout = self._inputs.put(batch.inputs.items())
        self._channel.send("infer", size=batch.size, inputs=layout)
        reply = self._answer()
        outputs = self._outputs.get(reply["outputs"])
        if reply["kind"] == "named":
            return dict(outputs)
        arrays = [array for _, array in outputs]
        return arrays[0] if reply["kind"] == "array" else arrays

    def start_run(self) -> None:
        """Stops garbage collection in the other process until `end_run`.

        No batch may be under way when `start_run` or `end_run` is called.
        """
        self._channel.send("start_run")
        self._answer()

    def end_run(self) -> int | None:
        """Returns the number of objects in cycles that the run left; None where the process has ended."""
        self._channel.send("end_run")
        try:
            return int(self._answer()["objects"])
        except PluginUnavailable:
            return None

    def describe(self) -> Mapping[str, object]:
        return {**self._about, "process": "of its own"}

    def __exit__(self, *exc: object) -> None:
        try:
            if self._process.poll() is None:
                self._channel.send("close")
                self._answer()
        finally:
            self._end(_EXIT_LIMIT_S)

    def _end(self, limit_s: float) -> None:
        self._channel.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for fd in self._fds:
            os.close(fd)


def main() -> None:
    """The entry point of the instance's process."""
    serve(_answer)


def _answer(channel: Channel, *fds: int) -> None:
    """Answers the messages of SeparateInstance until `close`. fds: shared memory of inputs, of outputs."""
    inputs, outputs = (Arena(fd) for fd in fds)
    backend: Backend | None = None
    while (message := channel.receive()) is not None:
        try:
            if message["event"] == "load":
                backend = _loaded(message["name"], message["setup"])
                channel.send("loaded", **_about(backend))
                continue
            if message["event"] in _COLLECTIONS:
                channel.send("collected", objects=_COLLECTIONS[message["event"]]())
                continue
            assert backend is not None
            if message["event"] == "close":
                backend.__exit__(None, None, None)
                channel.send("closed")
                break
            answers = backend.infer(Batch(message["size"], dict(inputs.get(message["inputs"]))))
            kind, arrays = _unpacked(answers)
            channel.send("answered", kind=kind, outputs=outputs.put(arrays))
        except BaseException as e:  # noqa: BLE001 - raised by SeparateInstance in its process
            channel.send_error(e)


def _hold_garbage() -> int:
    objects = gc.collect()
    gc.freeze()  # later collections skip the objects that exist now
    gc.disable()
    return objects


def _collect_garbage() -> int:
    objects = gc.collect()
    gc.enable()
    return objects


_COLLECTIONS = {"start_run": _hold_garbage, "end_run": _collect_garbage}


def _loaded(name: str, setup: Mapping[str, Any]) -> Backend:
    model = setup["model"]
    inputs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in setup["inputs"])
    cls = registry.load("backend", name)
    options = {**setup, "model": Path(model) if model else None, "inputs": inputs}
    backend: Backend = cls(BackendSetup(**options)).__enter__()
    return backend


def _about(backend: Any) -> dict[str, Any]:
    signature = getattr(backend, "signature", None)
    names = getattr(backend, "outputs", None)
    return {
        "signature": signature() if signature else None,
        "outputs": names() if names else None,
        "describe": json.loads(json.dumps(dict(backend.describe()), default=str)),
    }


def _unpacked(outputs: Outputs) -> tuple[str, list[tuple[str, Any]]]:
    if isinstance(outputs, Mapping):
        return "named", list(outputs.items())
    if isinstance(outputs, list | tuple):
        return "rows", [("", row) for row in outputs]
    return "array", [("", outputs)]
