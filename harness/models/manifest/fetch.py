"""Fetches model files from the address in their manifest: once, whole and with the right checksum.

Only https and file addresses, also after a redirect. What arrives is written under a temporary name
and gets its own only when its SHA-256 is the manifest's; nothing in it is ever executed.
"""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from harness.core.files import cached_file
from harness.core.units import show_bytes
from harness.errors import ConfigError

MAX_BYTES = 16 << 30
TIMEOUT_S = 30.0
"""For the connection, and for each piece."""

_PIECE_BYTES = 1 << 20
_TOLD_EVERY_S = 10.0

Opener = Callable[[str, float], Any]
"""(address, timeout in s) -> what `urllib.request` answers: readable, with headers."""


def open_address(address: str, timeout_s: float) -> Any:
    """Like urlopen, without any handler for http, ftp and data addresses."""
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


def fetch(
    address: str,
    sha256: str,
    path: Path,
    say: Callable[[str], None],
    opener: Opener = open_address,
) -> None:
    """The file at `address` as `path`; a ConfigError, and no file, where anything is not as told."""
    with cached_file(path) as temporary, temporary.open("wb") as out:
        try:
            with closing(opener(address, TIMEOUT_S)) as answer:
                found = _copy(answer, out, path, say)
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise ConfigError(f"{address} cannot be fetched ({_told(e)}): {_place(path)}") from e
        if found != sha256:
            raise ConfigError(
                f"{address} has the SHA-256 {found[:12]}…, the manifest says {sha256[:12]}…: "
                f"it is another file now; {_place(path)}"
            )


def _copy(answer: Any, out: IO[bytes], path: Path, say: Callable[[str], None]) -> str:
    """All of it; -> its SHA-256. ValueError: too large, or shorter than announced."""
    length = answer.headers.get("Content-Length")
    announced = int(length) if length is not None else None
    total = "" if announced is None else f" of {show_bytes(announced)}"
    if announced is not None and announced > MAX_BYTES:
        raise ValueError(f"{show_bytes(announced)} is more than {show_bytes(MAX_BYTES)}")
    say(f"downloading{total.replace(' of', '')} to {path}")
    digest, done, told_s = hashlib.sha256(), 0, time.monotonic()
    while piece := answer.read(_PIECE_BYTES):
        done += len(piece)
        if done > MAX_BYTES:
            raise ValueError(f"more than {show_bytes(MAX_BYTES)}")
        digest.update(piece)
        out.write(piece)
        if time.monotonic() - told_s > _TOLD_EVERY_S:
            told_s = time.monotonic()
            say(f"downloaded {show_bytes(done)}{total}")
    if announced is not None and done < announced:
        raise ValueError(f"it ended after {show_bytes(done)}{total}")
    return digest.hexdigest()


def _told(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    if isinstance(error, urllib.error.HTTPError):
        reason = f"status {error.code}"
    return " ".join(str(reason).split()) or type(error).__name__


def _place(path: Path) -> str:
    return f"put the file at {path}"
