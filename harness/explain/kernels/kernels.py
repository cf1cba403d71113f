"""Describes the kernels that a framework executed: times, tensors, and nodes of the model's file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.models.opened.ort_session import SessionSetup
from harness.profiler import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One node of the executed graph."""

    name: str
    op_type: str
    provider: str
    """ONNX Runtime's execution provider."""
    nodes: tuple[int, ...]
    """Indices of the file's nodes that the kernel computes."""
    inserted: bool
    """Whether the kernel only changes a layout."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    activation_bytes: int
    parameter_bytes: int
    output_bytes: int
    allocated_bytes: int | None
    """Bytes allocated minus bytes freed in the first run, or None if the framework does not report them. Later runs
    allocate everything as one block.
    """
    start_ns: tuple[int, ...]
    """One entry per run, relative to the start of the run. Empty if the framework does not report start times."""
    duration_ns: tuple[int, ...]
    """One entry per run, or a single entry with the mean of all runs."""
    implementation: str = ""
    """The variant of the kernel's code that the framework chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Spans that the runtime reports, with one entry per run. A missing span is None or empty."""

    load_ns: int | None
    """Reported once per session."""
    initialise_ns: int | None
    """Reported once per session."""
    run_start_ns: tuple[int, ...]
    """Start of each run on the profiler's clock."""
    run_ns: tuple[int, ...]
    """Time of the call inside the runtime."""
    execute_ns: tuple[int, ...]
    """Time of the part of a run that executes kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Calls from Python, with one entry per call. start_ns: on the monotonic clock. cpu_ns: CPU time of all threads."""

    start_ns: tuple[int, ...]
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """Kernels of the main graph, in execution order.
    eliminated: the reason why a node of the file has no kernel, by node.
    plain, profiled: the same calls without and with the profiler, which alternate.
    setup: ONNX Runtime's session; None for other frameworks.
    peak_bytes: maximum number of bytes in use by the allocator; None if it is not reported.
    copies: time in ns of the copies between host and device in each call, by direction.
    absent: the reasons why `spread`, `start` or `allocated` are not reported, by name.
    """

    runtime: str
    setup: SessionSetup | None
    kernels: tuple[Kernel, ...]
    eliminated: Mapping[int, str]
    session: Session
    plain: Times
    profiled: Times
    peak_bytes: int | None
    copies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_by_call(self) -> bool:
        """Whether kernels were timed in each call. If the kernels were not timed in each call, only their mean times
        are known.
        """
        return all(len(k.duration_ns) == len(self.profiled.wall_ns) for k in self.kernels)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
