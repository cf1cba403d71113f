"""Measures the constants of the benefit estimate on this machine, and the time that sharing a model saves."""

import mmap
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness.core.child import connect
from harness.core.formats.onnx_tensors import initializers
from harness.errors import PluginUnavailable
from harness.explain.cold.benefit.estimate import Constants, benefit_ns
from harness.explain.cold.benefit.owner import ASK, RETURNED
from harness.explain.cold.sharing.memory import pss_bytes
from harness.explain.cold.trials import page_cache
from harness.explain.stored import EXTERNAL_FROM_BYTES
from harness.models.manifest.files import files_of

_OWNER = "harness.explain.cold.benefit.owner"
_OBJECT_BYTES, _OBJECTS = 1 << 20, 64
_ROUNDS = 9
"""Each time is measured in this many rounds. The shortest time of all rounds is used, because other processes can only
add time.
"""


class Pass(NamedTuple):
    """Times of one pass over all objects, in ns; each field is (n,)."""

    given_ns: list[int]
    """Time to request, receive, map and later return each object."""
    touched_ns: list[int]
    """Time to touch the first byte of each object."""


def benefit(path: Path, folder: Path) -> dict[str, Any]:
    """Returns the estimate for the model file `path`, and measurements. folder: place for a file of 64 MiB.

    saved_ns: time to read all objects minus time to share them. Each time is the shortest of all rounds. predicted_ns:
    rho.
    owner_bytes: memory of a process that owns the weights, excluding the weights.
    """
    constants = measure_constants(folder)
    sizes_bytes, granularity = objects(path)
    files = files_of(path).values()
    page_cache.read(files)
    with _owner(sizes_bytes) as (owner, owner_bytes):
        passes = [_share(owner, sizes_bytes) for _ in range(_ROUNDS)]
    shared_ns = sum(_least(one.given_ns for one in passes)) + sum(
        _least(one.touched_ns for one in passes)
    )
    read_ns = sum(_least(_read_ns(files, sizes_bytes) for _ in range(_ROUNDS)))
    return {
        **constants._asdict(),
        "even_bytes": constants.even_bytes,
        "objects": len(sizes_bytes),
        "bytes": sum(sizes_bytes),
        "granularity": granularity,
        "owner_bytes": owner_bytes,
        "predicted_ns": benefit_ns(sizes_bytes, constants),
        "saved_ns": read_ns - shared_ns,
        "read_ns": read_ns,
        "shared_ns": shared_ns,
    }


def objects(path: Path) -> tuple[list[int], str]:
    """Returns the sizes of the shared objects in bytes. The objects are the weight tensors of an ONNX file, or whole
    files for other formats.
    """
    try:
        sizes = [len(tensor.raw) for tensor in initializers(path)]
    except (OSError, ValueError):
        sizes = []
    if large := [size for size in sizes if size >= EXTERNAL_FROM_BYTES]:
        return large, "tensor"
    return [file.stat().st_size for file in files_of(path).values()], "file"


def measure_constants(folder: Path) -> Constants:
    """Measures the constants. folder: place for a file of 64 MiB, which is then read from the page cache."""
    file = folder / "block"
    sizes = [_OBJECT_BYTES] * _OBJECTS
    file.write_bytes(bytes(sum(sizes)))
    reads = [_read_ns([file], sizes) for _ in range(_ROUNDS)]
    file.unlink()
    with _owner(sizes) as (owner, _):
        passes = [_share(owner, sizes) for _ in range(_ROUNDS)]
    return Constants(
        read_bytes_per_s=_OBJECT_BYTES / median(_least(reads)) * 1e9,
        given_ns=median(_least(one.given_ns for one in passes)),
        touched_ns=median(_least(one.touched_ns for one in passes)),
    )


def _least(rounds: Iterable[Sequence[int]]) -> list[int]:
    """Returns the shortest time of each object over all rounds."""
    return [min(times) for times in zip(*rounds, strict=True)]


@contextmanager
def _owner(sizes_bytes: Sequence[int]) -> Iterator[tuple[socket.socket, int]]:
    """Runs a process that owns objects of these sizes.

    Yields the socket from which the objects are requested, and the memory (PSS) of the process without the objects.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process, channel = connect(_OWNER, (theirs.fileno(),))
        with process, closing(channel):
            try:
                channel.send("own", sizes_bytes=list(sizes_bytes))
                message = channel.receive(60.0)
                if message is None or message["event"] == "error":
                    raise PluginUnavailable("the process that owns shared memory did not start")
                yield ours, pss_bytes([process.pid])
            finally:
                process.kill()


def _share(owner: socket.socket, sizes_bytes: Sequence[int]) -> Pass:
    found = Pass([], [])
    maps = []
    for number, size in enumerate(sizes_bytes):
        begun_ns = time.monotonic_ns()
        owner.sendall(number.to_bytes(ASK))
        _, (descriptor,), _, _ = socket.recv_fds(owner, 1, 1)
        mapped = mmap.mmap(descriptor, max(size, 1), prot=mmap.PROT_READ)
        os.close(descriptor)
        given_ns = time.monotonic_ns()
        mapped[0]
        found.touched_ns.append(time.monotonic_ns() - given_ns)
        found.given_ns.append(given_ns - begun_ns)
        maps.append(mapped)
    for number, mapped in enumerate(maps):
        begun_ns = time.monotonic_ns()
        mapped.close()
        owner.sendall((number | RETURNED).to_bytes(ASK))
        owner.recv(1)
        found.given_ns[number] += time.monotonic_ns() - begun_ns
    return found


def _read_ns(files: Iterable[Path], sizes_bytes: Sequence[int]) -> list[int]:
    """Returns the times to read pieces of these sizes into new pages, as in a new process, and to free them."""
    longest = max(files, key=lambda file: file.stat().st_size)
    times_ns = []
    with longest.open("rb", buffering=0) as file:
        for size in sizes_bytes:
            begun_ns = time.monotonic_ns()
            with mmap.mmap(-1, size) as piece:
                file.readinto(piece)
            times_ns.append(time.monotonic_ns() - begun_ns)
    return times_ns
