"""`./run.sh install`: lists the extras, or checks the names of extras to install.

This module imports only the standard library, because it runs before packages are installed.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

import harness
from harness.core.console import say, show
from harness.core.extras import EXTRAS, RECOMMENDED, RIVALS, ROOT
from harness.core.registry import KINDS
from harness.errors import ConfigError, HarnessError, refuse


def main(arguments: Sequence[str]) -> int:
    """Runs `./run.sh install` and returns the exit status. Without names, lists the extras.

    With names, prints lines that scripts/env.sh reads. One line contains the extras to install. Each line `EXTRA
    PACKAGE...` names an extra that conflicts with a requested extra; scripts/env.sh first removes the conflicting extra
    and its packages.
    """
    if not arguments or arguments[0].startswith("-"):
        show("usage: ./run.sh install EXTRA...\n\nInstalls optional parts into .venv:\n")
        width = max(map(len, EXTRAS))
        for name, about in EXTRAS.items():
            mark = "  (installed)" if all(map(_is_in_venv, _single([name]))) else ""
            show(f"  {name:<{width}}  {about}{mark}")
        return 0 if not arguments or arguments[0] in ("-h", "--help") else ConfigError.exit_status
    names = _single(arguments)
    try:
        _check_names(names)
    except HarnessError as e:
        say(str(e))
        return e.exit_status
    show(" ".join(names))
    for name in names:
        if name in RIVALS:
            rival, packages = RIVALS[name]
            show(f"{rival} {' '.join(packages)}")
    return 0


def _single(names: Sequence[str]) -> list[str]:
    """Returns the names without duplicates, and with `recommended` replaced by the extras that it contains."""
    parts = (RECOMMENDED if name == "recommended" else (name,) for name in names)
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _is_in_venv(name: str) -> bool:
    return (ROOT / ".venv" / f".installed-{name}").is_file()


def _extra_of(name: str) -> str | None:
    """Returns the extra that a plug-in or shipped model requires; '' if it requires no extra, or None if the name is
    unknown.
    """
    extras = [table[name].extra for table in KINDS.values() if name in table]
    if not extras and (Path(harness.__file__).parent / f"models/shipped/{name}.yaml").is_file():
        return ""
    return min(extras, default=None)


def _check_names(names: Sequence[str]) -> None:
    problems = []
    for name in names:
        if name not in EXTRAS and (own := _extra_of(name)) is not None:
            hint = (
                f"comes with the extra {own}: install {own}"
                if own
                else "needs no extra: it is installed"
            )
            problems.append(f"{name!r} {hint}")
        elif name not in EXTRAS:
            near = get_close_matches(name, EXTRAS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`./run.sh install` lists them"
            problems.append(f"no extra named {name!r}: {hint}")
        elif name in RIVALS and RIVALS[name][0] in names:
            both = " and ".join(sorted((name, RIVALS[name][0])))
            problems.append(f"{both} provide the same module: name one")
    refuse(dict.fromkeys(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
