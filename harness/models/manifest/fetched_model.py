"""A single model file from a hub or a package, for a run without a manifest."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

from harness.errors import ConfigError
from harness.models.manifest.candidates import format_by_name, name_of_file
from harness.models.manifest.formats import refuse_other
from harness.models.manifest.model import Model


class FetchedModel(Model, ABC):
    """One version of a model file, and the other files that the model reads. The files are downloaded once and stay in
    a cache.
    """

    origin: ClassVar[str]
    """The key under which `to_json` stores the origin."""
    cache: ClassVar[str]
    """The name of the cache in error messages."""

    def __init__(self, short: str, origin: str, file: str, found: Path | None) -> None:
        """short: the name of the repository or package. origin: the complete value of --model. found: the file's path,
        if another process has already found it.
        """
        super().__init__(name_of_file(short, file), None, Path(), None)
        self._origin, self._file, self._found = origin, file, found

    @property
    def resolved_name(self) -> str:
        return self._origin

    def to_json(self) -> dict[str, Any]:
        found = self._found or self._in_cache()
        return {self.origin: self._origin, "found": str(found) if found else None}

    def may_have(self, file_format: str) -> bool:
        return format_by_name(self._file).name == file_format

    def check_formats(self, formats: tuple[str, ...]) -> None:
        refuse_other(self._file, format_by_name(self._file), formats)

    def path(self, formats: tuple[str, ...]) -> Path | None:
        if not formats:
            return None
        self.check_formats(formats)
        path = self._found or self._in_cache()
        if path is None:
            raise ConfigError(f"--model {self._origin} is not in {self.cache}: fetch it first")
        self._check(path)
        return path

    def obtain(self, formats: tuple[str, ...], say: Callable[[str], None]) -> None:
        if formats and self._in_cache() is None:
            self.check_formats(formats)
            self._fetch(say)

    @property
    def may_have_to_be_obtained(self) -> bool:
        return self._in_cache() is None

    def _check_complete(self, read: Iterable[str], known: Collection[str], kind: str) -> None:
        """Raises ConfigError if a file that the model reads is missing at its origin. known: the files at the origin.
        kind: a noun for the origin.
        """
        for file in read:
            if file not in known:
                raise ConfigError(
                    f"{self._origin} reads {file}, which the {kind} does not contain: choose another version or "
                    "another model"
                )

    @abstractmethod
    def _in_cache(self) -> Path | None:
        """Returns the file, or the folder of a SavedModel, or None if a file that the model reads is missing."""

    @abstractmethod
    def _check(self, path: Path, /) -> None:
        """Raises ConfigError if a file of the model differs from the fetched file."""

    @abstractmethod
    def _fetch(self, say: Callable[[str], None]) -> None:
        """Downloads the model file and the other files that it reads."""
