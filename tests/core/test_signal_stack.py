"""A framework's alternate signal stack is removed together with the framework."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core import signal_stack
from harness.core.signal_stack import DISABLED, SignalStack, current, kept

ROOT = Path(__file__).parents[2]
MODELS = """\
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from harness.backends.openvino import OpenVinoBackend
from tests.builders.backends import setup

models = [OpenVinoBackend(setup(Path({root!r}) / "harness/models/shipped/digits.onnx")) for _ in "ab"]
for model in models:
    model.__enter__()
for model in models:
    model.__exit__(None, None, None)
"""
PRODUCTS = """\
import sys
sys.path.insert(0, {root!r})
from harness.machine.characterise.arithmetic.libraries import openvino

ready = openvino.product(8, "float32", 1)
ready = openvino.product(8, "float32", 1)
del ready
"""
SIGNAL = """\
import gc, signal
gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""


def install(size: int) -> ctypes.Array[ctypes.c_char]:
    """Installs an alternate stack, as a framework does."""
    memory = ctypes.create_string_buffer(size)
    stack = SignalStack(ctypes.addressof(memory), 0, size)
    assert signal_stack._libc.sigaltstack(ctypes.byref(stack), None) == 0
    return memory


@pytest.mark.parametrize(("before", "installed", "stays"), [(0, 1, 0), (2, 1, 2), (1, 2, 2)])
def test_the_previous_stack_is_restored_unless_it_is_smaller(
    before: int, installed: int, stays: int
) -> None:
    """Sizes are in units of 64 KiB; 0 means no stack."""
    own = current()
    try:
        memory = [install(before << 16)] if before else []
        if not before:
            none = SignalStack(None, DISABLED, 0)
            signal_stack._libc.sigaltstack(ctypes.byref(none), None)
        with kept():
            memory.append(install(installed << 16))
        found = current()
        assert found.flags & DISABLED if not stays else found.size == stays << 16
    finally:
        signal_stack._libc.sigaltstack(ctypes.byref(own), None)


@pytest.mark.parametrize("two", [MODELS, PRODUCTS])
def test_a_signal_after_two_models_of_openvino_is_handled(two: str) -> None:
    """Bug: the remaining stack ended the process with a segmentation fault."""
    pytest.importorskip("openvino")
    command = [sys.executable, "-c", two.format(root=str(ROOT)) + SIGNAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
