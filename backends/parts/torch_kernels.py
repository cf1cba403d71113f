"""Profiles a PyTorch program: the operators that it calls, and the node of the file behind each operator.

PyTorch runs the operators of a file one after another. Therefore, the outermost operators (operators that no other
operator called) are the nodes of the file, in order.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import Any, NamedTuple, Protocol, Self

# Without this level, the profiler logs its start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from harness.backends.parts.framework import TwinProfiler
from harness.backends.parts.torch_graphs import FileGraph, of_program, of_script
from harness.errors import ConfigError
from harness.profiler import Executed, ExecutedKernel, Tensor, WiredNode
from harness.types import Backend

_RUN = "harness: module"

_COPIES = {"to the GPU": "Memcpy HtoD", "from the GPU": "Memcpy DtoH"}
"""Maps the direction of a copy to the beginning of its name in CUPTI's records."""

_ON_STREAM = "kernels of a GPU start when its stream reaches them, not when the host launches them"


class _Called(NamedTuple):
    """One call of an outermost operator."""

    name: str
    implementation: str
    start_ns: int
    """Time since the start of the module."""
    duration_ns: int
    allocated_bytes: int
    arguments: tuple[tuple[str, Sequence[int]], ...]
    """Type and shape at each position in the operator's schema, in the profiler's notation."""


class RecordedBackend(Backend, Protocol):
    """A backend whose calls can be wrapped."""

    file: Any
    """The TorchScript module or the exported program, as read from the file."""
    dtype: torch.dtype
    """The type to which float32 was converted; float32 if it was not converted."""
    on_gpu: bool

    def mark(self, around: Callable[[Any], Any], /) -> None:
        """Calls `around(module)` instead of the module."""


class TorchProfiler(TwinProfiler):
    def __init__(self, twin: RecordedBackend) -> None:
        super().__init__(twin)
        self._program = twin
        self._recorded: list[tuple[int, int, list[_Called]]] = []
        """For each recorded call: the module's start and duration in ns, and its operators."""
        self._copied: list[Mapping[str, int]] = []
        """For each recorded call: the time of the copies in ns, by direction."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._program.mark(self._marked)
        return self

    def _marked(self, module: Any) -> Any:
        def call(*tensors: torch.Tensor) -> Any:
            self._input_sizes = [tuple(tensor.shape) for tensor in tensors]
            self._began_ns = time.perf_counter_ns()
            with record_function(_RUN):
                self._answer = module(*tensors)
                # Without waiting, only the launches would be timed.
                if self._program.on_gpu:
                    torch.cuda.current_stream().synchronize()
            return self._answer

        return call

    @contextmanager
    def recording(self) -> Iterator[None]:
        activities = [ProfilerActivity.CPU]
        if self._program.on_gpu:
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
            yield
        events = profiler.events()
        run = next(event for event in events if event.name == _RUN)
        begin_us = run.time_range.start
        read = _called_on_gpu if self._program.on_gpu else _called
        called = [read(event, begin_us) for event in _outermost(run)]
        self._recorded.append((self._began_ns, _ns(run.time_range.elapsed_us()), called))
        self._copied.append(_copies(events))

    def executed(self, calls: int) -> Executed:
        recorded = self._recorded[-calls:]
        rows = [called for _, _, called in recorded]
        names = [one.name for one in rows[-1]]
        if any([one.name for one in row] != names for row in rows):
            raise ConfigError(
                "the calls of the model ran different operators, so no table of layers can be made"
            )
        graph = self._graph()
        nodes = graph.wiring.nodes
        places = _places(names, [node.op_type for node in nodes])
        starts = [began for began, _, _ in recorded]
        absent = {"start": _ON_STREAM} if self._program.on_gpu else {}
        kernels = [
            _kernel(column, nodes[place] if place is not None else None, () if absent else starts)
            for column, place in zip(zip(*rows, strict=True), places, strict=True)
        ]
        without = [node for i, node in enumerate(nodes) if i not in set(places)]
        return Executed(
            runtime=f"torch {torch.__version__}",
            kernels=[*kernels, *(ExecutedKernel(node=node) for node in without)],
            inputs=graph.wiring.inputs,
            outputs=graph.wiring.outputs,
            constants=graph.wiring.constants,
            tensors=self._tensors(graph, places, rows[-1]),
            file=graph.wiring,
            run_start_ns=tuple(starts),
            run_ns=tuple(took for _, took, _ in recorded),
            without_time="PyTorch called no operator for it",
            copies={
                way: tuple(copied[way] for copied in self._copied[-calls:])
                for way in (_COPIES if self._program.on_gpu else ())
            },
            absent=absent,
        )

    def _graph(self) -> FileGraph:
        program = self._program
        if isinstance(program.file, torch.jit.ScriptModule):
            return of_script(program.file)
        narrow = str(program.dtype).removeprefix("torch.")
        return of_program(program.file, self._input_sizes, narrow)

    def _tensors(
        self, graph: FileGraph, places: Sequence[int | None], row: Sequence[_Called]
    ) -> dict[str, Tensor]:
        """Returns the types in the file, supplemented by the types of the operators' arguments and of the answer."""
        recorded = dict(_argument_types(graph.arguments, places, row))
        answer, outputs = self._answer, graph.wiring.outputs
        if isinstance(answer, torch.Tensor) and len(outputs) == 1:
            dtype = str(answer.dtype).removeprefix("torch.")
            recorded.setdefault(outputs[0], Tensor(dtype, tuple(answer.shape)))
        return recorded | dict(graph.tensors)


