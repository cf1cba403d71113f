"""Lists a model's files, and computes one digest over all of them.

A model's weights may be in other files: an ONNX file's external data, the .bin next to an OpenVINO .xml or an ncnn
.param, or the .weight of a large MNN file. The digest of the named file alone would not detect changes in these
weights. Files are read only from the model's folder.
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
"""Maps a message type of onnx.proto to field numbers, and each field number to the message type in that field. The
table covers every path that leads to a tensor.
"""

_SINGULAR: Mapping[str, Sequence[int]] = {
    "model": (7,),
    "training": (1, 2),
    "sparse": (1, 2),
    "attribute": (5, 6, 22),
}
"""Fields that occur once per message. Parsers merge the parts if a file repeats such a field."""

_EXTERNAL_DATA, _DATA_LOCATION, _EXTERNAL = 13, 14, 1
"""Field numbers of TensorProto, and the value of data_location that stands for data in a separate file."""

_KEY, _VALUE = 1, 2


def files_of(path: Path) -> dict[str, Path]:
    """Maps relative names to files, sorted by name. The result contains all files of a folder, or a file and the files
    that it reads.

    Raises ConfigError if a file that the model reads is missing or lies outside the model's folder.
    """
    if path.is_dir():
        inside = (p for p in path.rglob("*") if p.is_file())
        return {p.relative_to(path).as_posix(): p for p in sorted(inside, key=os.fspath)}
    names = {path.name, *(os.path.normpath(name) for name in _read_by(path))}
    return {name: _beside(path, name) for name in sorted(names)}


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a single file, or the digest that `listed` computes if the file reads other files."""
    files = files_of(path)
    if list(files.values()) == [path]:
        return sha256_alone(path)
    return listed({name: sha256_alone(file) for name, file in files.items()})


def sha256_alone(path: Path) -> str:
    """Returns the SHA-256 of this file's content, without the files that it reads."""
    try:
        return sha256(path)
    except OSError as e:
        raise _unreadable(path, e) from e


def listed(digests: Mapping[str, str]) -> str:
    """Returns the SHA-256 of the lines that `sha256sum` prints for the files, sorted by name."""
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def size_bytes(path: Path) -> int:
    """Returns the total size of the model's files."""
    return sum(file.stat().st_size for file in files_of(path).values())


def external_data(content: memoryview) -> set[str]:
    """Returns the names of an ONNX model's external files. Raises ValueError if the content is not an ONNX model."""
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
            elif number in once:  # the parts of a repeated message form a single message
                once[number] = memoryview(bytes(once[number]) + bytes(value))
            else:
                once[number] = value
        todo += ((inside[number], value) for number, value in once.items())
    return names


def _location(tensor: memoryview) -> Iterator[str]:
    """Yields the tensor's file name, decoded with os.fsdecode because it may not be UTF-8."""
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
    """Returns the names of the files that `path` reads, relative to its folder. Returns an empty set for other formats."""
    if (weights := _weights_beside(path)) is not None:
        return {weights.name} if weights.exists() else set()
    try:
        return external_data(mapped(path))
    except OSError as e:
        raise _unreadable(path, e) from e
    except ValueError:  # the file is not an ONNX file, which the framework will report
        return set()


def _weights_beside(path: Path) -> Path | None:
    """Returns the only other file that a model in this format can read, or None for another format."""
    if path.suffix in (".xml", ".param"):
        return path.with_suffix(".bin")
    return path.with_name(f"{path.name}.weight") if path.suffix == ".mnn" else None


def _beside(path: Path, name: str) -> Path:
    if name == path.name:
        return path
    place = path.parent / name
    try:
        # The model may be a link, for example into a cache that stores files by digest, so both the link's folder and
        # its target's folder count as the model's folder.
        homes = (path.parent.resolve(), path.resolve().parent)
        # realpath is used because place.resolve() raises an error for a loop of links before Python 3.13.
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
