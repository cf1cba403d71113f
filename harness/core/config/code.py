"""Lists the code that a configuration refers to: the user's plug-ins, a hook, and meter programs.

If a configuration comes from a file, the configuration's code runs only if the user also names the code with --trust.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.config.schema import RunOptions
from harness.core.files import sha256
from harness.core.registry import is_code

TRUST = "--trust"
"""The option with which the user allows code to run."""

PROGRAM_METERS = ("command", "ptdaemon")
"""Meters whose argument names a program."""


class Code(NamedTuple):
    kind: str
    """`backend`, `dataset`, `metric`, `hook` or `meter`."""
    name: str
    """Name of the code in config.yaml and after --trust."""

    @property
    def file(self) -> Path | None:
        """Path to the Python file; None for an installed module or a meter program."""
        if self.kind == "hook":
            return Path(self.name)
        name = self.name.partition("=")[0] if self.kind == "meter" else self.name
        path, separator, _ = name.rpartition(".py:")
        return Path(f"{path}.py") if separator else None


_FILE = re.compile(r"([^=]*\.py)((?::.*)?)")
"""Matches a path to a Python file, and the rest of the plug-in's name."""


def absolute(name: str) -> str:
    """Returns the name with the absolute path of its Python file.

    A relative path would depend on the working directory, but the user must see which file is meant.
    """
    match = _FILE.fullmatch(name)
    return f"{Path(match[1]).absolute()}{match[2]}" if match else name


def is_trusted(name: str, trusted: Collection[str]) -> bool:
    """Returns whether the user trusts the file that the name refers to, regardless of how its path is written."""
    return _resolved(name) in map(_resolved, trusted)


def _resolved(name: str) -> str:
    match = _FILE.fullmatch(name)
    return f"{Path(match[1]).resolve()}{match[2]}" if match else name


def values_of(config: RunOptions) -> dict[str, Any]:
    """Returns the values in a configuration that may refer to code, by field."""
    fields = ("backend", "dataset", "metric", "hook", "meter", "plugin_sha256")
    return {field: getattr(config, field) for field in fields}


def named(values: Mapping[str, Any]) -> Iterator[Code]:
    """Yields the code that the values refer to. values: option values by field of RunConfig; fields may be missing."""
    for kind in ("backend", "dataset", "metric"):
        name = values.get(kind)
        if name is not None and is_code(name):
            yield Code(kind, name)
    if values.get("hook") is not None:
        yield Code("hook", str(values["hook"]))
    for meter, argument in values.get("meter") or ():
        if is_code(meter) or meter in PROGRAM_METERS:
            yield Code("meter", f"{meter}={argument}" if argument else meter)


def digests(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the path and the SHA-256 of each Python file that the values refer to; skips files that do not exist."""
    found = {}
    for code in named(values):
        if code.file is not None and code.file.is_file():
            found[str(code.file)] = sha256(code.file)
    return tuple(found.items())


def untrusted(source: str, values: Mapping[str, Any], trusted: Collection[str]) -> list[str]:
    """Returns a line for each piece of code that the values refer to but the user does not trust.

    source: the file or folder from which the values come. trusted: the names after --trust.
    """
    return [
        f"{source} names code, the {code.kind} {absolute(code.name)}: read it, and add "
        f"{TRUST} {shlex.quote(absolute(code.name))} if it may run here"
        for code in named(values)
        if not is_trusted(code.name, trusted)
    ]


def trust_options(*configurations: Mapping[str, Any]) -> list[str]:
    """Returns `--trust NAME` for all code that the configurations refer to, as words of a command line."""
    names = dict.fromkeys(code.name for values in configurations for code in named(values))
    return [word for name in names for word in (TRUST, name)]


def announcement(source: str, values: Mapping[str, Any]) -> str:
    """Returns a line for each piece of code that is about to run. A note states whether the code's file has changed
    since the run that `source` describes.
    """
    before = dict(values.get("plugin_sha256") or ())
    now = dict(digests(values))
    lines = []
    for code in named(values):
        then = before.get(str(code.file))
        changed = then is not None and now.get(str(code.file)) != then
        state = ", which has changed since that run" if changed else ""
        lines.append(
            f"running code that {source} names: the {code.kind} {absolute(code.name)}{state}"
        )
    return "\n".join(lines)
