"""Recognises files that are not models or data: Git LFS pointers, web pages, archives, and empty or truncated files."""

import zipfile
from pathlib import Path

from harness.core.formats.protobuf import fields, mapped

_HEAD_BYTES = 512
_TEXT = frozenset((*range(32, 256), *b"\t\n\r"))

_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"(\xb5/\xfd": "Zstandard",
    b"7z\xbc\xaf'\x1c": "7z",
}
"""Maps an archive's first bytes to its format."""

_PICKLE = b"\x80\x02\x8a\x0a"
"""Beginning of a protocol-2 pickle whose first value is a long integer."""

_PACKABLE = (".onnx", ".tflite", ".xml", ".gz", ".zip", ".bz2", ".xz", ".zst", ".7z")
"""A packed model is refused only if the file has one of these suffixes, because files in other formats, such as .pt2,
are archives by design.
"""


def impostor(path: Path, wanted: str = "model") -> str:
    """Returns a sentence with the file's real type and advice, or '' if the file may be what the caller wants.

    path: a file, or the folder of a model.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    if not head:
        return "the file is empty: fetch it again"
    if head.startswith(b"version https://git-lfs"):
        return f"it is a Git LFS pointer, not the {wanted}: run `git lfs pull` where it came from"
    if what := _of_a_server(head, path.suffix):
        return f"it is {what}, not the {wanted}: fetch the file itself"
    packed = next((name for begin, name in _PACKED.items() if head.startswith(begin)), "")
    if packed and path.suffix in _PACKABLE and wanted == "model":
        return f"it is packed with {packed}: unpack it first"
    return _of_suffix(path)


def _of_a_server(head: bytes, suffix: str) -> str:
    """Describes a reply that a server sent instead of the file; '' if the bytes may be the file."""
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page"
    if head.startswith(b"{") and suffix != ".json" and _TEXT.issuperset(head):
        return "JSON, perhaps a server's error"
    if head.startswith(b"<?xml") and suffix != ".xml":
        return "XML, perhaps a server's error"
    return ""


def _of_suffix(path: Path) -> str:
    """Describes a file whose content does not match its suffix; '' if the content may match."""
    if path.suffix == ".onnx" and not _is_message(path):
        return "it is not an ONNX file, or is only a part of one: fetch it again"
    if path.suffix == ".pt" and _is_checkpoint(path):
        return (
            "it is a torch.save checkpoint, not TorchScript: load it with its code, and export it with "
            "torch.export.save as .pt2"
        )
    return ""


def _is_checkpoint(path: Path) -> bool:
    """Returns whether the file is a torch.save checkpoint and not a TorchScript file. Only TorchScript files also
    contain a file with constants.
    """
    try:
        with zipfile.ZipFile(path) as parts:
            names = {name.rpartition("/")[2] for name in parts.namelist()}
    except zipfile.BadZipFile:
        return _begins_as_pickle(path)
    return "data.pkl" in names and "constants.pkl" not in names


def _begins_as_pickle(path: Path) -> bool:
    """Returns whether PyTorch before version 1.6 wrote the file with torch.save."""
    with path.open("rb") as file:
        return file.read(len(_PICKLE)) == _PICKLE


def _is_message(path: Path) -> bool:
    try:
        return len(list(fields(mapped(path)))) > 0
    except ValueError:
        return False
