"""Writes SHA256SUMS, the digests of all files in a result folder, and compares them with the files.

The file uses sha256sum's format, so `sha256sum -c SHA256SUMS` in the folder checks it without the harness.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.core.files import sha256, write_text
from harness.errors import ConfigError

SEAL = "SHA256SUMS"
SIGNATURE = f"{SEAL}.sig"
"""Name that ssh-keygen gives to the signature file."""

PAGE = "report.html"
"""Name of a run's page. The seal omits the page, because `report` can rewrite it; `check` compares the page with
result.json.
"""

MISSING = f" is missing, but {SEAL} lists it"
"""End of the message about a missing file."""

_CHANGED = f" was changed after the run: its SHA-256 differs from {SEAL}"

_TABLES = ("grid.csv", "heatmaps.json", "grid.html")
"""Files in a grid's folder that `sweep --from` rewrites, perhaps with different limits and prices."""

_SCRIPT = re.compile(r"plotly-[\w.]+\.min\.js")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial")
"""Matches a file that is left behind if a process is killed during `core.files.atomic_file`."""

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def write(folder: Path) -> None:
    """Seals the folder. Removes an earlier seal's signature, which no longer matches."""
    remove(folder)
    lines = (f"{digest}  {name}\n" for name, digest in _digests(folder).items())
    write_text(folder / SEAL, "".join(lines))


def renew(folder: Path, names: Iterable[str]) -> None:
    """Updates the seal for files that were written or removed after sealing. Keeps the digests of all other files
    without reading them.
    """
    lines = (folder / SEAL).read_text(encoding="utf-8").splitlines()
    sealed = {match[2]: match[1] for match in map(_LINE.fullmatch, lines) if match is not None}
    for name in names:
        sealed.pop(name, None)
        if (folder / name).is_file():
            sealed[name] = sha256(folder / name)
    remove(folder)
    write_text(folder / SEAL, "".join(f"{sealed[name]}  {name}\n" for name in sorted(sealed)))


def remove(folder: Path) -> None:
    for name in (SEAL, SIGNATURE):
        (folder / name).unlink(missing_ok=True)


def differences(folder: Path) -> Iterator[str]:
    """Yields each file that was changed, added or removed after the folder was sealed."""
    path = folder / SEAL
    sealed = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sealed:
            yield f"{path} has a line that is not from sha256sum, or that repeats a file: {line!r:.100}"
        else:
            sealed[match[2]] = match[1]
    now = _digests(folder)
    for name in sorted({*sealed, *now}):
        if name not in now:
            yield f"{folder / name}{MISSING}"
        elif name not in sealed:
            yield f"{folder / name} was added after the run: {SEAL} does not list it"
        elif sealed[name] != now[name]:
            yield f"{folder / name}{_CHANGED}"


def check(seal: bytes, path: str, content: bytes) -> None:
    """Raises a ConfigError if the file was changed after its folder was sealed. seal: content of the folder's SHA256SUMS."""
    name = re.escape(path.rpartition("/")[2].encode())
    listed = re.search(rb"^([0-9a-f]{64})  " + name + rb"$", seal, re.MULTILINE)
    if listed is not None and listed[1].decode() != hashlib.sha256(content).hexdigest():
        raise ConfigError(f"{path}{_CHANGED}; run `check` for details")


def missing(folder: Path, name: str, otherwise: str) -> str:
    """Returns the message that the file `name` is missing from a run's folder. otherwise: why the run may lack the
    file.
    """
    seal = folder / SEAL
    text = seal.read_text(encoding="utf-8", errors="replace") if seal.is_file() else ""
    if any(line.endswith(f"  {name}") for line in text.splitlines()):
        return f"{folder} has no {name}, which {SEAL} lists: copy the run's whole folder again"
    return f"{folder} has no {name}: {otherwise}"


def _is_made_again(path: Path) -> bool:
    """Returns whether a verb that reads runs may rewrite the file, such as a run's page, a grid's tables or plotly's
    script.
    """
    killed = _TEMPORARY.fullmatch(path.name)
    name = killed[1] if killed else path.name
    of_run = name == PAGE and (path.parent / "result.json").is_file()
    of_grid = name in _TABLES and (path.parent / "grid.json").is_file()
    return of_run or of_grid or bool(_SCRIPT.fullmatch(name))


def _digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file by its path in the folder, sorted by path. For a link, the digest covers the
    link's text, because the link's target may be outside the folder.
    """
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in (SEAL, SIGNATURE) or _is_made_again(path):
            continue
        if path.is_symlink():
            digests[name] = hashlib.sha256(str(path.readlink()).encode()).hexdigest()
        elif path.is_file():
            digests[name] = sha256(path)
    return digests
