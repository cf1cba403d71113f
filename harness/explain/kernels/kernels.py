"""Holds the kernels that a framework executed, with times, tensors and nodes of the file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.models.opened.ort_session import SessionSetup
from harness.profiler import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One node of the executed graph, in execution order.
    provider: ONNX Runtime's execution provider.
    implementation: the framework's code variant.
    nodes: indices of the file's nodes that it computes.
    inserted: it only changes a layout.
    start_ns, duration_ns: one entry a run. start_ns counts from the start of the run, empty where
    the framework does not report it; a single duration is the mean of all runs.
    allocated_bytes: taken from the allocator less what was returned, in the session's first run
    (later runs get one planned block); None where it is not reported.
    """

    name: str
    op_type: str
    provider: str
    nodes: tuple[int, ...]
    inserted: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    activation_bytes: int
    parameter_bytes: int
    output_bytes: int
    allocated_bytes: int | None
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]
    implementation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The runtime's own spans; None or empty where it has no such span.
    load_ns, initialise_ns: once. The others have one entry a run.
    A run is the call inside the runtime; `execute` is the part of the run in which kernels run.
    run_start_ns: on the profiler's clock.
    """

    load_ns: int | None
    initialise_ns: int | None
    run_start_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    execute_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Calls from Python, one entry a call. start_ns: monotonic clock. cpu_ns: all threads."""

    start_ns: tuple[int, ...]
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """Kernels of the main graph, in execution order.
    eliminated: node of the file -> why it has no kernel.
    plain, profiled: the same calls without and with the profiler, in turns.
    setup: ONNX Runtime's session; None for other frameworks.
    peak_bytes: most bytes in use by the allocator; None where it is not reported.
    absent: `spread`, `start` or `allocated` -> why it is not reported.
    """

    runtime: str
    setup: SessionSetup | None
    kernels: tuple[Kernel, ...]
    eliminated: Mapping[int, str]
    session: Session
    plain: Times
    profiled: Times
    peak_bytes: int | None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_by_call(self) -> bool:
        """Whether kernels were timed call by call, not by their mean alone."""
        return all(len(k.duration_ns) == len(self.profiled.wall_ns) for k in self.kernels)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
