"""Analyses a profile's kernels: shares, thirds, roofline, time between kernels.

All means use the same runs, so that the times of the parts add up exactly to the time of the whole call. Runs are
ranked by the time of the whole call, and the fastest fifth and the slowest fifth are left out. If a framework reports
only the mean of all runs, that mean is used. This module has no side effects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from harness.core.stats import TRIMMED, trimmed_mean
from harness.explain.kernels.kernels import Kernel, LayerProfile, Session
from harness.explain.kernels.shared_work import Share, Shares, misplaced, shares_of
from harness.models.graph import flops
from harness.models.graph.flop_rules import Operand
from harness.types import Array

THIRDS = ("beginning", "middle", "end")


class NodeCost(NamedTuple):
    """The cost of a node in the file. flops: None if the node's operator has no rule (flops.py)."""

    name: str
    op_type: str
    shape: str
    macs: int | None
    flops: int | None
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A kernel and the nodes that it computes."""

    index: int
    name: str
    op_type: str
    ops: str
    """Operators of the file's nodes, joined by +."""
    shape: str
    latency_ns: float
    """Trimmed mean of the kernel's time."""
    spread_ns: float | None
    """Standard deviation over all runs; None if only the mean is known."""
    allocated_bytes: int | None
    macs: int | None
    """Work of the file's nodes without folded normalisation, or None if a node has no FLOP rule. If several kernels
    compute a node, the node's work is divided among these kernels in proportion to their times.
    """
    flops: int | None
    """Number of FLOPs, counted like `macs`."""
    read_bytes: int
    """Number of bytes that the kernel reads. Each operand counts once."""
    write_bytes: int
    nodes: tuple[int, ...]
    inserted: bool
    implementation: str
    shared_macs: int = 0
    """The part of `macs` that comes from nodes that several kernels share."""
    is_integer: bool = False
    """Whether the kernel multiplies eight-bit integers, to which the float32 peak does not apply."""

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOP/byte."""
        moved = self.moved_bytes
        return self.flops / moved if self.flops is not None and moved else None

    @property
    def flops_per_s(self) -> float | None:
        if self.flops is None or not self.latency_ns:
            return None
        return self.flops / self.latency_ns * 1e9


class Peaks(NamedTuple):
    """Measured peak rates of this machine with this many threads."""

    flops_per_s: float
    """Rate of operations in fp32 products."""
    bytes_per_s: float
    int8_per_s: float | None = None
    """Rate of operations in int8 products, or None if it was not measured."""

    def of(self, layer: Layer) -> "Peaks | None":
        """Returns the peaks that apply to a kernel; None if the peaks of its precision are unknown."""
        if not layer.is_integer:
            return self
        return None if self.int8_per_s is None else self._replace(flops_per_s=self.int8_per_s)

    @property
    def ridge(self) -> float:
        """Intensity in FLOP/byte above which a kernel is compute-bound."""
        return self.flops_per_s / self.bytes_per_s

    def bound(self, intensity: float | None) -> str | None:
        if intensity is None:
            return None
        return "memory" if intensity < self.ridge else "compute"


def bound_of(layer: Layer, peaks: Peaks) -> str | None:
    """Returns the resource that limits a kernel; None if the peak of the kernel's precision is unknown."""
    own = peaks.of(layer)
    return own.bound(layer.intensity) if own is not None else None


def utilisation(layer: Layer, peaks: Peaks) -> float | None:
    """Returns the kernel's rate divided by the peak of the kernel's precision; None if the kernel does not multiply or
    the peak is unknown.
    """
    own, rate = peaks.of(layer), layer.flops_per_s
    return rate / own.flops_per_s if own is not None and rate else None


class Overhead(NamedTuple):
    """A profiled call, split into parts in ns. plain: the same call without the profiler. named_ns: times outside
    kernels by name, innermost first. The kernels' times and the named times add up to the time of the call.
    """

    kernels_ns: float
    named_ns: Mapping[str, float]
    call_ns: float
    plain_ns: float
    call_cpu_ns: float
    plain_cpu_ns: float
    least_call_ns: float
    least_plain_ns: float

    @property
    def profiler_share(self) -> float:
        """Time that the profiler adds to a call, as a share of the unprofiled call. Noise can make this share negative."""
        return self.call_ns / self.plain_ns - 1

    @property
    def profiler_cpu_share(self) -> float:
        """CPU time that the profiler adds to a call, as a share of the unprofiled call's CPU time.

        Other processes disturb CPU time less than wall time.
        """
        return self.call_cpu_ns / self.plain_cpu_ns - 1

    @property
    def profiler_least_share(self) -> float:
        """Time that the profiler adds to a call, as a share of the unprofiled call. Compares only the fastest profiled
        and the fastest unprofiled call, because other processes disturb these calls least.
        """
        return self.least_call_ns / self.least_plain_ns - 1


