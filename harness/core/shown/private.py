"""Replaces the names of the user and the machine, and the arguments of meters, in texts that others may read.

A home folder becomes `~`, the user's name `USER`, and the host name the result of `host_id()`. User and host names are
replaced only in paths and addresses, because they may also be ordinary words in a result (`publish` also replaces other
occurrences).
"""

import hmac
import os
import platform
import pwd
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

USER = "USER"
_MACHINE_ID = Path("/etc/machine-id")
_BEFORE, _AFTER = r"(?<![\w.~-])", r"(?![\w-]|\.\w)"
"""Patterns for what may precede and follow a name or path. The adjacent characters must not continue a word or begin a
suffix such as `.bak`.
"""

_PATH_OR_ADDRESS = re.compile("[/@:]")
_ARGUMENTS = re.compile("arguments-[0-9a-f]{8}")

_HARMLESS = ("rapl", "hwmon", "nvml", "estimate")
"""Meters whose argument is a kernel folder or a list of numbers, and therefore not private."""


def homes() -> list[str]:
    """Returns the user's home folders from HOME and from the system, with and without resolved links, longest first."""
    return _homes(frozenset({os.environ.get("HOME", ""), _account()[1]}))


@cache
def _homes(named: frozenset[str]) -> list[str]:
    absolute = [Path(text) for text in named if os.path.isabs(text)]  # noqa: PTH117 - of a text
    paths = {str(path) for home in absolute for path in (home, home.resolve())}
    return sorted(paths - {"/"}, key=len, reverse=True)


def users() -> list[str]:
    """Returns the user's names from the environment and from the system. Omits root, because it does not identify a
    person.
    """
    names = {os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), _account()[0]}
    return sorted(names - {"", "root"})


def hosts() -> list[str]:
    """Returns the machine's name, with and without its domain."""
    name = platform.node()
    return [
        host
        for host in dict.fromkeys((name, name.partition(".")[0]))
        if host not in ("", "localhost")
    ]


@cache
def _account() -> tuple[str, str]:
    """Returns (name, home) from the system; both are empty if the user ID has no account, as in many containers."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return "", ""
    return entry.pw_name, entry.pw_dir


def host_id() -> str | None:
    """Returns an ID that is the same for all runs on this machine, or None if the machine has no name."""
    name = platform.node()
    return f"host-{_digest(name)}" if name else None


def _digest(text: str) -> str:
    """Returns a keyed digest of a text. Unlike a plain digest, a keyed digest does not allow others to check a guess at
    the text.

    The key is the machine's ID, which results do not contain.
    """
    try:
        key = _MACHINE_ID.read_bytes()
    except OSError:
        key = b""
    return hmac.new(key, text.encode("utf-8", "surrogateescape"), "sha256").hexdigest()[:8]


def hide(text: str) -> str:
    """Replaces home folders everywhere, and the user's and the host's name in paths and addresses."""
    if not _PATH_OR_ADDRESS.search(text):  # most cells contain neither a path nor an address
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
    """Returns a `path_pattern` that, if the path has several parts, also matches directly after a letter (-I/home/ann)."""
    return path_pattern(home).removeprefix(_BEFORE if home.count("/") > 1 else "")


def path_pattern(path: str) -> str:
    """Returns a pattern that matches the path alone or followed by a slash."""
    return f"{_BEFORE}{re.escape(path)}{_AFTER}"


def name_pattern(name: str) -> str:
    """Returns a pattern that matches a user or host name in a path (/data/NAME/x) or an address (NAME@, @NAME,
    NAME:80).
    """
    # The pattern begins with the name, because the regex engine finds a literal faster than a lookbehind.
    name = re.escape(name)
    return rf"{name}(?:(?<=[@/]{name}){_AFTER}|(?<![\w.~-]{name})(?=@|:\d))"


def hidden(value: Any) -> Any:
    """Returns a JSON value after applying `hide` to every text in it."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hidden(key): hidden(one) for key, one in value.items()}
    return [hidden(one) for one in value] if isinstance(value, list | tuple) else value


def command_line(argument: str) -> str:
    """Returns the program's name, and a digest in place of its arguments, because they may contain a password.

    For example, 'ipmitool -U admin -P secret' becomes 'ipmitool arguments-9c1c2a5e'.
    """
    try:
        words = shlex.split(argument)
    except ValueError:
        words = []
    if not words:
        return _arguments(argument)
    name = os.path.basename(words[0])  # noqa: PTH119 - a word, not a file of ours
    return name if len(words) == 1 else f"{name} {_arguments(' '.join(words[1:]))}"


def arguments(words: Sequence[str]) -> list[str]:
    """Returns a command's words without the arguments of programs and meters, because they may contain a password."""
    hiding = {"--meter": meter, "--before-run": command_line}
    shown: list[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if shown and shown[-1] in hiding:
            shown.append(hiding[shown[-1]](word))
        elif equals and option in hiding:
            shown.append(f"{option}={hiding[option](value)}")
        else:
            shown.append(word)
    return shown


def own_command(page: str) -> str | None:
    """Returns this process's command without secrets; None if the process does not make the runs for `page`.

    page: name of the verb's page or JSON file, without the suffix.
    """
    words = sys.argv[1:]
    verb = "run" if words and words[0].startswith("-") else "".join(words[:1])
    if verb != _VERBS.get(page, page) or "--from" in words:
        return None
    return f"python -m harness {shlex.join(arguments(words))}"


_VERBS = {"grid": "sweep", "repeats": "run"}
"""Maps a page to its verb if the two names differ."""


def meter(text: str) -> str:
    """Returns the value of --meter after removing the arguments of a program or plug-in."""
    name, equals, argument = text.partition("=")
    if name == "command":
        return f"{name}={command_line(argument)}"
    secret = _arguments(argument) if argument and name not in _HARMLESS else hide(argument)
    name = os.path.basename(name)  # noqa: PTH119 - of a plug-in's file: lamp.py:Lamp
    return f"{name}{equals}{secret}"


def _arguments(text: str) -> str:
    # `text` matches if `publish` has already replaced the arguments.
    known = _ARGUMENTS.fullmatch(text)
    return text if known else f"arguments-{_digest(text)}"
