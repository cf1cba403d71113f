"""Finds the GPU, and makes calls that end when it has ended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import ConfigError

_NODE = Path("/dev/nvidiactl")
_WSL = Path("/dev/dxg")

LIBRARY = "torch"
"""The library that computes. Points with the same library are measured in one process."""


def is_here() -> bool:
    """Whether this machine has the driver of a GPU; no framework is asked."""
    return _NODE.exists() or _WSL.exists()


def torch_on_gpu() -> Any:
    """PyTorch. Raises a ConfigError where it sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "PyTorch sees no GPU: it is a build without CUDA, or the driver is too old"
        )
    return torch


def ended(torch: Any, launch: Callable[[], object]) -> Callable[[], None]:
    """A call of `launch` that returns when the GPU has done it. The thread polls: an interrupt is 0.1 ms later."""
    stream, done = torch.cuda.current_stream(), torch.cuda.Event()

    def call() -> None:
        launch()
        done.record(stream)
        done.synchronize()

    return call
