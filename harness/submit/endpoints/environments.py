"""Makes Python environments with uv for programs that must not share the harness's packages."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core.child import run_program
from harness.errors import ConfigError, one_line

PYTHON = "3.12"
"""Python version that MLCommons' client requires and that MLCommons' checker supports."""

_INSTALL_LIMIT_S = 1800.0


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_environment(folder: Path) -> bool:
    return python_of(folder).exists()


def make_environment(folder: Path, packages: Sequence[str]) -> None:
    """Creates the environment if it does not exist, and installs the packages. Raises a ConfigError if uv fails."""
    uv = shutil.which("uv")
    if uv is None:
        raise ConfigError(
            f"{folder} cannot be created, because uv is not on the PATH: install it, e.g. with `pip install uv`"
        )
    if not is_environment(folder):
        try:
            _uv([uv, "venv", "--quiet", "--python", PYTHON, str(folder)], folder)
        except ConfigError as e:
            raise ConfigError(
                f"{e}: put a python{PYTHON} on the PATH if uv cannot download it"
            ) from None
    words = [uv, "pip", "install", "--quiet", "--python", str(python_of(folder)), *packages]
    _uv(words, folder)


def _uv(words: Sequence[str], folder: Path) -> None:
    try:
        done = run_program(words, _INSTALL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"{folder} cannot be created: {one_line(e)}") from e
    if done.returncode:
        raise ConfigError(f"{folder} cannot be created: {_last(done.stdout)}")


def _last(output: str) -> str:
    """Returns the cause of an error from uv's output, which is a tree of messages."""
    lines = [line.strip(" │├─▶╰\u00d7") for line in output.splitlines()]
    return one_line("; ".join(line for line in lines[-4:] if line) or "uv printed nothing")


def environment_variables(bytecode: Path | None = None) -> Mapping[str, str]:
    """Returns environment variables for a program in another environment. The variables omit the paths to the harness's
    packages.

    bytecode: folder for compiled modules, which Python otherwise writes next to the sources. If `bytecode` is None, the
    program stores no compiled modules.
    """
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    if bytecode is None:
        return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(bytecode.absolute()), "PYTHONUNBUFFERED": "1"}
