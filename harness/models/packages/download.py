"""Downloads a package's archive with pip or npm. The user's settings for index, proxy, certificates and passwords
apply.

Both tools only store the file and compare its digest with the package index. `pip download` does not build a wheel, and
`npm pack` does not run scripts for a version in a registry.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from harness.core.config.parse import PYPI
from harness.errors import ConfigError, one_line
from harness.models.packages.name import PackageName, same_version

LIMIT_S = 3600.0
"""A download that takes longer is aborted."""

# With -vv, pip prints why it could not reach an index; without it, pip only prints that it found no versions.
_PIP_WORDS = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-vv")
_DOWNLOAD_WORDS = ("--no-deps", "--only-binary", ":all:", "--ignore-requires-python")
_FROM_UV: Mapping[str, Sequence[str]] = {
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
}
"""Maps pip's variables to uv's variables with the same meaning, for an environment that has uv but not pip."""

_NPM_SETTINGS: Mapping[str, str] = {
    "npm_config_update_notifier": "false",
    "npm_config_fetch_timeout": "30000",
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_retry_maxtimeout": "5000",
}
"""Settings for variables that the user has not set. By default, npm waits 70 s between its tries, and 300 s for each
reply. All times are in ms.
"""

_MOST_VERSIONS = 8
_UNREACHABLE = re.compile(
    r"timed out - skipping|Retrying \(|[Cc]onnection (?:error|refused|reset|broken)|Name or service not known"
    r"|\b(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ENOTCACHED)\b"
)


def download(name: PackageName, folder: Path, home: Path) -> Path:
    """Stores the archive in the empty `folder`, and returns its path. Raises ConfigError if the download fails for any
    reason.

    home: the folder into which a user may put the archive, for messages.
    """
    by_hand = f"put its {name.suffix} into {home}"
    command, more = (_pip if name.prefix == PYPI else _npm)(name, folder, by_hand)
    try:
        done = subprocess.run(
            command,
            cwd=folder,  # ignores settings and modules in the user's working directory
            env={**more, **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{name}: the download took more than {LIMIT_S:g} s: {by_hand}") from None
    if done.returncode != 0:
        raise ConfigError(f"{name}: {_failure(name, done.stdout, done.stderr, by_hand)}")
    found = sorted(path for path in folder.iterdir() if path.suffix == name.suffix)
    if len(found) != 1:
        raise ConfigError(
            f"{name}: {command[0]} stored {len(found)} archives instead of one: {by_hand}"
        )
    check_archive(name, found[0])
    return found[0]


def check_archive(name: PackageName, path: Path) -> None:
    """Raises ConfigError if a wheel's file name does not contain the requested name and version."""
    if name.prefix != PYPI:
        return  # npm's file names are ambiguous: the packages @a/b and a-b have the same file name
    try:
        package, version, *_ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as e:
        raise ConfigError(f"{path}: {one_line(e)}: remove it and try again") from e
    if not same_version((package, version), name):
        raise ConfigError(f"{path} is not {name.requirement}: remove it and try again")


Command = tuple[Sequence[str], Mapping[str, str]]
"""The words of a command, and its environment variables."""


def _pip(name: PackageName, folder: Path, by_hand: str) -> Command:
    words = ("download", *_PIP_WORDS, *_DOWNLOAD_WORDS, "--dest", str(folder), name.requirement)
    if find_spec("pip") is not None:
        return (sys.executable, "-P", "-m", "pip", *words), {}
    if found := shutil.which("pip3") or shutil.which("pip"):
        return (found, *words), {}
    if found := shutil.which("uv"):
        return (found, "tool", "run", "--quiet", "--from", "pip", "pip", *words), _settings_of_uv()
    raise ConfigError(
        f"{name} needs pip to download the wheel: install it with `python -m ensurepip`, or {by_hand}"
    )


def _settings_of_uv() -> Mapping[str, str]:
    """Converts uv's index settings to pip's variables. In uv, an index may have a name, as in `name=address`."""
    found = {}
    for variable, others in _FROM_UV.items():
        values = [os.environ[other] for other in others if os.environ.get(other)]
        if values and variable not in os.environ:
            words = re.split(r"[\s,]+" if variable == "PIP_FIND_LINKS" else r"\s+", values[0])
            found[variable] = " ".join(re.sub(r"^[\w-]+=(?=\w+:)", "", word) for word in words)
    return found


def _npm(name: PackageName, folder: Path, by_hand: str) -> Command:
    found = shutil.which("npm")
    if found is None:
        raise ConfigError(f"{name} needs npm to download the package: install npm, or {by_hand}")
    words = ("pack", name.requirement, "--ignore-scripts", "--pack-destination", str(folder))
    return (found, *words), _NPM_SETTINGS


def _failure(name: PackageName, detail: str, said: str, by_hand: str) -> str:
    """Returns the end of the message for a failed download. detail, said: the command's stdout and stderr."""
    errors = re.findall(r"^(?:ERROR:|npm (?:error|ERR!)) *(.*)$", said, re.MULTILINE)
    known = re.search(r"\(from versions: (.*)\)", said)
    if known is not None and known[1] != "none":
        return _other_versions(name, known[1].split(", "))
    if _UNREACHABLE.search(detail) or _UNREACHABLE.search(said):
        return f"the package index cannot be reached, and the {name.kind} was not fetched before: connect once, or {by_hand}"
    if known is not None or " E404" in said:
        return (
            f"the package index has no {name.kind} {name.package} for this machine: check the name and the index "
            f"settings, or {by_hand}"
        )
    if "ETARGET" in said:
        return f"the registry has no version {name.version}: `npm view {name.package} versions` shows the versions"
    reason = next((line for line in errors if line and not line.startswith("code ")), "")
    return f"the download failed ({one_line(reason or said or 'no message')}): {by_hand}"


def _other_versions(name: PackageName, versions: Sequence[str]) -> str:
    newest = versions[-_MOST_VERSIONS:]
    more = "…, " if len(versions) > len(newest) else ""
    return (
        f"the package index has no wheel of version {name.version} for this machine, only of "
        f"{more}{', '.join(newest)}: choose one of them"
    )
