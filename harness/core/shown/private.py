"""Replaces what names the user or the machine, and the arguments of meters, in texts that others may read.

A home folder becomes `~`, the user's name `USER`, and the host's name `host_id()`. User and host are
replaced in paths and addresses only, because either may also be a word of a result (`publish` does more).
"""

import hmac
import os
import platform
import pwd
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

USER = "USER"
_MACHINE_ID = Path("/etc/machine-id")
_BEFORE, _AFTER = r"(?<![\w.~-])", r"(?![\w-]|\.\w)"
"""Bounds of a name or path: the text around it is not a part of a word or of an ending such as `.bak`."""

_PATH_OR_ADDRESS = re.compile("[/@:]")
_ARGUMENTS = re.compile("arguments-[0-9a-f]{8}")

_HARMLESS = ("rapl", "hwmon", "nvml", "estimate")
"""Meters whose argument is a folder of the kernel, or numbers."""


def homes() -> list[str]:
    """The user's home folders, by HOME and by the system, also with links resolved; the longest first."""
    return _homes(frozenset({os.environ.get("HOME", ""), _account()[1]}))


@cache
def _homes(named: frozenset[str]) -> list[str]:
    absolute = [Path(text) for text in named if os.path.isabs(text)]  # noqa: PTH117 - of a text
    paths = {str(path) for home in absolute for path in (home, home.resolve())}
    return sorted(paths - {"/"}, key=len, reverse=True)


def users() -> list[str]:
    """The user's names by the environment and by the system; root is nobody's name."""
    names = {os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), _account()[0]}
    return sorted(names - {"", "root"})


def hosts() -> list[str]:
    """The machine's name, with and without its domain."""
    name = platform.node()
    return [
        host
        for host in dict.fromkeys((name, name.partition(".")[0]))
        if host not in ("", "localhost")
    ]


@cache
def _account() -> tuple[str, str]:
    """(name, home) by the system; empty for a user ID without an account, as containers have it."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return "", ""
    return entry.pw_name, entry.pw_dir


def host_id() -> str | None:
    """An id that all runs of this machine share; None without a name."""
    name = platform.node()
    return f"host-{_digest(name)}" if name else None


def _digest(text: str) -> str:
    """Does not lead back to the text, which could be guessed from a plain digest: the machine's own ID,
    which is stored nowhere, is the key.
    """
    try:
        key = _MACHINE_ID.read_bytes()
    except OSError:
        key = b""
    return hmac.new(key, text.encode("utf-8", "surrogateescape"), "sha256").hexdigest()[:8]


def hide(text: str) -> str:
    """The text without home folders, and without user and host in paths and addresses."""
    if not _PATH_OR_ADDRESS.search(text):  # most cells of a table
        return text
    for pattern, new in _patterns(tuple(homes()), tuple(users()), tuple(hosts())):
        text = pattern.sub(new, text)
    return text


@cache
def _patterns(
    homes: tuple[str, ...], users: tuple[str, ...], hosts: tuple[str, ...]
) -> list[tuple[re.Pattern[str], str]]:
    found = [(home_pattern(home), "~") for home in homes]
    found += [(name_pattern(user), USER) for user in users]
    found += [(name_pattern(host), str(host_id())) for host in hosts]
    return [(re.compile(pattern), new) for pattern, new in found]


def home_pattern(home: str) -> str:
    """The `path_pattern`; matches after a letter, too (-I/home/ann), if the path is longer than /root."""
    return path_pattern(home).removeprefix(_BEFORE if home.count("/") > 1 else "")


def path_pattern(path: str) -> str:
    """Matches the path where it is whole or followed by a slash."""
    return f"{_BEFORE}{re.escape(path)}{_AFTER}"


def name_pattern(name: str) -> str:
    """Matches the name of a user or host as a part of a path (/data/NAME/x) or an address (NAME@, @NAME, NAME:80)."""
    name = re.escape(name)  # first, because a regular expression finds a text faster than a place
    return rf"{name}(?:(?<=[@/]{name}){_AFTER}|(?<![\w.~-]{name})(?=@|:\d))"


def hidden(value: Any) -> Any:
    """A JSON value with `hide` applied to every text."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hidden(key): hidden(one) for key, one in value.items()}
    return [hidden(one) for one in value] if isinstance(value, list | tuple) else value


def command_line(argument: str) -> str:
    """The program's name, and a digest in place of its arguments: they may hold a password.

    'ipmitool -U admin -P secret' -> 'ipmitool arguments-9c1c2a5e'
    """
    try:
        words = shlex.split(argument)
    except ValueError:
        words = []
    if not words:
        return _arguments(argument)
    name = os.path.basename(words[0])  # noqa: PTH119 - a word, not a file of ours
    return name if len(words) == 1 else f"{name} {_arguments(' '.join(words[1:]))}"


def meter(text: str) -> str:
    """A value of --meter without the arguments of a program or of a plug-in."""
    name, equals, argument = text.partition("=")
    if name == "command":
        return f"{name}={command_line(argument)}"
    secret = _arguments(argument) if argument and name not in _HARMLESS else hide(argument)
    name = os.path.basename(name)  # noqa: PTH119 - of a plug-in's file: lamp.py:Lamp
    return f"{name}{equals}{secret}"


def _arguments(text: str) -> str:
    known = _ARGUMENTS.fullmatch(text)  # in a published configuration
    return text if known else f"arguments-{_digest(text)}"
