"""MLPerf LoadGen against real models on real frameworks; results another engineer can trust.

In a checkout the plug-in folders (`scenarios/`, `backends/`, `datasets/`, `accuracy/`) lie beside
this package, not in it: the root is appended to `__path__`, so that `harness.backends` is found
there. In a wheel they are installed inside it and nothing is appended.
"""

from pathlib import Path

__version__ = "0.1.0"

if (Path(__file__).parent.parent / "pyproject.toml").is_file():
    __path__.append(str(Path(__file__).parent.parent))