def kept(call_ns: Sequence[int], trimmed: float = TRIMMED) -> Array:
    """Drops the fastest and the slowest runs (a share of `trimmed` at each end), and returns the indices of the
    remaining runs.
    """
    drop = int(len(call_ns) * trimmed)
    order = np.argsort(call_ns, kind="stable")
    chosen: Array = np.sort(order[drop : len(order) - drop])
    return chosen


def layers_of(profile: LayerProfile, nodes: Sequence[NodeCost | None]) -> list[Layer]:
    """Returns the layers of a profile.

    nodes: costs of the file's nodes by index; None for a constant, which is not in the graph. If `misplaced_work` finds
    an error in the map, no work is assigned to any layer.
    """
    chosen = kept(profile.profiled.wall_ns, _trimmed(profile))
    times = [_mean(kernel.duration_ns, chosen) for kernel in profile.kernels]
    shares = shares_of(profile.kernels, times, _products(nodes))
    if misplaced_work(profile, nodes) is not None:
        nodes = [c and c._replace(macs=None, flops=None, weight_bytes=0) for c in nodes]
    return [_layer(i, kernel, nodes, chosen, shares) for i, kernel in enumerate(profile.kernels)]


def misplaced_work(profile: LayerProfile, nodes: Sequence[NodeCost | None]) -> Kernel | None:
    """Returns the kernel that cannot multiply although the map assigns most of the MACs to it. Such a map is wrong."""
    return misplaced(profile.kernels, _products(nodes))


def _products(nodes: Sequence[NodeCost | None]) -> dict[int, int]:
    """Returns the MACs by node, for the nodes with MACs."""
    return {i: cost.macs for i, cost in enumerate(nodes) if cost is not None and cost.macs}


def _trimmed(profile: LayerProfile) -> float:
    return TRIMMED if profile.is_by_call else 0.0


def _mean(values: Sequence[int], chosen: Array) -> float:
    """Returns the mean over the chosen runs. A single value is already the mean of all runs."""
    array = np.asarray(values, float)
    return float(array[0] if len(array) == 1 else array[chosen].mean())


def _layer(
    index: int, kernel: Kernel, nodes: Sequence[NodeCost | None], chosen: Array, shares: Shares
) -> Layer:
    known = {i: cost for i in kernel.nodes if i < len(nodes) and (cost := nodes[i]) is not None}
    costs = list(known.values())
    shared = {i: shares[i][index] for i in known if index in shares.get(i, ())}
    own = [] if kernel.inserted else _computed([_part(c, shared.get(i)) for i, c in known.items()])
    durations = kernel.duration_ns
    return Layer(
        index=index,
        name=kernel.name,
        op_type=kernel.op_type,
        ops=kernel.op_type if kernel.inserted else "+".join(cost.op_type for cost in costs),
        shape=" ".join("x".join(map(str, t.shape)) or "scalar" for t in kernel.outputs),
        latency_ns=_mean(durations, chosen),
        spread_ns=float(np.std(durations)) if len(durations) > 1 else None,
        allocated_bytes=kernel.allocated_bytes,
        macs=summed(cost.macs for cost in own),
        flops=summed(cost.flops for cost in own),
        read_bytes=_read_bytes(kernel, own),
        write_bytes=kernel.output_bytes,
        nodes=kernel.nodes,
        inserted=kernel.inserted,
        implementation=kernel.implementation,
        shared_macs=sum(_part(known[i], p).macs or 0 for i, p in shared.items() if p.is_divided),
        is_integer=any(cost.macs for cost in own)
        and bool(kernel.inputs)
        and kernel.inputs[0].dtype in ("int8", "uint8"),
    )


