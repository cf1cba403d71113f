"""A model file of the HuggingFace Hub as the model of a run, without a manifest."""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.formats.protobuf import mapped
from harness.errors import ConfigError
from harness.models.hub import repository, saved_model
from harness.models.hub.name import HubName, is_commit, parse_hub_model
from harness.models.manifest.files import external_data, files_of
from harness.models.manifest.formats import BY_SUFFIX, SAVED_MODEL, Format, refuse_other, suffix_of
from harness.models.manifest.model import Model

_MOST_CANDIDATES = 12
_BESIDE = (".xml", ".param")
"""Suffixes of files whose weights lie in a .bin next to them."""


class HubModel(Model):
    """A file of a commit, and the files that it reads; they stay in the hub's own cache."""

    def __init__(self, name: HubName, found: Path | None = None):
        """name: with commit and file. found: the file, if another process has found it."""
        super().__init__(name.repository.rpartition("/")[2], None, Path(), None)
        self._hub_name = name
        self._commit, self._file = name.revision or "", name.file or ""
        self._found = found

    @property
    def resolved_name(self) -> str:
        return str(self._hub_name)

    def to_json(self) -> dict[str, Any]:
        found = self._found or self._in_cache()
        return {"hub": self.resolved_name, "found": str(found) if found else None}

    def may_have(self, file_format: str) -> bool:
        return _format(self._file).name == file_format

    def path(self, formats: tuple[str, ...]) -> Path | None:
        if not formats:
            return None
        refuse_other(self._file, _format(self._file), formats)
        path = self._found or self._in_cache()
        if path is None:
            raise ConfigError(f"--model {self._hub_name} is not in the hub's cache: fetch it first")
        if path.is_dir():
            files: Iterable[Path] = files_of(path).values()
        else:  # links into the cache, where no other file is next to them
            files = (path, *(path.parent / name for name in _read_by(path)))
        for file in files:
            repository.check(file)
        return path

    def obtain(self, formats: tuple[str, ...], say: Callable[[str], None]) -> None:
        if not formats or self._in_cache() is not None:
            return
        refuse_other(self._file, _format(self._file), formats)
        say(f"fetching {self._hub_name}, once")
        path = repository.download(self._hub_name.repository, self._commit, self._file)
        for name in self._files_read(path):
            repository.download(self._hub_name.repository, self._commit, name)

    @property
    def may_have_to_be_obtained(self) -> bool:
        return self._in_cache() is None

    def _in_cache(self) -> Path | None:
        """Returns the file, or the folder of a SavedModel; None if a file that it reads is missing."""
        of = self._hub_name.repository
        path = repository.in_cache(of, self._commit, self._file)
        if path is None:
            return None
        names = {self._file, *self._files_read(path)}
        there = {name: repository.in_cache(of, self._commit, name) for name in names}
        found = {name: file for name, file in there.items() if file is not None}
        if len(found) < len(names):
            return None
        if saved_model.is_saved_model(self._file):
            return saved_model.folder(self._hub_name, found)
        return path

    def _files_read(self, path: Path) -> Iterator[str]:
        """Yields paths in the repository. Raises a ConfigError if one would lie outside of it."""
        if saved_model.is_saved_model(self._file):
            files = repository.listing(self._hub_name.repository, self._commit).digests
            yield from saved_model.members(self._file, files)
            return
        for name in _read_by(path):
            file = posixpath.normpath(posixpath.join(posixpath.dirname(self._file), name))
            if file.startswith(("/", "../")):
                raise ConfigError(f"{path}: it reads {name!r:.200}, which is not in its folder")
            yield file


def hub_model(text: str) -> HubModel:
    """Takes 'hf:ORG/NAME@REV[:FILE]'. Asks the hub only if the text names no file of a commit."""
    name = parse_hub_model(text)
    if name.file is not None and not _is_readable(name.file):
        raise ConfigError(
            f"--model {text}: no backend reads {Path(name.file).name}: name a file in one of the formats "
            f"{', '.join(BY_SUFFIX)}, or the {saved_model.FILE} of a SavedModel"
        )
    if name.is_pinned:
        return HubModel(name)
    listing = repository.listing(name.repository, name.revision)
    if name.revision is None:
        pinned = name._replace(revision=listing.commit)
        raise ConfigError(f"--model {text} names no commit, so it may change: write {pinned}")
    commit = name.revision if is_commit(name.revision) else listing.commit
    pinned = name._replace(revision=commit)
    return HubModel(pinned._replace(file=name.file or _only_model(pinned, listing.digests)))


def hub_model_from_json(values: Mapping[str, Any]) -> HubModel:
    """Inverts `HubModel.to_json`."""
    found = values["found"]
    return HubModel(parse_hub_model(values["hub"]), Path(found) if found else None)


def _only_model(name: HubName, files: Mapping[str, str]) -> str:
    candidates = sorted(file for file in files if _is_model(file, files))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ConfigError(
            f"--model {name}: it has no file that a backend reads ({', '.join(BY_SUFFIX)}, "
            f"{saved_model.FILE}): export it to one of them, and pass its path"
        )
    shown = ", ".join(candidates[:_MOST_CANDIDATES])
    more = len(candidates) - _MOST_CANDIDATES
    others = f" and {more} more" if more > 0 else ""
    raise ConfigError(
        f"--model {name}: it has {len(candidates)} model files, {shown}{others}: name one, e.g. "
        f"{name._replace(file=candidates[0])}"
    )


def _is_model(file: str, files: Mapping[str, str]) -> bool:
    suffix = Path(file).suffix.lower()
    if suffix in _BESIDE:  # an OpenVINO IR or ncnn's layers; other files of this name have no .bin
        return Path(file).with_suffix(".bin").as_posix() in files
    return _is_readable(file)


def _is_readable(file: str) -> bool:
    return suffix_of(file) in BY_SUFFIX or saved_model.is_saved_model(file)


def _format(file: str) -> Format:
    return SAVED_MODEL if saved_model.is_saved_model(file) else BY_SUFFIX[suffix_of(file)]


def _read_by(path: Path) -> set[str]:
    """Returns the files that a model file reads, relative to its folder, whether they exist or not."""
    if path.suffix.lower() in _BESIDE:
        return {path.with_suffix(".bin").name}
    if path.suffix.lower() != ".onnx":
        return set()
    try:
        return external_data(mapped(path))
    except (OSError, ValueError):  # the framework reports what is wrong with it
        return set()
