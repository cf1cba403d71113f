"""Finds the GPU, and wraps calls so that they return when the GPU has finished."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import ConfigError

_NODE = Path("/dev/nvidiactl")
_WSL = Path("/dev/dxg")

LIBRARY = "torch"
"""The library of every GPU point. All points that use the same library are measured in one process."""


def is_here() -> bool:
    """Returns whether this machine has a GPU driver, without importing a framework."""
    return _NODE.exists() or _WSL.exists()


def torch_on_gpu() -> Any:
    """Returns the PyTorch module. Raises ConfigError if PyTorch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "PyTorch finds no GPU: it is a build without CUDA, or the driver is too old"
        )
    return torch


def ended(torch: Any, launch: Callable[[], object]) -> Callable[[], None]:
    """Wraps `launch` so that it returns when the GPU has finished.

    The calling thread polls, because an interrupt would arrive 0.1 ms later.
    """
    stream, done = torch.cuda.current_stream(), torch.cuda.Event()

    def call() -> None:
        launch()
        done.record(stream)
        done.synchronize()

    return call