def _ns(us: float) -> int:
    return round(us * 1_000)


def _copies(events: Sequence[Any]) -> dict[str, int]:
    """Returns the time in ns of all copies between host and GPU, by direction."""
    return {
        way: _ns(sum(e.time_range.elapsed_us() for e in events if e.name.startswith(begin)))
        for way, begin in _COPIES.items()
    }


def _outermost(run: Any) -> Iterator[Any]:
    """Yields the outermost operators in order; TorchScript wraps them in `forward`."""
    for event in sorted(run.cpu_children, key=lambda event: event.time_range.start):
        if "::" in event.name:
            yield event
        else:
            yield from _outermost(event)


def _called(event: Any, begin_us: float) -> _Called:
    return _Called(
        name=event.name,
        implementation=_innermost(event).name,
        start_ns=_ns(event.time_range.start - begin_us),
        duration_ns=_ns(event.time_range.elapsed_us()),
        allocated_bytes=event.cpu_memory_usage,
        arguments=tuple(zip(_input_types(event), event.input_shapes or (), strict=False)),
    )


def _input_types(event: Any) -> Sequence[str]:
    """Returns the input types; empty if PyTorch does not report them, as in PyTorch 2.11 with a GPU."""
    return getattr(event, "input_dtypes", None) or ()


def _called_on_gpu(event: Any, begin_us: float) -> _Called:
    """Returns the operator with the time of its kernels on the GPU, not of their launches on the host."""
    kernels = list(_kernels(event))
    longest = max(kernels, key=lambda kernel: kernel.duration, default=None)
    return _called(event, begin_us)._replace(
        implementation=longest.name if longest is not None else "",
        duration_ns=_ns(sum(kernel.duration for kernel in kernels)),
        allocated_bytes=event.device_memory_usage,
    )


def _kernels(event: Any) -> Iterator[Any]:
    """Yields the kernels that the operator launched, directly or through operators that it called."""
    yield from event.kernels
    for child in event.cpu_children:
        yield from _kernels(child)


def _innermost(event: Any) -> Any:
    """Returns the operator that takes most of an event's time: descends from callers to callees as long as one callee
    takes at least half of the time.
    """
    while event.cpu_children:
        longest = max(event.cpu_children, key=lambda child: child.time_range.elapsed_us())
        if longest.time_range.elapsed_us() < event.time_range.elapsed_us() / 2:
            break
        event = longest
    return event


def _places(called: Sequence[str], nodes: Sequence[str]) -> list[int | None]:
    """Returns, for each called operator, the position of its node; None if the file contains no such node."""
    places: list[int | None] = [None] * len(called)
    for at, place, size in SequenceMatcher(
        None, called, nodes, autojunk=False
    ).get_matching_blocks():
        places[at : at + size] = range(place, place + size)
    return places


def _kernel(
    column: Sequence[_Called], node: WiredNode | None, starts: Sequence[int]
) -> ExecutedKernel:
    """column: the same operator in each call. starts: start times of the calls; () if kernels have no start."""
    last = column[-1]
    return ExecutedKernel(
        node=node or WiredNode(last.name, last.name, "", (), ()),
        implementation=last.implementation,
        start_ns=tuple(a + one.start_ns for a, one in zip(starts, column, strict=False)),
        duration_ns=tuple(one.duration_ns for one in column),
        allocated_bytes=last.allocated_bytes,
    )


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "unsigned char": "uint8",
    "signed char": "int8",
    "short int": "int16",
    "int": "int32",
    "long int": "int64",
    "bool": "bool",
}
"""Maps the profiler's name for a type to NumPy's."""


def _argument_types(
    arguments: Sequence[Sequence[str | None]],
    places: Sequence[int | None],
    row: Sequence[_Called],
) -> Iterator[tuple[str, Tensor]]:
    for place, one in zip(places, row, strict=True):
        if place is None or not arguments:
            continue
        for name, (dtype, shape) in zip(arguments[place], one.arguments, strict=False):
            if name is not None and dtype in _DTYPES:
                yield name, Tensor(_DTYPES[dtype], tuple(shape))
