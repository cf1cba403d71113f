"""Lists a model's files, and computes one digest over all of them.

A model's weights may be in other files: an ONNX file's external data, the .bin next to an OpenVINO .xml or an ncnn
.param, or the .weight of a large MNN file. The digest of the named file alone would not detect changes in these
weights. Files are read only from the model's folder.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from harness.core.files import sha256
from harness.core.formats.onnx_tensors import external_data
from harness.core.formats.protobuf import mapped
from harness.errors import ConfigError


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
