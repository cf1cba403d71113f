"""Runs an instance in a separate process.

Backends that hold the GIL, and frameworks with only one thread pool per process, need a separate process. The measured
process
uses the instance like any other backend: the instance's thread sends a batch and waits without the GIL. Arrays are in
shared memory, and only one process writes to each part. JSON lines describe the position of each array in the shared
memory.
"""

import dataclasses
import gc
import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np

from harness.core import registry
from harness.core.child import Channel, connect, serve
from harness.errors import BY_EXIT_STATUS, PluginUnavailable
from harness.types import Array, Backend, BackendSetup, Batch, Outputs, TensorSpec

_ALIGNMENT_BYTES = 64
_EXIT_LIMIT_S = 10.0
_PRINTED_LIMIT_S = 1.0
"""After the instance's process has ended, its last output is read for at most this time, because a child may keep the
pipe open.
"""

_CONFINED = "harness.models.opened.confined_instance"

Layout = Sequence[tuple[str, str, Sequence[int], int]]
"""(name, dtype, shape, first byte) of each array."""


class Arena:
    """Arrays in shared memory (a memfd), written by one process and read by another. The memory never shrinks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None

    def put(self, arrays: Iterable[tuple[str, Any]]) -> Layout:
        """Stores arrays in place of the previous call's arrays. Returns the positions of the arrays."""
        placed, end = [], 0
        for name, values in arrays:
            array = np.asarray(values)
            if array.dtype.hasobject:
                raise ValueError(f"an array of {array.dtype} cannot be sent to another process")
            placed.append((name, array, end))
            end += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        # The condition is always true on the first call, because an empty file cannot be mapped.
        if end >= os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, 2 * end + _ALIGNMENT_BYTES)
        layout = [(name, array.dtype.str, array.shape, start) for name, array, start in placed]
        for (_, view), (_, array, _) in zip(self.get(layout), placed, strict=True):
            view[...] = array
        return layout

    def get(self, layout: Layout) -> list[tuple[str, Array]]:
        """Returns views that stay valid until the other process calls `put` again.

        layout: the positions that the other process sent. Raises ValueError if a view would lie outside the shared
        memory.
        """
        size = os.fstat(self._fd).st_size
        if self._map is None or len(self._map) < size:
            # arrays that are views of the old map keep the old map alive
            self._map = mmap.mmap(self._fd, size)
        if any(start < 0 or np.dtype(dtype).hasobject for _, dtype, _, start in layout):
            raise ValueError("the other process sent an array that is not in shared memory")
        return [
            (name, np.ndarray(tuple(shape), np.dtype(dtype), self._map, start))
            for name, dtype, shape, start in layout
        ]


class Declared(NamedTuple):
    """Attributes that a backend's class declares."""

    formats: tuple[str, ...]
    """Formats of model files that the backend reads, preferred first."""
    of_one_process: tuple[str, ...]
    """The backend's options that have no effect between processes."""
    holds_gil: bool
    """Whether the framework keeps Python's GIL while it computes."""


