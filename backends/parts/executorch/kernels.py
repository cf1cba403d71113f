"""Profiles an ExecuTorch program: the operators that it ran, read from its ETDump."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, Self

from harness.backends.parts.executorch.etdump import Event, Run, runs
from harness.backends.parts.framework import TwinProfiler
from harness.errors import ConfigError
from harness.profiler import Executed, ExecutedKernel, WiredNode, Wiring
from harness.types import Backend


class TracedBackend(Backend, Protocol):
    def write_dump(self, folder: Path, /) -> Path:
        """Writes the record of the runs since the previous call."""


class ExecuTorchProfiler(TwinProfiler):
    def __init__(self, twin: TracedBackend) -> None:
        super().__init__(twin)
        self._traced = twin
        self._recorded: list[tuple[int, Run]] = []
        """The start of each recorded call, and the record of the call."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._folder = TemporaryDirectory(prefix="harness-")
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()
        super().__exit__(*exc)

    @contextmanager
    def recording(self) -> Iterator[None]:
        began_ns = time.perf_counter_ns()
        yield
        try:
            (run,) = runs(self._traced.write_dump(Path(self._folder.name)))
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"this build of ExecuTorch wrote no record of the run (ETDump): {e}"
            ) from e
        self._recorded.append((began_ns, run))

    def executed(self, calls: int) -> Executed:
        recorded = self._recorded[-calls:]
        rows = [run.operators for _, run in recorded]
        names = [event.name for event in rows[-1]]
        if any([event.name for event in row] != names for row in rows):
            raise ConfigError(
                "the calls of the model ran different operators, so no table of layers can be made"
            )
        nodes = [_node(n, event) for n, event in enumerate(rows[-1])]
        starts = [began for began, _ in recorded]
        wholes = [run.whole for _, run in recorded]
        kernels = [
            _kernel(node, column, starts, wholes)
            for node, column in zip(nodes, zip(*rows, strict=True), strict=True)
        ]
        file = Wiring(nodes, (), (), frozenset())
        return Executed(
            runtime=f"executorch {_version()}",
            kernels=kernels,
            inputs=(),
            outputs=(),
            constants=frozenset(),
            tensors={},
            file=file,
            run_start_ns=tuple(starts),
            run_ns=tuple(whole.duration_ns for whole in wholes),
            without_time="",
            absent={"allocated": "an ETDump does not record the memory of single operators"},
        )


def _version() -> str:
    from importlib.metadata import version

    return version("executorch")


def _node(number: int, event: Event) -> WiredNode:
    """Returns a node with only the operator's name, because a program does not record the operators that a delegate
    runs.
    """
    return WiredNode(f"{number} {event.name}", event.name, "", (), (f"{number} {event.name}",))


def _kernel(
    node: WiredNode, column: Sequence[Event], starts: Sequence[int], wholes: Sequence[Event]
) -> ExecutedKernel:
    """column: the same operator in each call. starts: start times of the calls. wholes: the events for the whole calls,
    on ExecuTorch's clock.
    """
    return ExecutedKernel(
        node=node,
        implementation="XNNPACK" if column[-1].of_delegate else "ExecuTorch's own",
        start_ns=tuple(
            began + event.start_ns - whole.start_ns
            for began, event, whole in zip(starts, column, wholes, strict=True)
        ),
        duration_ns=tuple(event.duration_ns for event in column),
    )
