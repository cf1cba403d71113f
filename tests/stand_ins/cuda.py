"""Stands in for `torch.cuda` on the processor: streams do nothing, and a graph repeats the operators that it captured.

As on a GPU, a replay reads and writes the memory that the capture used, but never reads values on the host, so a module
that looks at values cannot be captured.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Event:
    def __init__(self, *, blocking: bool = False) -> None:
        self.blocking = blocking

    def record(self, _stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Stream:
    def __init__(self, _device: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class CUDAGraph:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def replay(self) -> None:
        for function, args, kwargs, output in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(_tensors(output), _tensors(again), strict=True):
                if old is not new and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Captured(TorchDispatchMode):  # type: ignore[misc] # torch may not be installed
    def __init__(self, graph: CUDAGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if not isinstance(output, torch.Tensor | tuple | list):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._graph.calls.append((function, args, kwargs or {}, output))
        return output


class FakeCuda:
    """The part of `torch.cuda` that CudaModule uses."""

    Event, Stream, CUDAGraph = Event, Stream, CUDAGraph

    def __init__(self) -> None:
        self.captures = 0
        self.sync_debug_mode = "default"

    def graph_pool_handle(self) -> object:
        return object()

    def set_stream(self, _stream: object) -> None:
        pass

    def set_sync_debug_mode(self, mode: str) -> None:
        """Warns when the mode changes, as PyTorch does once per process."""
        self.sync_debug_mode = mode
        if mode != "default":
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    @contextmanager
    def graph(self, graph: Any, **_more: object) -> Iterator[None]:
        self.captures += 1
        with _Captured(graph):
            yield

    def mem_get_info(self, _device: object) -> tuple[int, int]:
        return 268_000_000, 85_520_809_984

    def max_memory_allocated(self, _device: object) -> int:
        return 123

    def memory_reserved(self, _device: object) -> int:
        return 456


def _tensors(output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor):
        return [output]
    return [each for each in output or () if isinstance(each, torch.Tensor)]
