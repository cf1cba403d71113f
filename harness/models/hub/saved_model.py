"""Finds the files of a SavedModel in a HuggingFace Hub repository, and links them into a separate folder."""

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from harness.core.files import cache_dir, cached_file
from harness.models.hub.name import HubName

FILE = "saved_model.pb"
"""The name of the file that identifies a folder as a SavedModel."""

_MEMBER = re.compile(
    r"saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|(variables|assets|assets\.extra)/.+"
)


def is_saved_model(file: str) -> bool:
    """Returns whether `file`, a path in the repository, is the file that identifies a SavedModel."""
    return posixpath.basename(file) == FILE


def members(file: str, files: Iterable[str]) -> list[str]:
    """Returns the paths of the SavedModel's files. file: the path of `saved_model.pb`. files: all paths in the
    repository.
    """
    prefix = file.removesuffix(FILE)
    return sorted(
        path for path in files if path.startswith(prefix) and _MEMBER.fullmatch(path, len(prefix))
    )


def folder(name: HubName, paths: Mapping[str, Path]) -> Path:
    """Returns a folder that contains only these files, as links into the hub's cache.

    A separate folder is needed because the cache may contain other files of the repository, which are not part of the
    model's digest. paths: maps paths in the repository to files in the hub's cache.
    """
    inside = (name.file or "").removesuffix(FILE)
    repository = name.repository.replace("/", "--")
    of_commit = cache_dir() / "hub" / repository / (name.revision or "")
    made = of_commit / (quote(inside.strip("/"), safe="") or "root")
    for path, file in paths.items():
        link = made / path.removeprefix(inside)
        if not link.is_symlink() or link.readlink() != file:
            with cached_file(link) as temporary:
                temporary.symlink_to(file)
    return made
