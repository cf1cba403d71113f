"""Tabulates a profile's layer level: XSP's analyses A2 to A15, from stored times and shapes. This module has no side
effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from harness.core.units import counted, show_ns, show_percent
from harness.explain.kernels import layers as ly
from harness.explain.kernels.kernels import LayerProfile
from harness.explain.kernels.layers import Group, Layer, NodeCost, Peaks
from harness.explain.profile.tables.work_checks import doubts
from harness.models.graph.flops import missing_text
from harness.results.evidence.stages import Completions
from harness.results.pages.tables import Cell, Column, Table, columns, show_cell

Content = Mapping[str, Any]
"""The content of profile.json."""


@dataclass(frozen=True)
class LayerLevel:
    """The layer level of a profile at one batch size, as stored."""

    profile: LayerProfile
    nodes: Sequence[NodeCost]
    """The nodes of the model's file."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "LayerLevel":
        level: LayerLevel = TypeAdapter(cls).validate_python(stored)
        return level

    @cached_property
    def layers(self) -> Sequence[Layer]:
        return ly.layers_of(self.profile, self.nodes)

    @cached_property
    def parts(self) -> ly.Overhead:
        return ly.overhead(self.profile)

    @cached_property
    def by_name(self) -> Mapping[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def flops(self) -> int | None:
        """Sums the FLOPs of the layers. Returns None if the FLOPs of any layer are unknown."""
        return ly.summed(layer.flops for layer in self.layers)

    @cached_property
    def moved_bytes(self) -> int:
        return sum(layer.moved_bytes for layer in self.layers)

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOP/byte."""
        return self.flops / self.moved_bytes if self.flops and self.moved_bytes else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / self.parts.plain_ns * 1e9 if self.flops else None

    def doubts(self, peaks: Peaks | None) -> list[str]:
        return doubts(self.profile, self.layers, self.nodes, peaks)

    @cached_property
    def by_type(self) -> Sequence[Group]:
        return ly.grouped(self.layers, lambda layer: layer.op_type)


@dataclass(frozen=True)
class Profiled:
    """The measurements in the folder of a profile or of a run."""

    content: Content
    done: Completions | None = None
    """The rows of the harness run, or None if no run was made."""

    @cached_property
    def level(self) -> LayerLevel | None:
        """The layer level at the profile's batch size, or None if it was not measured."""
        stored = self.content.get("layer")
        return LayerLevel.from_json(stored) if stored else None

    @cached_property
    def by_batch(self) -> Mapping[int, LayerLevel]:
        """The layer level at each batch size, in ascending order; empty if the layer level was not measured."""
        if self.level is None:
            return {}
        others = (self.content.get("layer_batches") or {}).get("measured", {})
        levels = {int(batch): LayerLevel.from_json(stored) for batch, stored in others.items()}
        return dict(sorted({int(self.content["batch"]): self.level, **levels}.items()))

    @cached_property
    def peaks(self) -> Peaks | None:
        rates = self.content.get("peaks") or {}
        return Peaks(**rates) if "flops_per_s" in rates else None

    @property
    def doubts(self) -> list[str]:
        """Reasons to doubt the kernels' work or rates."""
        return self.level.doubts(self.peaks) if self.level else []


MOST_TIME = 0.8
FEW = 3


def most_time(level: LayerLevel) -> str:
    """Names the smallest set of kernels that together take MOST_TIME. If this set has more than FEW kernels, names
    kernel types instead.
    """
    kernels = [(f"{one.name} ({one.op_type})", one.latency_ns) for one in level.layers]
    share, names = _fewest(kernels)
    of = counted(len(kernels), "kernel")
    if len(names) > FEW:
        share, names = _fewest([(one.name, one.latency_ns) for one in level.by_type])
        of = f"{counted(len(level.by_type), 'type')} of kernels"
    shown = ", ".join(names[:FEW]) + (", …" if len(names) > FEW else "")
    return f"{show_percent(share)} of the kernels' time is in {len(names)} of {of}: {shown}"


def _fewest(times_ns: Sequence[tuple[str, float]]) -> tuple[float, list[str]]:
    """Chooses the fewest entries that together take MOST_TIME of the total time, and returns their share of the time
    and their names.
    """
    total_ns, sum_ns, names = sum(ns for _, ns in times_ns) or 1.0, 0.0, []
    for name, ns in sorted(times_ns, key=lambda one: -one[1]):
        if sum_ns >= MOST_TIME * total_ns:
            break
        sum_ns += ns
        names.append(name)
    return sum_ns / total_ns, names


def layer_tables(profiled: Profiled) -> Iterator[Table]:
    level, peaks, content = profiled.level, profiled.peaks, profiled.content
    if level is None:
        return
    yield _layers(level)
    yield _kernels(level, peaks, content)
    about = "kernels by type: count, time, memory"
    yield _groups("types", "Types", about, "type", level.by_type)
    about = "kernels by the operator executed and the nodes of the file fused into it"
    kinds = ly.grouped(level.layers, lambda layer: f"{layer.op_type}: {layer.ops}")
    if len(kinds) > len(level.by_type):
        yield _groups("kinds", "Kinds of kernels", about, "kernel", kinds)
    yield _accounted(level)
    yield _thirds(level.layers)
    yield _whole(level, peaks, content)
    yield _sources(level)


def _layers(level: LayerLevel) -> Table:
    total = sum(layer.latency_ns for layer in level.layers) or 1.0
    rows: list[list[Cell]] = [
        [
            layer.index,
            layer.name,
            layer.op_type,
            layer.implementation or None,
            layer.ops,
            layer.shape,
            layer.latency_ns,
            layer.spread_ns,
            layer.latency_ns / total,
            layer.allocated_bytes,
        ]
        for layer in sorted(level.layers, key=lambda one: -one.latency_ns)
    ]
    heads = columns(
        "index [count] | kernel | type | implementation | nodes of the file | shape"
        "| latency [ns] | spread [ns] | share [share] | allocated [bytes]"
    )
    absent = level.profile.absent
    notes = [f"no {what}: {why}" for what, why in absent.items()]
    notes += [
        f"copies {way} took {show_ns(median(times_ns))} per call, in addition to the kernels"
        for way, times_ns in level.profile.copies.items()
    ]
    if "allocated" not in absent:
        notes.insert(0, "allocated: bytes taken from the runtime's allocator less bytes returned")
    about = "every executed kernel, the slowest first"
    return _without_empty(Table("layers", "Layers", about, heads, rows, notes))


_OPTIONAL = ("implementation", "spread", "allocated", "of memory")
"""Columns that a table omits if all their cells are empty."""


def _without_empty(table: Table) -> Table:
    kept = [
        i
        for i, column in enumerate(table.columns)
        if column.name not in _OPTIONAL or any(row[i] is not None for row in table.rows)
    ]
    rows = [[row[i] for i in kept] for row in table.rows]
    return table._replace(columns=[table.columns[i] for i in kept], rows=rows)


def _kernels(level: LayerLevel, peaks: Peaks | None, content: Content) -> Table:
    layers = level.layers
    rows: list[list[Cell]] = [
        [
            layer.index,
            layer.name,
            layer.ops,
            layer.latency_ns,
            layer.macs,
            layer.flops,
            layer.read_bytes,
            layer.write_bytes,
            layer.intensity,
            layer.flops_per_s,
            ly.bound_of(layer, peaks) if peaks else None,
            _efficiency(layer, peaks) if peaks else None,
            ly.utilisation(layer, peaks) if peaks else None,
        ]
        for layer in layers
    ]
    heads = columns(
        "index [count] | kernel | nodes of the file | latency [ns] | work [MAC] | flops [FLOP]"
        "| read [bytes] | write [bytes] | intensity [FLOP/byte] | rate [FLOP/s] | bound"
        "| of roofline [share] | of peak [share]"
    )
    notes = [
        "FLOPs and bytes are computed from shapes, not counted; bytes are the minimum that a kernel can move"
    ]
    if peaks is not None:
        notes.append(
            f"measured peaks {peaks.flops_per_s / 1e9:.1f} GFLOP/s and "
            f"{peaks.bytes_per_s / 1e9:.1f} GB/s: ridge {peaks.ridge:.2f} FLOP/byte"
        )
    elif no_peaks := (content.get("peaks") or {}).get("missing"):
        notes.append(f"no roofline: {no_peaks}")
    if integer := sum(layer.is_integer for layer in layers):
        notes.append(f"integer kernels, {_integer_roof(peaks)}: {integer:,}")
    if shared := sum(layer.shared_macs > 0 for layer in layers):
        notes.append(f"kernels that share nodes, whose work is divided by their time: {shared:,}")
    notes += [f"doubt: {doubt}" for doubt in level.doubts(peaks)]
    about = "work, traffic and roofline of every kernel, in order"
    return Table("kernels", "Kernels", about, heads, rows, notes)


def _efficiency(layer: Layer, peaks: Peaks) -> float | None:
    """Returns the kernel's rate as a share of the roofline at the kernel's intensity."""
    rate, intensity, own = layer.flops_per_s, layer.intensity, peaks.of(layer)
    if not rate or not intensity or own is None:
        return None
    return rate / min(own.flops_per_s, intensity * own.bytes_per_s)


def _integer_roof(peaks: Peaks | None) -> str:
    if peaks is None or peaks.int8_per_s is None:
        return "to which the float32 roof does not apply"
    return f"whose peak is the peak of int8 products, {peaks.int8_per_s / 1e9:.1f} GFLOP/s"


def _groups(key: str, title: str, about: str, kind: str, groups: Sequence[Group]) -> Table:
    """Returns a table of groups. kind: heading of the first column."""
    latency = sum(g.latency_ns for g in groups) or 1.0
    count = sum(g.count for g in groups) or 1
    allocated = sum(g.allocated_bytes or 0 for g in groups) or 1
    rows: list[list[Cell]] = [
        [
            g.name,
            g.count,
            g.count / count,
            g.latency_ns,
            g.latency_ns / latency,
            g.allocated_bytes,
            None if g.allocated_bytes is None else g.allocated_bytes / allocated,
            g.flops,
            g.flops / g.latency_ns * 1e9 if g.flops is not None and g.latency_ns else None,
        ]
        for g in groups
    ]
    heads = columns(
        f"{kind} | count [count] | of all [share] | latency [ns] | of time [share]"
        "| allocated [bytes] | of memory [share] | flops [FLOP] | rate [FLOP/s]"
    )
    return _without_empty(Table(key, title, about, heads, rows))


def _accounted(level: LayerLevel) -> Table:
    """Tabulates the parts of a call. Every part outside the kernels has a name."""
    parts = level.parts
    times_ns = [
        *((f"kernels {group.name}", group.latency_ns) for group in level.by_type),
        *parts.named_ns.items(),
        ("= the profiled call", parts.call_ns),
        ("less the profiler", parts.plain_ns - parts.call_ns),
        ("= the call without the profiler", parts.plain_ns),
    ]
    added, cpu, least = (
        show_percent(share, 1, signed=True)
        for share in (parts.profiler_share, parts.profiler_cpu_share, parts.profiler_least_share)
    )
    named_ns = parts.kernels_ns + sum(parts.named_ns.values())
    notes = [
        f"kernels and named overhead are {show_percent(named_ns / parts.call_ns, 2)} of the profiled call",
        f"kernels alone are {show_percent(parts.kernels_ns / parts.call_ns, 2)} of it",
    ]
    notes.append(
        f"the profiler adds {added} to the time of the same calls, {cpu} to their CPU time, and "
        f"{least} to the time of the fastest call"
    )
    about = "time of each type of kernel and of everything outside kernels, from the inside out"
    rows: list[list[Cell]] = [[name, ns, ns / parts.plain_ns] for name, ns in times_ns]
    heads = columns("part | time [ns] | of the call [share]")
    return Table("accounted", "Accounted", about, heads, rows, notes)


def _thirds(layers: Sequence[Layer]) -> Table:
    measures = {"latency": [layer.latency_ns for layer in layers]}
    if any(layer.allocated_bytes is not None for layer in layers):
        measures["allocated"] = [float(max(la.allocated_bytes or 0, 0)) for la in layers]
    if any(layer.flops for layer in layers):
        measures["flops"] = [float(layer.flops or 0) for layer in layers]
    measures["traffic"] = [float(layer.moved_bytes) for layer in layers]
    rows: list[list[Cell]] = [
        [name, *ly.thirds(values), ly.dominant(values)] for name, values in measures.items()
    ]
    heads = [Column("of"), *(Column(third, "share") for third in ly.THIRDS), Column("dominates")]
    return Table("thirds", "Thirds", "which third of the layers, by index, dominates", heads, rows)


def _whole(level: LayerLevel, peaks: Peaks | None, content: Content) -> Table:
    """Tabulates the work of the model's file. Operators without a FLOP rule are listed and do not count as 0."""
    layers, nodes = level.layers, level.nodes
    flops = sum(layer.flops or 0 for layer in layers)
    is_known = any(la.flops is not None for la in layers if not la.inserted)
    batch, ns = content["batch"], level.parts.plain_ns
    unknown = [
        node.op_type
        for i, node in enumerate(nodes)
        if node.flops is None and i not in level.profile.eliminated and node.op_type != "Constant"
    ]
    rows: list[list[Cell]] = [
        ["nodes in the file", f"{len(nodes):,}"],
        ["kernels executed", f"{len(layers):,}"],
        ["bytes per call", show_cell(level.moved_bytes, "bytes")],
    ]
    if is_known:
        macs = sum(node.macs or 0 for node in nodes) / batch
        rows.append(["MACs per sample", show_cell(macs, "MAC")])
        rows.append(["FLOPs per call", show_cell(float(flops), "FLOP")])
        rows.append(
            [
                "rate",
                f"{show_cell(flops / ns * 1e9, 'FLOP/s')}: FLOPs of the file / unprofiled latency",
            ]
        )
    if is_known and (moved := level.moved_bytes):
        rows.append(["intensity", f"{flops / moved:.3g} FLOP/byte"])
        if peaks is not None:
            rows.append(["bound by", str(peaks.bound(flops / moved))])
            kind = " (of float32's)" if any(layer.is_integer for layer in layers) else ""
            share = show_percent(flops / ns * 1e9 / peaks.flops_per_s, 1)
            rows.append(["of peak", f"{share}{kind}"])
    no_costs = content["layer"]["no_costs"]
    notes = [f"no FLOPs: {no_costs}"] if no_costs else missing_text(unknown)
    about = "one call at the profile's batch"
    return Table("whole", "Whole model", about, columns("of the model | value"), rows, notes)


def _sources(level: LayerLevel) -> Table:
    """Tabulates each node of the file with the kernels that compute it, or the reason why it has no kernel."""
    layers, eliminated = level.layers, level.profile.eliminated
    kernels: dict[int, list[str]] = {}
    for layer in layers:
        if not layer.inserted:
            for i in layer.nodes:
                kernels.setdefault(i, []).append(layer.name)
    mapped = {i for layer in layers for i in layer.nodes}
    rows: list[list[Cell]] = []
    for i, node in enumerate(level.nodes):
        names = " ".join(kernels.get(i, ())) or ("(layout only)" if i in mapped else "")
        why = eliminated.get(i, "")
        rows.append([i, node.name, node.op_type, node.shape, node.macs, names, why])
    notes = [
        f"{sum(bool(layer.nodes) for layer in layers)} of {counted(len(layers), 'kernel')} mapped to nodes",
        f"of {counted(len(level.nodes), 'node')}, {len(mapped):,} mapped, {len(eliminated):,} eliminated",
    ]
    heads = columns("node [count] | name | type | made | work [MAC] | kernels | eliminated")
    about = "every node of the model's file, and the kernels that compute it"
    return Table("nodes", "Nodes", about, heads, rows, notes)