def _read_bytes(kernel: Kernel, own: Sequence[NodeCost]) -> int:
    """Counts the bytes that a kernel reads.

    If ONNX Runtime converts weights to another layout, it does not report them, so the weights of the nodes are
    counted. For an embedding, ONNX Runtime reports the whole table, even if a call reads only a few rows.
    """
    sizes = [Operand(tensor.shape, tensor.dtype).bytes for tensor in kernel.inputs]
    unread = sum(
        size - flops.read_bytes(kernel.op_type, i, size, kernel.output_bytes)
        for i, size in enumerate(sizes)
    )
    if unread:
        return max(0, kernel.activation_bytes + kernel.parameter_bytes - unread)
    weight_bytes = max(kernel.parameter_bytes, sum(cost.weight_bytes for cost in own))
    return kernel.activation_bytes + weight_bytes


def _part(cost: NodeCost, share: Share | None) -> NodeCost:
    """Returns a kernel's part of a node's work as a whole number. The parts of all the node's kernels add up to the
    node's work.
    """
    if share is None:
        return cost

    return cost._replace(
        macs=share.part(cost.macs),
        flops=share.part(cost.flops),
        weight_bytes=share.part(cost.weight_bytes) or 0,
    )


def _computed(costs: Sequence[NodeCost]) -> list[NodeCost]:
    """Drops a normalisation that was folded into the weights of the node before it."""
    heavy = any(cost.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") for cost in costs)
    return [c for c in costs if not (heavy and c.op_type == "BatchNormalization")]


def summed(values: Iterable[int | None]) -> int | None:
    """Adds up the values. Returns None if any value is unknown."""
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def overhead(profile: LayerProfile) -> Overhead:
    trimmed = _trimmed(profile)
    chosen = kept(profile.profiled.wall_ns, trimmed)
    kernels = sum(_mean(kernel.duration_ns, chosen) for kernel in profile.kernels)
    call = _mean(profile.profiled.wall_ns, chosen)
    return Overhead(
        kernels_ns=kernels,
        named_ns=_named(profile.session, kernels, call, chosen),
        call_ns=call,
        plain_ns=trimmed_mean(profile.plain.wall_ns, trimmed),
        call_cpu_ns=trimmed_mean(profile.profiled.cpu_ns, trimmed),
        plain_cpu_ns=trimmed_mean(profile.plain.cpu_ns, trimmed),
        least_call_ns=min(profile.profiled.wall_ns),
        least_plain_ns=min(profile.plain.wall_ns),
    )


def _named(session: Session, kernels_ns: float, call_ns: float, chosen: Array) -> dict[str, float]:
    """Returns the time outside kernels, by name. Only ONNX Runtime reports the executor's time separately."""
    run = _mean(session.run_ns, chosen)
    if not session.execute_ns:
        return {"runtime, between kernels": run - kernels_ns, "call from Python": call_ns - run}
    # Some executors do not report this span, so the time of the run replaces it.
    execute = _mean(session.execute_ns, chosen) or run
    return {
        "executor, between kernels": execute - kernels_ns,
        "session, around the executor": run - execute,
        "call from Python": call_ns - run,
    }


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    count: int
    latency_ns: float
    allocated_bytes: int | None
    flops: int | None


def grouped(layers: Sequence[Layer], by: Callable[[Layer], str]) -> list[Group]:
    names = dict.fromkeys(map(by, layers))
    groups = [_group(name, [layer for layer in layers if by(layer) == name]) for name in names]
    return sorted(groups, key=lambda g: -g.latency_ns)


def _group(name: str, layers: Sequence[Layer]) -> Group:
    """Adds up allocations and ignores freed memory. `flops` is None if the FLOPs of a layer are unknown."""
    allocated = [layer.allocated_bytes for layer in layers if layer.allocated_bytes is not None]
    return Group(
        name,
        len(layers),
        sum(layer.latency_ns for layer in layers),
        sum(max(taken, 0) for taken in allocated) if allocated else None,
        summed(layer.flops for layer in layers),
    )


def thirds(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the shares for the first, middle and last third of the layers; zeros if all values are 0."""
    total = float(sum(values)) or 1.0
    cuts = [round(len(values) * i / 3) for i in range(4)]
    first, middle, last = (sum(values[a:b]) / total for a, b in pairwise(cuts))
    return first, middle, last


def dominant(values: Sequence[float]) -> str:
    """Returns the third with the largest share: beginning, middle or end."""
    shares = thirds(values)
    return THIRDS[shares.index(max(shares))]


def uncertainty(values: Sequence[float]) -> float:
    """Returns the standard error of the values' median, ignoring stalls, as a share of the median. Returns 0 for one
    value.
    """
    middle = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(np.asarray(values) - middle)))
    return spread / middle / len(values) ** 0.5 if middle else 0.0
