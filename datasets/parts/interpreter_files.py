"""Finds files of certain types in the Python installation, and makes archives and tables from these files.

A file is used if its suffix and its content agree, e.g. a `.json` file that can be parsed. The standard library and
numpy make the archives and tables, so their types are also certain. The choice depends only on the names of files, so
every run uses the same files. Different Python installations contain different files, and therefore lead to different
digests.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sqlite3
import sysconfig
import tarfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

LEAST_BYTES, MOST_BYTES = 256, 4 << 20
"""Minimum and maximum size of a file. The type of a smaller file would be uncertain."""

_SKIPPED = ("site-packages", "dist-packages", "__pycache__")
_HAS_ODD_TEXTS = re.compile(r"(^|/)(tests?|idle_test|lib2to3|test_\w+)(/|$)")
"""Matches folders whose text files are deliberately broken, or exist only to test parsers. Only binary files are taken
from these folders.
"""


class TypedFile(NamedTuple):
    name: str
    label: str
    content: Callable[[], bytes]


class _Type(NamedTuple):
    """A type of file that the Python installation contains."""

    label: str
    suffixes: tuple[str, ...]
    is_one: Callable[[bytes], bool]
    """Returns whether the content definitely has this type."""
    is_text: bool = False


def found(labels: Sequence[str], most: int) -> Mapping[str, Sequence[TypedFile]]:
    """Returns files by label, with at most `most` files per label. The order of the files depends only on their names."""
    names = _by_suffix()
    chosen: dict[str, list[TypedFile]] = {label: [] for label in labels}
    for kind in _TYPES:
        candidates = (file for suffix in kind.suffixes for file in names.get(suffix, ()))
        for name, path in sorted(candidates, key=_shuffled):
            if len(chosen[kind.label]) < most and _is_certain(kind, name, path):
                chosen[kind.label].append(TypedFile(name, kind.label, path.read_bytes))
    sources = chosen["python"]
    for label, make in _MAKERS.items():
        for number in range(min(most - len(chosen[label]), len(sources) // 2)):
            some = sources[2 * number : 2 * number + 2]
            content = partial(_made, make, some)
            chosen[label].append(TypedFile(f"{label} of {some[0].name}", label, content))
    return {label: files for label, files in chosen.items() if files}


def _by_suffix() -> Mapping[str, list[tuple[str, Path]]]:
    """Returns (name, path) for each file in the standard library, Python's headers and numpy, by suffix."""
    names: dict[str, list[tuple[str, Path]]] = {}
    roots = {
        "stdlib": Path(sysconfig.get_path("stdlib")),
        "include": Path(sysconfig.get_path("include")),
        "numpy": Path(np.__file__).parent,
    }
    for prefix, root in roots.items():
        for name in _files_below(root):
            entry = (f"{prefix}/{name}", root / name)
            names.setdefault(Path(name).suffix.lower(), []).append(entry)
    return names


