"""Parses names of model files in packages: `pypi:NAME==VERSION:PATH` and `npm:NAME@VERSION:PATH`."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from harness.core.config.parse import NPM, PYPI
from harness.errors import ConfigError

_FILE = r"(?::([^\s:\\]+))?"
_NPM_VERSION = r"\d+\.\d+\.\d+(?:[-+][\w.+-]+)?"
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    PYPI: re.compile(rf"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([^\s:@=*]+){_FILE}", re.ASCII),
    NPM: re.compile(
        r"((?:@[a-z0-9~_-][\w.~-]*/)?[a-z0-9~_-][\w.~-]*)"
        rf"@({_NPM_VERSION}){_FILE}",
        re.ASCII,
    ),
}
_MOST_PATH, _MOST_PART = 1024, 200
"""Maximum number of characters in a path, and in one name of a path; some file systems refuse longer names."""

_SHAPES: Mapping[str, str] = {
    PYPI: "pypi:NAME==VERSION:PATH/IN/WHEEL",
    NPM: "npm:NAME@VERSION:PATH/IN/PACKAGE",
}
"""Maps a prefix to the full syntax that messages show."""


class PackageName(NamedTuple):
    """A file in one version of a package. `str` returns the name in the syntax of --model."""

    prefix: str
    """PYPI or NPM."""
    package: str
    """NAME, or @SCOPE/NAME for npm."""
    version: str
    file: str | None = None
    """The path in the wheel, or in the package's folder for npm."""

    def __str__(self) -> str:
        return f"{self.prefix}{self.requirement}" + (f":{self.file}" if self.file else "")

    @property
    def requirement(self) -> str:
        """The package and version in the package manager's notation, e.g. magika==1.0.3."""
        return f"{self.package}{'==' if self.prefix == PYPI else '@'}{self.version}"

    @property
    def canonical(self) -> str:
        """The requirement in canonical spelling. All spellings of the same package and version give the same text."""
        if self.prefix == NPM:
            return self.requirement
        return f"{canonicalize_name(self.package)}=={canonicalize_version(self.version)}"

    @property
    def short(self) -> str:
        """The package's name without its scope."""
        return self.package.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the archive's file name."""
        return ".whl" if self.prefix == PYPI else ".tgz"

    @property
    def kind(self) -> str:
        """The kind of archive, for messages."""
        return "wheel" if self.prefix == PYPI else "package"


def is_package(text: str) -> bool:
    """Returns whether a value of --model, or an address in a manifest, begins like the name of a file in a package."""
    return text.startswith(tuple(_PATTERNS))


def parse_package(text: str, flag: str = "--model ") -> PackageName:
    """Parses a package name, with or without a file. Raises ConfigError for any other text. flag: the text with which
    the message begins.
    """
    prefix = PYPI if text.startswith(PYPI) else NPM
    match = _PATTERNS[prefix].fullmatch(text.removeprefix(prefix))
    if match is None or not (_is_version(prefix, match[2]) and _is_inside(match[3])):
        raise ConfigError(f"{flag}{text}: write {_SHAPES[prefix]}{_no_version(prefix, text)}")
    return PackageName(prefix, match[1], match[2], match[3])


def same_version(wheel: tuple[str, Version], name: PackageName) -> bool:
    """Returns whether a wheel has the requested name and version. wheel: the name and version in the wheel's file name."""
    return wheel == (canonicalize_name(name.package), Version(name.version))


def _is_version(prefix: str, text: str) -> bool:
    if prefix == NPM:
        return re.fullmatch(_NPM_VERSION, text, re.ASCII) is not None
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _is_inside(file: str | None) -> bool:
    """Returns whether a path stays inside the archive and is written in canonical form."""
    if file is None:
        return True
    parts = PurePosixPath(file).parts
    is_short = len(file) <= _MOST_PATH and all(len(part) <= _MOST_PART for part in parts)
    is_plain = str(PurePosixPath(file)) == file and not file.startswith("/") and ".." not in parts
    return is_short and is_plain


def _no_version(prefix: str, text: str) -> str:
    """Returns the end of the message for a name without exactly one version. This text explains how to find a version."""
    name = text.removeprefix(prefix)
    package = re.match(r"[A-Za-z0-9@][\w./-]*", name, re.ASCII)
    if package is None:
        return ""
    version = name[package.end() :].partition("==" if prefix == PYPI else "@")[2].partition(":")[0]
    if _is_version(prefix, version):
        return ""
    command = "pip index versions" if prefix == PYPI else "npm view"
    return f"; `{command} {package[0]}` shows the versions"
