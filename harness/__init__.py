"""Runs MLPerf LoadGen against real models on real frameworks, with results that another engineer can trust.

In a checkout the plug-in folders (`scenarios/`, `backends/`, `datasets/`, `accuracy/`) lie next to
this package, not in it. The root of the checkout is appended to `__path__`, so `harness.backends` is
found there. In a wheel they are installed inside the package and nothing is appended.

`RunConfig`, `measure`, `read_run` and `Result` are the interface for Python programs (docs/python.md).
They are imported when they are first used, so that `import harness` stays cheap.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.api.measuring import measure
    from harness.api.result import Result, read_run
    from harness.core.config.run_config import RunConfig

__all__ = ["Result", "RunConfig", "measure", "read_run"]

__version__ = "0.1.0"

_MODULES = {
    "Result": "harness.api.result",
    "RunConfig": "harness.core.config.run_config",
    "measure": "harness.api.measuring",
    "read_run": "harness.api.result",
}
"""Maps each name to the module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if (Path(__file__).parent.parent / "pyproject.toml").is_file():
    __path__.append(str(Path(__file__).parent.parent))