def _files_below(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for file in files:
            yield os.path.relpath(os.path.join(folder, file), root)  # noqa: PTH118 - ten times as fast


def _shuffled(entry: tuple[str, Path]) -> str:
    """Returns a sort key that mixes the files of different folders. The key is the same on every machine."""
    return hashlib.sha256(entry[0].encode(errors="surrogateescape")).hexdigest()


def _is_certain(kind: _Type, name: str, path: Path) -> bool:
    if kind.is_text and _HAS_ODD_TEXTS.search(name):
        return False
    try:
        if not LEAST_BYTES <= path.stat().st_size <= MOST_BYTES:
            return False
        content = path.read_bytes()
        if kind.is_text:
            content.decode("utf-8")
        return kind.is_one(content)
    except (OSError, ValueError):  # the file is unreadable, not UTF-8 or not valid
        return False


def _begins(*heads: bytes) -> Callable[[bytes], bool]:
    return lambda content: content.startswith(heads)


def _has(pattern: bytes, without: bytes = rb"\Zx") -> Callable[[bytes], bool]:
    """Returns a function that checks whether the content contains a match of `pattern` and no match of `without`."""
    wanted, other = re.compile(pattern, re.MULTILINE), re.compile(without, re.MULTILINE)
    return lambda content: wanted.search(content) is not None and other.search(content) is None


def _is_json(content: bytes) -> bool:
    return isinstance(json.loads(content), dict | list)


def _is_toml(content: bytes) -> bool:
    return bool(tomllib.loads(content.decode()))


_TYPES = (
    _Type("python", (".py",), _has(rb"^(import|from|def|class) "), is_text=True),
    _Type(
        "c",
        (".h", ".c"),
        _has(rb"^#\s*(define|include) ", rb"\b(class|template|namespace|constexpr)\b"),
        is_text=True,
    ),
    _Type("elf", (".so",), _begins(b"\x7fELF")),
    _Type("macho", (".so", ".dylib"), _begins(b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")),
    _Type("png", (".png",), _begins(b"\x89PNG\r\n\x1a\n")),
    _Type("gif", (".gif",), _begins(b"GIF87a", b"GIF89a")),
    _Type("jpeg", (".jpg", ".jpeg"), _begins(b"\xff\xd8\xff")),
    _Type("bmp", (".bmp",), _begins(b"BM")),
    _Type("tiff", (".tif", ".tiff"), _begins(b"II*\0", b"MM\0*")),
    _Type("ico", (".ico",), _begins(b"\0\0\1\0")),
    _Type("webp", (".webp",), lambda content: content[:4] == b"RIFF" and content[8:12] == b"WEBP"),
    _Type("wav", (".wav",), lambda content: content[:4] == b"RIFF" and content[8:12] == b"WAVE"),
    _Type("pebin", (".exe", ".pyd"), _begins(b"MZ")),
    _Type("html", (".html", ".htm"), _has(rb"(?i)\A\s*(<!doctype html|<html)"), is_text=True),
    _Type("css", (".css",), _has(rb"^[\w.#:, -]+\{[^}]*\}"), is_text=True),
    _Type("json", (".json",), _is_json, is_text=True),
    _Type("toml", (".toml",), _is_toml, is_text=True),
    _Type("xml", (".xml",), _begins(b"<?xml "), is_text=True),
    _Type("pem", (".pem", ".key"), _begins(b"-----BEGIN ")),
    _Type("fortran", (".f90", ".f95"), _has(rb"(?i)^\s*(end )?(subroutine|module|function)\b")),
    _Type("batch", (".bat",), _has(rb"(?i)^(@?echo off|rem |@rem )"), is_text=True),
    _Type("zip", (".whl", ".zip"), _begins(b"PK\3\4")),
    _Type("sqlite", (".db", ".sqlite"), _begins(b"SQLite format 3\0")),
    _Type("npy", (".npy",), _begins(b"\x93NUMPY")),
)


def _made(make: Callable[[Mapping[str, bytes]], bytes], sources: Sequence[TypedFile]) -> bytes:
    return make({file.name: file.content() for file in sources})


def _zip(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _sqlite(files: Mapping[str, bytes]) -> bytes:
    with sqlite3.connect(":memory:") as base:
        base.execute("CREATE TABLE lines (file TEXT, number INTEGER, text TEXT)")
        rows = [
            (name, number, line.decode(errors="replace"))
            for name, content in files.items()
            for number, line in enumerate(content.splitlines())
        ]
        base.executemany("INSERT INTO lines VALUES (?, ?, ?)", rows)
        base.commit()
        content: bytes = base.serialize()
    base.close()
    return content


def _npy(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    lines = [line for content in files.values() for line in content.splitlines()]
    np.save(out, np.array([len(line) for line in lines], np.float64))
    return out.getvalue()


def _npz(files: Mapping[str, bytes]) -> bytes:
    arrays = {name: _npy({name: content}) for name, content in files.items()}
    return _zip({f"{name}.npy": content for name, content in arrays.items()})


def _json(files: Mapping[str, bytes]) -> bytes:
    """Returns facts about the files: their sizes and digests, and the frequencies of words."""
    facts = [
        {
            "file": name,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "words": dict(Counter(re.findall(r"[a-z]{4,}", content.decode(errors="replace")))),
        }
        for name, content in files.items()
    ]
    return json.dumps(facts, indent=2).encode()


_MAKERS: Mapping[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "zip": _zip,
    "tar": _tar,
    "gzip": lambda files: gzip.compress(b"".join(files.values()), mtime=0),
    "bzip": lambda files: bz2.compress(b"".join(files.values())),
    "xz": lambda files: lzma.compress(b"".join(files.values())),
    "sqlite": _sqlite,
    "npy": _npy,
    "npz": _npz,
    "json": _json,
}
"""Maps a label to the function that makes a file of this type from Python source files."""
