"""An instance in a process of its own: for what holds the GIL, and for frameworks that have one set
of threads a process.

To the rest of the measured process it is a backend like any other: the instance's thread hands over
a batch and waits, without the GIL. Arrays lie in shared memory, each piece written by one side
alone; JSON lines say what lies where.
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
"""Of each array its name, dtype, shape and first byte."""


class Arena:
    """Arrays in shared memory (a memfd), put there by one process and got by another. It only grows."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None

    def put(self, arrays: Iterable[tuple[str, Any]]) -> Layout:
        """What was put before is overwritten."""
        placed, end = [], 0
        for name, given in arrays:
            array = np.asarray(given)
            if array.dtype.hasobject:
                raise ValueError(f"an array of {array.dtype} cannot leave its process")
            placed.append((name, array, end))
            end += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if end >= os.fstat(self._fd).st_size:  # also at first: nothing cannot be mapped
            os.ftruncate(self._fd, 2 * end + _ALIGNMENT_BYTES)
        layout = [(name, array.dtype.str, array.shape, start) for name, array, start in placed]
        for (_, view), (_, array, _) in zip(self.get(layout), placed, strict=True):
            view[...] = array
        return layout

    def get(self, layout: Layout) -> list[tuple[str, Array]]:
        """Views, good until the other side puts again."""
        size = os.fstat(self._fd).st_size
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._fd, size)  # views of the old one keep it
        return [
            (name, np.ndarray(tuple(shape), np.dtype(dtype), self._map, start))
            for name, dtype, shape, start in layout
        ]


class SeparateInstance:
    """The backend of that name, in another process; see Backend for what its methods do."""

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
        told = self._answer()
        self._about: Mapping[str, object] = told["describe"]
        if told["signature"] is not None:
            found = tuple(TensorSpec(n, dtype, tuple(s)) for n, dtype, s in told["signature"])
            self.signature: Callable[[], tuple[TensorSpec, ...]] = lambda: found
        if told["outputs"] is not None:
            names = tuple(told["outputs"])
            self.outputs: Callable[[], tuple[str, ...]] = lambda: names

    def _answer(self) -> dict[str, Any]:
        """The other side's, or what it raised."""
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
        self._channel.send("infer", indices=list(batch.indices), inputs=layout)
        told = self._answer()
        found = self._outputs.get(told["outputs"])
        if told["kind"] == "named":
            return dict(found)
        arrays = [array for _, array in found]
        return arrays[0] if told["kind"] == "array" else arrays

    def start_run(self) -> None:
        """Nothing is collected there until `end_run`. No batch may be under way, in either."""
        self._channel.send("start_run")
        self._answer()

    def end_run(self) -> int | None:
        """-> the objects in cycles that the run left there; None where the process has ended."""
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
    """Entry of the instance's process."""
    serve(_answer)


def _answer(channel: Channel, *fds: int) -> None:
    """Answer the messages of SeparateInstance until `close`. fds: of the memory for inputs, outputs."""
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
            found = backend.infer(Batch(message["indices"], dict(inputs.get(message["inputs"]))))
            kind, arrays = _apart(found)
            channel.send("answered", kind=kind, outputs=outputs.put(arrays))
        except BaseException as e:  # noqa: BLE001 - raised by SeparateInstance in its process
            channel.send_error(e)


def _hold_garbage() -> int:
    found = gc.collect()
    gc.freeze()  # what is there stays: no later collection looks at it
    gc.disable()
    return found


def _collect_garbage() -> int:
    found = gc.collect()
    gc.enable()
    return found


_COLLECTIONS = {"start_run": _hold_garbage, "end_run": _collect_garbage}


def _loaded(name: str, setup: Mapping[str, Any]) -> Backend:
    model = setup["model"]
    inputs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in setup["inputs"])
    cls = registry.load("backend", name)
    made = BackendSetup(**{**setup, "model": Path(model) if model else None, "inputs": inputs})
    backend: Backend = cls(made).__enter__()
    return backend


def _about(backend: Any) -> dict[str, Any]:
    signature = getattr(backend, "signature", None)
    names = getattr(backend, "outputs", None)
    return {
        "signature": signature() if signature else None,
        "outputs": names() if names else None,
        "describe": json.loads(json.dumps(dict(backend.describe()), default=str)),
    }


def _apart(outputs: Outputs) -> tuple[str, list[tuple[str, Any]]]:
    if isinstance(outputs, Mapping):
        return "named", list(outputs.items())
    if isinstance(outputs, list | tuple):
        return "rows", [("", row) for row in outputs]
    return "array", [("", outputs)]
