"""Profiles a model with the profiler of the backend's framework, which reports kernels, times and nodes in the file.

Calls with and without the profiler alternate, as in ort.py for ONNX Runtime.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.explain.kernels.fused import Origin, map_kernels
from harness.explain.kernels.kernels import Kernel, LayerProfile, Session, Times
from harness.explain.kernels.ort import interleaved
from harness.models.graph import graph
from harness.models.graph.wiring import read_wiring
from harness.profiler import Executed, ExecutedKernel, Profiler, Tensor, Wiring
from harness.types import Backend, Batch

_CHANGE_OF_LAYOUT = "ReorderInput"
"""Operator name of kernels that only change a layout. fused.py recognises it."""


class FrameworkProfile(NamedTuple):
    """A profile and the graph of the model's file.

    file: the graph. tensors: types of its tensors, as the framework reports them.
    """

    profile: LayerProfile
    file: Wiring
    tensors: Mapping[str, Tensor]
    is_onnx: bool


def profile(
    backend: Backend, profiler: Profiler, batch: Batch, path: Path, *, runs: int, warm_up: int = 3
) -> FrameworkProfile:
    """Makes `runs` plain calls and `runs` profiled calls, alternately (ABBA). path: the model's file."""
    calls = [partial(backend.infer, batch), partial(profiler.infer, batch)]
    around = [nullcontext, profiler.recording]
    with profiler:
        interleaved(calls, warm_up, around)
        times = interleaved(calls, runs, around)
        executed = profiler.executed(runs)
    file = executed.file or read_wiring(path)
    layers = of_executed(executed, file, times)
    return FrameworkProfile(layers, file, executed.tensors, is_onnx=executed.file is None)


def of_executed(executed: Executed, file: Wiring, times: tuple[Times, ...]) -> LayerProfile:
    """Returns the profile of executed kernels. times: the plain calls, then the profiled calls. Has no side effects."""
    wiring = Wiring(
        [
            k.node._replace(op_type=_CHANGE_OF_LAYOUT) if k.inserted else k.node
            for k in executed.kernels
        ],
        executed.inputs,
        executed.outputs,
        executed.constants,
    )
    mapping = map_kernels(file, wiring)
    pairs = list(zip(executed.kernels, mapping.origins, strict=True))
    timed = [(kernel, origin) for kernel, origin in pairs if kernel.duration_ns]
    mapped = {node for _, origin in timed for node in origin.nodes}
    untimed = {node for _, origin in pairs for node in origin.nodes} - mapped
    return LayerProfile(
        runtime=executed.runtime,
        setup=None,
        kernels=tuple(_kernel(kernel, origin, executed) for kernel, origin in timed),
        eliminated={**mapping.eliminated, **dict.fromkeys(sorted(untimed), executed.without_time)},
        session=Session(
            load_ns=None,
            initialise_ns=None,
            run_start_ns=executed.run_start_ns,
            run_ns=executed.run_ns,
            execute_ns=(),
        ),
        plain=times[0],
        profiled=times[1],
        peak_bytes=None,
        copies=executed.copies,
        absent=executed.absent,
    )


def _kernel(kernel: ExecutedKernel, origin: Origin, executed: Executed) -> Kernel:
    node = kernel.node
    known = executed.tensors
    data = [t for t in dict.fromkeys(node.inputs) if t not in executed.constants]
    parameters = [t for t in dict.fromkeys(node.inputs) if t in executed.constants]
    starts = zip(kernel.start_ns, executed.run_start_ns, strict=True) if kernel.start_ns else ()
    return Kernel(
        name=node.name,
        op_type=node.op_type,
        provider="",
        implementation=kernel.implementation,
        nodes=origin.nodes,
        inserted=kernel.inserted,
        inputs=tuple(known[t] for t in node.inputs if t in known),
        outputs=tuple(known[t] for t in node.outputs if t in known),
        activation_bytes=_bytes(data, known),
        parameter_bytes=_bytes(parameters, known),
        output_bytes=_bytes(node.outputs, known),
        allocated_bytes=kernel.allocated_bytes,
        start_ns=tuple(start - run for start, run in starts),
        duration_ns=kernel.duration_ns,
    )


def _bytes(names: Iterable[str], tensors: Mapping[str, Tensor]) -> int:
    known = (graph.Tensor(*tensors[name]) for name in names if name in tensors)
    return sum(tensor.size_bytes or 0 for tensor in known)
