"""Profiles a TensorFlow function: its kernels, and the nodes of the file that each kernel computes.

The times are taken from the host trace of tf.profiler. TensorFlow exports the graph when a function is called for the
first time. The optimiser names a fused node after the last of the nodes that it replaces.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, Self

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from harness.backends.parts.framework import TwinProfiler
from harness.backends.parts.tensorflow_graphs import moved, of_executed, of_file
from harness.errors import ConfigError
from harness.profiler import Executed, ExecutedKernel
from harness.types import Backend

_RUN = "harness: function"
_OPERATORS = 2
"""Value of tf.profiler's host_tracer_level that records all operators except the cheapest."""


class RecordedBackend(Backend, Protocol):
    """A backend whose calls can be wrapped."""

    function: Any
    """The concrete function that is called."""
    batch: int
    """Number of samples in the largest batch."""

    def mark(self, around: Callable[[Any], Any], /) -> None:
        """Calls `around(call)` instead of the function."""


class _Call(NamedTuple):
    began_ns: int
    took_ns: int
    spans: Mapping[str, tuple[int, int]]
    """Maps a node to its kernel's start (on the clock of began_ns) and duration, in ns."""


class TensorFlowProfiler(TwinProfiler):
    def __init__(self, twin: RecordedBackend) -> None:
        super().__init__(twin)
        self._program = twin
        self._graphs: Sequence[Any] = ()
        self._calls: list[_Call] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self._program.mark(self._marked)
        return self

    def _marked(self, function: Any) -> Any:
        def call(*tensors: Any) -> Any:
            self._began_ns = time.perf_counter_ns()
            with tf.profiler.experimental.Trace(_RUN):
                return function(*tensors)

        return call

    @contextmanager
    def recording(self) -> Iterator[None]:
        first = not self._graphs
        if first:
            context.context().enable_graph_collection()
        options = tf.profiler.experimental.ProfilerOptions(_OPERATORS, 0, 0)
        with TemporaryDirectory(prefix="harness-profile-") as folder:
            with tf.profiler.experimental.Profile(folder, options):
                yield
            files = list(Path(folder).glob("plugins/profile/*/*.xplane.pb"))
            self._calls.append(_read(XSpace.FromString(files[0].read_bytes()), self._began_ns))
        if first:
            metadata = context.context().export_run_metadata()
            context.context().disable_graph_collection()
            self._graphs = [g for one in metadata.function_graphs for g in one.partition_graphs]

    def executed(self, calls: int) -> Executed:
        file, tensors = of_file(self._program.function, self._program.batch)
        recorded = self._calls[-calls:]
        graph = max(self._graphs, key=lambda g: sum(n.name in recorded[-1].spans for n in g.node))
        wiring = of_executed(graph)
        spans = [
            {n.name: call.spans[n.name] for n in wiring.nodes if n.name in call.spans}
            for call in recorded
        ]
        if any(one.keys() != spans[-1].keys() for one in spans):
            raise ConfigError(
                "the calls of the model ran different kernels, so no table of layers can be made"
            )
        kernels = [
            ExecutedKernel(
                node=node,
                inserted=node.name.endswith("LayoutOptimizer"),
                start_ns=tuple(one[node.name][0] for one in spans if node.name in one),
                duration_ns=tuple(one[node.name][1] for one in spans if node.name in one),
            )
            for node in wiring.nodes
        ]
        return Executed(
            runtime=f"tensorflow {tf.__version__}",
            kernels=sorted(kernels, key=lambda one: one.start_ns[-1:] or (0,)),
            inputs=wiring.inputs,
            outputs=wiring.outputs,
            constants=wiring.initializers,
            tensors={name: tensors[name] for name in tensors.keys() - moved(file, wiring)},
            file=file,
            run_start_ns=tuple(call.began_ns for call in recorded),
            run_ns=tuple(call.took_ns for call in recorded),
            without_time="TensorFlow records no time for it: it only passes on a tensor",
            absent={"allocated": "TensorFlow's host trace does not record a kernel's allocations"},
        )


def _read(space: Any, began_ns: int) -> _Call:
    """Reads a trace, in which the name of a kernel has the form node:operator. If a kernel ran several times, its times
    are summed.
    """
    events = sorted(_events(space))
    runs = [(start, took) for start, took, name in events if name == _RUN]
    begin, took_ns = runs[0]
    first: dict[str, int] = {}
    sums: defaultdict[str, int] = defaultdict(int)
    for start, took, name in events:
        node, colon, operation = name.rpartition(":")
        if colon and operation.isidentifier():
            first.setdefault(node, began_ns + start - begin)
            sums[node] += took
    return _Call(began_ns, took_ns, {name: (first[name], sums[name]) for name in first})


def _events(space: Any) -> Iterator[tuple[int, int, str]]:
    """Yields the start, the duration (both in ns) and the name of each event on the host."""
    for plane in space.planes:
        for line in plane.lines if plane.name == "/host:CPU" else ():
            for event in line.events:
                start_ns = line.timestamp_ns + event.offset_ps // 1_000
                name = plane.event_metadata[event.metadata_id].name
                yield start_ns, event.duration_ps // 1_000, name
