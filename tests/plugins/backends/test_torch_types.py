"""Checks the types of all code that calls PyTorch against the types of the installed PyTorch, which `test.sh` skips so
that its result does not depend on the installed frameworks.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = (
    "harness/backends/torch.py",
    *(
        f"harness/backends/parts/torch_{part}.py"
        for part in ("cuda", "graphs", "kernels", "network")
    ),
    "harness/machine/characterise/gpu/device.py",
    "harness/machine/characterise/arithmetic/libraries/torch.py",
)
KNOWN = {'"Graph" has no attribute "findAllNodes"'}
"""Errors in PyTorch's types: TorchScript's graphs have this method."""

pytestmark = pytest.mark.slow


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_calls_of_pytorch_fit_its_types(tmp_path: Path) -> None:
    """The settings follow imports into PyTorch. Many of its functions have no types, which is not our error."""
    words = (
        *("--strict", "--explicit-package-bases", "--ignore-missing-imports"),
        *("--follow-imports=silent", "--no-warn-unused-ignores"),
        *("--disable-error-code=no-untyped-call", "--config-file=", f"--cache-dir={tmp_path}"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, *FILES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = set(re.findall(r"error: (.*?)  \[", done.stdout))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert errors <= KNOWN, done.stdout
