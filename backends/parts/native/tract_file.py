"""Reads the names of a network's outputs from its file, because tract names an output after the node that computes it."""

import re
import tarfile
from pathlib import Path

from harness.core.formats.protobuf import field, fields, mapped, messages, number_field

_GRAPH, _OUTPUT, _VALUE_INFO, _NAME = 7, 12, 13, 1
"""Field numbers of ONNX's ModelProto, GraphProto and ValueInfoProto."""

GRAPH_FILE = "graph.nnef"
_MOST_BYTES = 1 << 26

_HEAD = re.compile(r"^\s*graph\s+\w+\s*\([^)]*\)\s*->\s*\(([^)]*)\)", re.MULTILINE)


def is_nnef(path: Path) -> bool:
    """Returns whether tract reads the path as NNEF: a folder or an archive; other files are ONNX."""
    return path.is_dir() or path.suffix in (".tgz", ".tar")


def output_names(path: Path) -> tuple[str, ...]:
    """Returns the names; () if the file does not contain them. Raises an OSError or ValueError if the file is broken."""
    if is_nnef(path):
        return _of_nnef(path)
    return tuple(
        bytes(name).decode()
        for graph in messages(mapped(path), _GRAPH)
        for output in messages(graph, _OUTPUT)
        for name in messages(output, _NAME)
    )


def write_without_shapes(path: Path, out: Path) -> None:
    """Copies an ONNX file without the shapes of the tensors between its operators.

    External data stay where they are. Raises an OSError or ValueError if the file is broken.
    """
    with out.open("wb") as file:
        for number, value in fields(mapped(path)):
            if isinstance(value, int):
                file.write(number_field(number, value))
            elif number == _GRAPH:
                kept = [
                    number_field(n, v) if isinstance(v, int) else field(n, v)
                    for n, v in fields(value)
                    if n != _VALUE_INFO
                ]
                file.write(field(number, b"".join(kept)))
            else:
                file.write(field(number, value))


def _of_nnef(path: Path) -> tuple[str, ...]:
    found = _HEAD.search(_graph(path).decode("utf-8", "replace"))
    names = found[1].split(",") if found else []
    return tuple(filter(None, (name.strip().strip('"') for name in names)))


def _graph(path: Path) -> bytes:
    """Returns the text of the network, without unpacking an archive to disk."""
    if path.is_dir():
        with (path / GRAPH_FILE).open("rb") as file:
            return file.read(_MOST_BYTES)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                inside = archive.extractfile(member) if member.isfile() else None
                if inside is not None and Path(member.name).name == GRAPH_FILE:
                    return inside.read(_MOST_BYTES)
    except (tarfile.TarError, EOFError) as e:
        raise ValueError(
            "it is not an NNEF archive, or is only a part of one: fetch it again"
        ) from e
    raise ValueError(f"it is not an NNEF archive, because {GRAPH_FILE} is missing")