class SeparateInstance:
    """The backend `name` in a separate process. The class Backend in harness/types.py describes the methods."""

    def __init__(self, name: str, setup: BackendSetup) -> None:
        self._name = name
        self._setup = setup
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._start()
        try:
            self._load()
        except BaseException:
            self._end(0)
            raise
        return self

    def _start(self) -> None:
        self._fds = [os.memfd_create(f"harness-{side}") for side in ("inputs", "outputs")]
        confined = registry.is_foreign("backend", self._name)
        start = self._start_confined if confined else partial(connect, __name__)
        self._process, self._channel = start(self._fds)
        self._inputs, self._outputs = (Arena(fd) for fd in self._fds)

    def _start_confined(self, fds: Sequence[int]) -> "tuple[subprocess.Popen[bytes], Channel]":
        """Starts the process with a pipe for its output. A pipe is used because a file's path would show where
        LoadGen's logs are, and whether the current run is the accuracy run.
        """
        folder = self._stack.enter_context(
            TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True)
        )
        read, write = os.pipe()
        printing = threading.Thread(target=_print, args=(read,), daemon=True)
        printing.start()
        self._stack.callback(printing.join, _PRINTED_LIMIT_S)
        with os.fdopen(write, "wb") as log:
            return connect(_CONFINED, fds, log=log, env={**os.environ, "TMPDIR": folder})

    def declared(self) -> Declared:
        """Starts the process only to read the declarations in the backend's class. Raises the backend's import errors."""
        self._start()
        try:
            self._channel.send("declare", name=self._name)
            reply = self._answer()
        finally:
            self._end(_EXIT_LIMIT_S)
        return Declared(
            tuple(reply["formats"]), tuple(reply["of_one_process"]), bool(reply["holds_gil"])
        )

    def _load(self) -> None:
        setup = dataclasses.asdict(self._setup)
        model = self._setup.model
        self._channel.send(
            "load", name=self._name, setup={**setup, "model": str(model) if model else None}
        )
        reply = self._answer()
        self._about: Mapping[str, object] = {**reply["describe"], "process": "of its own"}
        if reply["writes"]:
            self._about |= {"writes": reply["writes"]}
        if reply["signature"] is not None:
            specs = tuple(TensorSpec(n, dtype, tuple(s)) for n, dtype, s in reply["signature"])
            self.signature: Callable[[], tuple[TensorSpec, ...]] = lambda: specs
        if reply["outputs"] is not None:
            names = tuple(reply["outputs"])
            self.outputs: Callable[[], tuple[str, ...]] = lambda: names

    def _answer(self) -> dict[str, Any]:
        """Receives the reply of the other process. If the other process raised an exception, raises the exception in
        this process.
        """
        message = self._channel.receive()
        if message is None:
            status = self._process.wait()
            raise PluginUnavailable(
                f"a process that ran an instance of backend {self._name!r} ended by itself, with status {status}"
            )
        if message["event"] == "error":
            sys.stderr.write(message["trace"])
            raise _error(message["status"], message["text"])
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

        `start_run` and `end_run` must not be called during a batch.
        """
        self._channel.send("start_run")
        self._answer()

    def end_run(self) -> int | None:
        """Returns the number of objects in reference cycles that remain after the run, or None if the process has
        ended.
        """
        self._channel.send("end_run")
        try:
            return int(self._answer()["objects"])
        except PluginUnavailable:
            return None

    def describe(self) -> Mapping[str, object]:
        return self._about

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
        self._stack.close()
        for fd in self._fds:
            os.close(fd)


@cache
def declared(name: str) -> Declared:
    """Reads the declarations in the class of the backend `name` in a separate process, because the backend's code must
    not run in this process.
    """
    return SeparateInstance(name, BackendSetup(model=None, model_name="")).declared()


def _print(read: int) -> None:
    """Copies the pipe to stderr until all writers have closed the pipe."""
    with os.fdopen(read, "rb", buffering=0) as printed:
        while chunk := printed.read(1 << 16):
            os.write(2, chunk)


def _error(status: int, text: str) -> BaseException:
    """Returns the error that the other process raised. An error that is not a HarnessError keeps its class name."""
    known = BY_EXIT_STATUS.get(status)
    if known is not None:
        return known(text)
    name, _, text = text.partition(": ")
    error: BaseException = type(name, (RuntimeError,), {"__module__": "builtins"})(text)
    return error


def main(writes: str = "") -> None:
    """Runs the instance's process. writes: the only folder to which the process may write, or "" for no limit."""
    serve(partial(_answer, writes))


def _answer(writes: str, channel: Channel, *fds: int) -> None:
    """Handles the messages of SeparateInstance until `close`. fds: shared memory of the inputs and the outputs."""
    inputs, outputs = (Arena(fd) for fd in fds)
    backend: Backend | None = None
    while (message := channel.receive()) is not None:
        try:
            if message["event"] == "declare":
                channel.send("declared", **declared_by(message["name"])._asdict())
                continue
            if message["event"] == "load":
                backend = _loaded(message["name"], message["setup"])
                channel.send("loaded", **_about(backend), writes=writes)
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


def declared_by(name: str) -> Declared:
    """Imports the backend `name` and returns the declarations in the backend's class."""
    cls = registry.load("backend", name)
    return Declared(
        tuple(getattr(cls, "formats", ())),
        tuple(getattr(cls, "of_one_process", ())),
        bool(getattr(cls, "holds_gil", False)),
    )


def _hold_garbage() -> int:
    objects = gc.collect()
    gc.freeze()  # the garbage collector no longer scans the objects that exist before the run
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
    backend: Backend = registry.entered(name, cls(BackendSetup(**options)).__enter__())
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
