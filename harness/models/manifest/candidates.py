"""Chooses the model file among the files of a repository or a package, and finds the other files that the model reads."""

import posixpath
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from harness.core.formats.onnx_tensors import external_data
from harness.core.formats.protobuf import mapped
from harness.errors import ConfigError
from harness.models.hub import saved_model
from harness.models.manifest.formats import (
    BY_SUFFIX,
    SAVED_MODEL,
    Format,
    kind_by_name,
    suffix_of,
)

_MOST_CANDIDATES = 12
_BESIDE = (".xml", ".param")
"""Suffixes of files whose weights are in a .bin file in the same folder."""


def only_model(name: str, files: Collection[str]) -> str:
    """Returns the only model file in `files`. Raises ConfigError if `files` contains no model file or several. name:
    the model's name, without a file.
    """
    candidates = sorted(file for file in files if _is_model(file, files))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ConfigError(
            f"--model {name} has no file that a backend can read ({', '.join(BY_SUFFIX)}, "
            f"{saved_model.FILE}): export it to one of these formats, and pass its path"
        )
    shown = ", ".join(candidates[:_MOST_CANDIDATES])
    more = len(candidates) - _MOST_CANDIDATES
    others = f" and {more} more" if more > 0 else ""
    raise ConfigError(
        f"--model {name} has {len(candidates)} model files ({shown}{others}): name one, e.g. "
        f"{name}:{candidates[0]}"
    )


def check_readable(text: str, file: str | None) -> None:
    """Raises ConfigError if no backend can read the file that --model names. text: the value of --model."""
    if file is None or _is_readable(file):
        return
    if found := kind_by_name(file):
        raise ConfigError(f"--model {text}: {Path(file).name} is {': '.join(found)}")
    raise ConfigError(
        f"--model {text}: no backend reads {Path(file).name}: name a file in one of the formats "
        f"{', '.join(BY_SUFFIX)}, or the {saved_model.FILE} of a SavedModel"
    )


def format_by_name(file: str) -> Format:
    """Returns the format of a readable file according to its name."""
    return SAVED_MODEL if saved_model.is_saved_model(file) else BY_SUFFIX[suffix_of(file)]


def name_of_file(short: str, file: str) -> str:
    """Returns a model's name, so that the models of one repository or package have different names. short: the name of
    the repository or package.
    """
    path = PurePosixPath(file)
    says_nothing = path.stem == "model" or saved_model.is_saved_model(file)
    own = path.parent.name if says_nothing else path.stem
    return short if own in ("", short) else f"{short}-{own}"


def names_read_by(path: Path) -> set[str]:
    """Returns the names of the files that a model file reads, including missing files. The names are relative to the
    model file's folder.
    """
    if path.suffix.lower() in _BESIDE:
        return {path.with_suffix(".bin").name}
    if path.suffix.lower() != ".onnx":
        return set()
    try:
        return external_data(mapped(path))
    except (OSError, ValueError):  # the framework will report what is wrong with this file
        return set()


def beside(path: Path, file: str, read: str) -> str:
    """Returns the path of a file that the model file reads, relative to the repository or package.

    path: the model file on disk, for error messages. file: the model file's path in the repository or package. read:
    the name of the other file, as written in the model file. Raises ConfigError if the name points outside the model
    file's folder, because frameworks refuse such a file even if it is in the repository or package.
    """
    inside = posixpath.normpath(read)
    if inside.startswith("/") or inside.split("/")[0] == "..":
        raise ConfigError(
            f"{path} reads {read!r:.200}, which is not in its folder: export the model again with its weights in its "
            "folder, and pass the path of its file"
        )
    return posixpath.join(posixpath.dirname(file), inside)


def _is_model(file: str, files: Collection[str]) -> bool:
    suffix = Path(file).suffix.lower()
    if suffix in _BESIDE:
        # An .xml or .param file is a model only if its weights are in a .bin file next to it.
        return Path(file).with_suffix(".bin").as_posix() in files
    return _is_readable(file)


def _is_readable(file: str) -> bool:
    return suffix_of(file) in BY_SUFFIX or saved_model.is_saved_model(file)
