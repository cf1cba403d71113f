"""Recognises files that stand where a model should: Git LFS pointers, web pages, empty and cut files."""

from pathlib import Path

from harness.core.formats.protobuf import fields, mapped

_HEAD_BYTES = 512


def impostor(path: Path) -> str:
    """What the file is, and what to do; '' where it may be a model. path: a file, or the folder of a model."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    if not head:
        return "the file is empty: fetch it again"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the model: run `git lfs pull` where it came from"
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, not the model: fetch the file itself"
    if path.suffix == ".onnx" and not _is_message(path):
        return "it is no ONNX file, or a part of one: fetch it again"
    return ""


def _is_message(path: Path) -> bool:
    try:
        return len(list(fields(mapped(path)))) > 0
    except ValueError:
        return False
