"""A model file from the HuggingFace Hub, for a run without a manifest."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.models.hub import repository, saved_model
from harness.models.hub.name import HubName, is_commit, parse_hub_model
from harness.models.manifest.candidates import (
    beside,
    check_readable,
    names_read_by,
    only_model,
)
from harness.models.manifest.fetched_model import FetchedModel
from harness.models.manifest.files import files_of


class HubModel(FetchedModel):
    """A model file from one commit, and the other files that the model reads. These files stay in the hub's cache."""

    origin, cache = "hub", "the hub's cache"

    def __init__(self, name: HubName, found: Path | None = None):
        """name: includes a commit and a file. found: the file's path, if another process has already found it."""
        super().__init__(name.repository.rpartition("/")[2], str(name), name.file or "", found)
        self._hub_name = name
        self._commit = name.revision or ""

    def _check(self, path: Path, /) -> None:
        if path.is_dir():
            files: Iterable[Path] = files_of(path).values()
        else:
            # The path is not resolved first, because it is a link into the hub's cache, where the model's other files
            # do not lie next to the link's target.
            files = (path, *(path.parent / name for name in names_read_by(path)))
        for file in files:
            repository.check(file)

    def _fetch(self, say: Callable[[str], None]) -> None:
        say(f"fetching {self._hub_name}, once")
        of = self._hub_name.repository
        path = repository.download(of, self._commit, self._file)
        names = [*self._files_read(path)]
        self._check_complete(names, repository.listing(of, self._commit).digests, "commit")
        for name in names:
            repository.download(of, self._commit, name)

    def _in_cache(self) -> Path | None:
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
        """Yields paths in the repository. Raises ConfigError if a path is outside the repository."""
        if saved_model.is_saved_model(self._file):
            files = repository.listing(self._hub_name.repository, self._commit).digests
            yield from saved_model.members(self._file, files)
            return
        for name in names_read_by(path):
            yield beside(path, self._file, name)


def hub_model(text: str) -> HubModel:
    """Creates a model from 'hf:ORG/NAME@REV[:FILE]'. Queries the hub unless the text contains both a commit and a file."""
    name = parse_hub_model(text)
    check_readable(text, name.file)
    if name.is_pinned:
        return HubModel(name)
    listing = repository.listing(name.repository, name.revision)
    if name.revision is None:
        pinned = name._replace(revision=listing.commit)
        raise ConfigError(f"--model {text} names no commit, so it may change: write {pinned}")
    commit = name.revision if is_commit(name.revision) else listing.commit
    pinned = name._replace(revision=commit)
    return HubModel(pinned._replace(file=name.file or only_model(str(pinned), listing.digests)))


def hub_model_from_json(values: Mapping[str, Any]) -> HubModel:
    """Creates a model from the result of `HubModel.to_json`."""
    found = values["found"]
    return HubModel(parse_hub_model(values["hub"]), Path(found) if found else None)
