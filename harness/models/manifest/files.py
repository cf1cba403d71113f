"""Lists the files that a model consists of, and computes the digest of all of them.

An ONNX file may keep its weights in other files (external data). An OpenVINO IR has them in a .bin next to its .xml,
an ncnn model next to its .param, and a large MNN file in a .weight. A digest of the named file alone would not notice
a change of the weights. Files are read only from the model's own folder.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.core.files import sha256
from harness.core.formats.protobuf import fields, mapped
from harness.errors import ConfigError

_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Message of onnx.proto -> field number -> nested message, for every path that leads to a tensor."""

_SINGULAR: Mapping[str, Sequence[int]] = {
    "model": (7,),
    "training": (1, 2),
    "sparse": (1, 2),
    "attribute": (5, 6, 22),
}
"""Fields that a message holds once: if a file repeats one, parsers merge the parts."""

_EXTERNAL_DATA, _DATA_LOCATION, _EXTERNAL = 13, 14, 1
"""TensorProto's fields, and the value of data_location for numbers in a separate file."""

_KEY, _VALUE = 1, 2


def files_of(path: Path) -> dict[str, Path]:
    """Returns relative name -> file, sorted: all files of a folder; or a file and the files it reads.

    Raises a ConfigError if a file that it reads is missing or lies outside of its folder.
    """
    if path.is_dir():
        inside = (p for p in path.rglob("*") if p.is_file())
        return {p.relative_to(path).as_posix(): p for p in sorted(inside, key=os.fspath)}
    names = {path.name, *(os.path.normpath(name) for name in _read_by(path))}
    return {name: _beside(path, name) for name in sorted(names)}


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file that reads no other file; else the digest that `listed` computes."""
    files = files_of(path)
    if list(files.values()) == [path]:
        return sha256_alone(path)
    return listed({name: sha256_alone(file) for name, file in files.items()})


def sha256_alone(path: Path) -> str:
    """Returns the SHA-256 of only this file's content."""
    try:
        return sha256(path)
    except OSError as e:
        raise _unreadable(path, e) from e


def listed(digests: Mapping[str, str]) -> str:
    """Returns the SHA-256 of the lines "<SHA-256>  <relative name>", sorted by name, as `sha256sum` prints them."""
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def size_bytes(path: Path) -> int:
    """Returns the total size of the model's files."""
    return sum(file.stat().st_size for file in files_of(path).values())


def external_data(content: memoryview) -> set[str]:
    """Returns the names of an ONNX model's external files. Raises a ValueError for a different format."""
    names: set[str] = set()
    todo = [("model", content)]
    while todo:
        kind, message = todo.pop()
        if kind == "tensor":
            names.update(_location(message))
            continue
        inside = _INSIDE[kind]
        once: dict[int, memoryview] = {}
        for number, value in fields(message):
            if number not in inside or not isinstance(value, memoryview):
                continue
            if number not in _SINGULAR.get(kind, ()):
                todo.append((inside[number], value))
            elif number in once:  # a message in several parts is one message
                once[number] = memoryview(bytes(once[number]) + bytes(value))
            else:
                once[number] = value
        todo += ((inside[number], value) for number, value in once.items())
    return names


def _location(tensor: memoryview) -> Iterator[str]:
    """Yields the tensor's file name, decoded by os.fsdecode: it need not be UTF-8."""
    is_external, locations = False, set[str]()
    for number, value in fields(tensor):
        if number == _DATA_LOCATION:
            is_external = value == _EXTERNAL
        elif number == _EXTERNAL_DATA and isinstance(value, memoryview):
            entry = {
                n: os.fsdecode(bytes(v)) for n, v in fields(value) if isinstance(v, memoryview)
            }
            if entry.get(_KEY) == "location":
                locations.add(entry.get(_VALUE, ""))
    if is_external:
        yield from locations - {""}


def _read_by(path: Path) -> set[str]:
    """Returns the names of the files that `path` reads, relative to its folder; empty for other formats."""
    if (weights := _weights_beside(path)) is not None:
        return {weights.name} if weights.exists() else set()
    try:
        return external_data(mapped(path))
    except OSError as e:
        raise _unreadable(path, e) from e
    except ValueError:  # the file is empty or has another format: the framework reports the fault
        return set()


def _weights_beside(path: Path) -> Path | None:
    """Returns the only file that a model in this format can read; None for a different format."""
    if path.suffix in (".xml", ".param"):
        return path.with_suffix(".bin")
    return path.with_name(f"{path.name}.weight") if path.suffix == ".mnn" else None


def _beside(path: Path, name: str) -> Path:
    if name == path.name:
        return path
    place = path.parent / name
    try:
        # A model may itself be a link, e.g. in a cache that keeps files by digest: both folders count.
        homes = (path.parent.resolve(), path.resolve().parent)
        # Avoids place.resolve(), which before Python 3.13 raises an error for a circle of links.
        inside = any(Path(os.path.realpath(place)).is_relative_to(home) for home in homes)
        exists = place.is_file()
    except (OSError, ValueError):  # the path is too long or contains a NUL
        inside = exists = False
    if not inside:
        raise ConfigError(f"{path} reads {name!r:.200}, which is not in its folder")
    if not exists:
        raise ConfigError(
            f"{path} reads {name!r:.200}, which is missing: put it next to the model file"
        )
    return place


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {error.strerror}")
