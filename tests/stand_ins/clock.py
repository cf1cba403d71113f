"""A library that, when preloaded, makes the measured process's clock run slowly or jump."""

import shutil
import subprocess
from pathlib import Path

import pytest


def clock_library(folder: Path) -> dict[str, str]:
    """Compiles clock.c into the folder, and returns the environment that preloads the library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the preload")
    library = folder / "clock.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}
