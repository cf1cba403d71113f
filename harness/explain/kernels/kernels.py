"""The kernels that a framework executed: their times, tensors and nodes in the model's file; as stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.models.opened.ort_session import SessionSetup
from harness.profiler import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One node of the executed graph, in execution order.

    provider: of ONNX Runtime's. implementation: which of its codes another framework chose for it.
    nodes: indices of the file's nodes that it stands for. inserted: it only changes a layout.
    start_ns, duration_ns: one entry a run; start_ns from the start of that run, empty where the
    framework does not tell it; one duration alone is the mean of all runs.
    allocated_bytes: what it took from the allocator beyond what was given back, in the session's
    first run: later ones get one block that was planned from it. None where that is not told.
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
    """Of the runtime's own spans. load_ns, initialise_ns: once. The others: one entry a run; a run is
    the call inside the runtime, execute the part of it that runs the kernels. run_start_ns: of the
    profiler's clock. None, and empty, where the runtime has no such span.
    """

    load_ns: int | None
    initialise_ns: int | None
    run_start_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    execute_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of calls from Python, one entry a call. start_ns: of the monotonic clock. cpu_ns: of all threads
    of this process.
    """

    start_ns: tuple[int, ...]
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """kernels: of the main graph, in execution order. eliminated: node of the file -> why no kernel
    stands for it. plain, profiled: the same calls without and with the profiler, in turn.
    setup: of ONNX Runtime's session, None for others. peak_bytes: the most the allocator had in use,
    None where that is not told. absent: `spread`, `start` or `allocated` -> why there is none.
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
        """Whether kernels were timed call by call, and not by their means alone."""
        return all(len(k.duration_ns) == len(self.profiled.wall_ns) for k in self.kernels)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "LayerProfile":
        """What `to_json` gave; a KeyError, TypeError or ValueError where it is not that."""
        times = {k: Times(**_tuples(content[k])) for k in ("plain", "profiled")}
        return cls(
            runtime=content["runtime"],
            setup=SessionSetup(**content["setup"]) if content["setup"] else None,
            kernels=tuple(_kernel(k) for k in content["kernels"]),
            eliminated={int(k): v for k, v in content["eliminated"].items()},
            session=Session(**_tuples(content["session"])),
            peak_bytes=content["peak_bytes"],
            absent=content.get("absent", {}),
            **times,
        )


def _kernel(content: Mapping[str, Any]) -> Kernel:
    values = _tuples(content)
    for side in ("inputs", "outputs"):
        values[side] = tuple(Tensor(dtype, tuple(shape)) for dtype, shape in content[side])
    return Kernel(**values)


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
