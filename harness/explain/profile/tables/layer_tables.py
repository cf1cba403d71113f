"""Tabulates a profile's layer level: XSP's analyses A2 to A15, from stored times and shapes. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.units import show_percent
from harness.explain.kernels import layers as ly
from harness.explain.kernels.kernels import LayerProfile
from harness.explain.kernels.layers import Group, Layer, NodeCost, Peaks
from harness.explain.profile.tables.work_checks import doubts
from harness.models.graph.flops import missing_text
from harness.results.pages.tables import Cell, Column, Table

Content = Mapping[str, Any]
"""The content of profile.json."""

_LATENCY = Column("latency", "ns")
_SHARE = Column("share", "share")


def profile_of(content: Content) -> LayerProfile | None:
    layer = content.get("layer")
    return LayerProfile.from_json(layer["profile"]) if layer else None


def layer_tables(content: Content) -> Iterator[Table]:
    layer, profile = content.get("layer"), profile_of(content)
    if not layer or profile is None:
        return
    nodes = [NodeCost(**cost) for cost in layer["nodes"]]
    layers = ly.layers_of(profile, nodes)
    peaks = peaks_of(content)
    yield _layers(layers, profile.absent)
    no_peaks = (content.get("peaks") or {}).get("missing")
    yield _kernels(layers, peaks, no_peaks, doubts(profile, layers, nodes, peaks))
    yield _types(layers)
    yield _kinds(layers)
    yield _accounted(ly.overhead(profile), layers)
    yield _thirds(layers)
    yield _whole(layers, nodes, ly.overhead(profile), profile.eliminated, peaks, content)
    yield _sources(layers, nodes, profile)


def peaks_of(content: Content) -> Peaks | None:
    rates = content.get("peaks") or {}
    return Peaks(**rates) if "flops_per_s" in rates else None


def _layers(layers: Sequence[Layer], absent: Mapping[str, str]) -> Table:
    total = sum(layer.latency_ns for layer in layers) or 1.0
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
        for layer in sorted(layers, key=lambda one: -one.latency_ns)
    ]
    columns = [Column("index", "count"), Column("kernel"), Column("type")]
    columns += [Column("implementation"), Column("nodes of the file"), Column("shape"), _LATENCY]
    columns += [Column("spread", "ns"), _SHARE, Column("allocated", "bytes")]
    about = "A2-A4: every executed kernel, the slowest first"
    notes = [f"no {what}: {why}" for what, why in absent.items()]
    if "allocated" not in absent:
        notes.insert(0, "allocated: bytes taken from the runtime's allocator less bytes returned")
    filled = _without_empty(columns, rows, ("implementation", "spread", "allocated"))
    return Table("layers", "Layers", about, *filled, notes)


def _without_empty(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], optional: Sequence[str]
) -> tuple[list[Column], list[list[Cell]]]:
    """Drops optional columns without any value."""
    indices = [
        i
        for i, column in enumerate(columns)
        if column.name not in optional or any(row[i] is not None for row in rows)
    ]
    return [columns[i] for i in indices], [[row[i] for i in indices] for row in rows]


def layer_doubts(content: Content) -> list[str]:
    """Doubts about the work and rates of a profile's kernels; empty where there are none."""
    layer, profile = content.get("layer"), profile_of(content)
    if not layer or profile is None:
        return []
    nodes = [NodeCost(**cost) for cost in layer["nodes"]]
    return doubts(profile, ly.layers_of(profile, nodes), nodes, peaks_of(content))


def _kernels(
    layers: Sequence[Layer], peaks: Peaks | None, no_peaks: str | None, doubted: Sequence[str]
) -> Table:
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
            *((ly.bound_of(layer, peaks), _efficiency(layer, peaks)) if peaks else (None, None)),
        ]
        for layer in layers
    ]
    columns = [Column("index", "count"), Column("kernel"), Column("nodes of the file"), _LATENCY]
    columns += [Column("work", "MAC"), Column("flops", "FLOP"), Column("read", "bytes")]
    columns += [Column("write", "bytes"), Column("intensity", "FLOP/byte")]
    columns += [Column("rate", "FLOP/s"), Column("bound"), Column("of roofline", "share")]
    notes = [
        "FLOPs and bytes are computed from shapes, not counted; bytes are the least a kernel can move"
    ]
    if peaks is not None:
        notes.append(
            f"measured peaks {peaks.flops_per_s / 1e9:.1f} GFLOP/s and "
            f"{peaks.bytes_per_s / 1e9:.1f} GB/s: ridge {peaks.ridge:.2f} FLOP/byte"
        )
    elif no_peaks:
        notes.append(f"no roofline: {no_peaks}")
    if integer := sum(layer.is_integer for layer in layers):
        notes.append(f"{integer} kernels compute integers: the float32 roof does not apply to them")
    if shared := sum(layer.shared_macs > 0 for layer in layers):
        notes.append(f"{shared} kernels share nodes: work is divided among them by their time")
    notes += [f"doubt: {doubt}" for doubt in doubted]
    about = "A8, A9, A11-A14: work, traffic and roofline of every kernel, in order"
    return Table("kernels", "Kernels", about, columns, rows, notes)


def _efficiency(layer: Layer, peaks: Peaks) -> float | None:
    """The kernel's rate over the highest rate that the roofline allows at its intensity."""
    rate, intensity = layer.flops_per_s, layer.intensity
    if not rate or not intensity or layer.is_integer:
        return None
    return rate / min(peaks.flops_per_s, intensity * peaks.bytes_per_s)


def _group_rows(groups: Sequence[Group]) -> list[list[Cell]]:
    latency = sum(g.latency_ns for g in groups) or 1.0
    count = sum(g.count for g in groups) or 1
    allocated = sum(g.allocated_bytes or 0 for g in groups) or 1
    return [
        [
            g.name,
            g.count,
            g.count / count,
            g.latency_ns,
            g.latency_ns / latency,
            g.allocated_bytes,
            None if g.allocated_bytes is None else g.allocated_bytes / allocated,
            g.flops,
            _rate_per_s(g),
        ]
        for g in groups
    ]


def _rate_per_s(group: Group) -> float | None:
    if group.flops is None or not group.latency_ns:
        return None
    return group.flops / group.latency_ns * 1e9


_GROUP_COLUMNS = [Column("count", "count"), Column("of all", "share"), _LATENCY]
_GROUP_COLUMNS += [Column("of time", "share"), Column("allocated", "bytes")]
_GROUP_COLUMNS += [Column("of memory", "share"), Column("flops", "FLOP")]
_GROUP_COLUMNS += [Column("rate", "FLOP/s")]
_MEMORY = ("allocated", "of memory")


def _types(layers: Sequence[Layer]) -> Table:
    rows = _group_rows(ly.grouped(layers, lambda layer: layer.op_type))
    about = "A5-A7: kernels by type: count, time, memory"
    return Table(
        "types", "Types", about, *_without_empty((Column("type"), *_GROUP_COLUMNS), rows, _MEMORY)
    )


def _kinds(layers: Sequence[Layer]) -> Table:
    """Groups kernels by the nodes fused into them."""
    rows = _group_rows(ly.grouped(layers, lambda layer: f"{layer.op_type}: {layer.ops}"))
    about = "A10: kernels by name: the operator executed, and the nodes of the file fused into it"
    filled = _without_empty((Column("kernel"), *_GROUP_COLUMNS), rows, _MEMORY)
    return Table("kinds", "Kinds of kernels", about, *filled)


def _accounted(parts: ly.Overhead, layers: Sequence[Layer]) -> Table:
    """The counterpart of A13: every part outside kernels has a name."""
    by_type = ly.grouped(layers, lambda layer: layer.op_type)
    rows: list[list[Cell]] = [[f"kernels {g.name}", g.latency_ns] for g in by_type]
    rows += [
        *(list[Cell](part) for part in parts.named_ns.items()),
        ["= the profiled call", parts.call_ns],
        ["less the profiler", parts.plain_ns - parts.call_ns],
        ["= the call without profiler", parts.plain_ns],
    ]
    total = [[name, ns, float(ns or 0) / parts.plain_ns] for name, ns in rows]
    added = (
        f"the profiler adds {show_percent(parts.profiler_share, 1, signed=True)} to the time of the "
        "same calls, "
        f"{show_percent(parts.profiler_cpu_share, 1, signed=True)} to their CPU time, "
        f"{show_percent(parts.profiler_least_share, 1, signed=True)} to the fastest"
    )
    named_ns = parts.kernels_ns + sum(parts.named_ns.values())
    notes = [
        f"kernels and named overhead are {show_percent(named_ns / parts.call_ns, 2)} of the profiled call",
        f"kernels alone are {show_percent(parts.kernels_ns / parts.call_ns, 2)} of it",
        added,
    ]
    columns = (Column("part"), Column("time", "ns"), Column("of the call", "share"))
    about = "time by type of kernel and everything outside kernels (A6, A13), from the inside out"
    return Table("accounted", "Accounted", about, columns, total, notes)


def _thirds(layers: Sequence[Layer]) -> Table:
    flops = [float(layer.flops or 0) for layer in layers]
    taken = [float(max(layer.allocated_bytes or 0, 0)) for layer in layers]
    is_told = any(layer.allocated_bytes is not None for layer in layers)
    measures = {
        "latency": [layer.latency_ns for layer in layers],
        **({"allocated": taken} if is_told else {}),
        **({"flops": flops} if any(flops) else {}),
        "traffic": [float(layer.read_bytes + layer.write_bytes) for layer in layers],
    }
    rows: list[list[Cell]] = [
        [name, *ly.thirds(values), ly.dominant(values)] for name, values in measures.items()
    ]
    columns = [Column("of"), *(Column(third, "share") for third in ly.THIRDS)]
    columns += [Column("dominates")]
    about = "which third of the layers, by index, dominates"
    return Table("thirds", "Thirds", about, columns, rows)


def _whole(
    layers: Sequence[Layer],
    nodes: Sequence[NodeCost],
    parts: ly.Overhead,
    eliminated: Mapping[int, str],
    peaks: Peaks | None,
    content: Content,
) -> Table:
    """A15. Work is the file's; operators without a rule are listed, not counted as 0."""
    flops = sum(layer.flops or 0 for layer in layers)
    is_known = any(node.flops is not None for node in nodes)
    moved = sum(layer.read_bytes + layer.write_bytes for layer in layers)
    batch = content["batch"]
    ns = parts.plain_ns
    unknown = [
        node.op_type
        for i, node in enumerate(nodes)
        if node.flops is None and i not in eliminated and node.op_type != "Constant"
    ]
    rows: list[list[Cell]] = [
        ["nodes in the file", f"{len(nodes):,}"],
        ["kernels executed", f"{len(layers):,}"],
        ["bytes a call", f"{moved / 1e6:.4g} MB"],
        ["AI-ops/s", f"{batch / ns * 1e9:.4g}: samples inferred a second, whatever each costs"],
    ]
    if is_known:
        macs = sum(node.macs or 0 for node in nodes) / batch
        rows.append(["MACs a sample", f"{macs / 1e9:.4g} G"])
        rows.append(["FLOPs a call", f"{flops / 1e9:.4g} G"])
        rows.append(["rate", f"{flops / ns:.4g} GFLOP/s: FLOPs of the file / unprofiled latency"])
    if is_known and moved:
        rows.append(["intensity", f"{flops / moved:.3g} FLOP/byte"])
        if peaks is not None:
            rows.append(["bound by", str(peaks.bound(flops / moved))])
            kind = " (of float32's)" if any(layer.is_integer for layer in layers) else ""
            rows.append(
                ["of peak", f"{show_percent(flops / ns * 1e9 / peaks.flops_per_s, 1)}{kind}"]
            )
    notes = missing_text(unknown)
    if content["layer"]["no_costs"]:
        notes = [f"no FLOPs: {content['layer']['no_costs']}"]
    columns = (Column("of the model"), Column("value"))
    return Table(
        "whole", "Whole model", "A15: one call at the profile's batch", columns, rows, notes
    )


def _sources(layers: Sequence[Layer], nodes: Sequence[NodeCost], profile: LayerProfile) -> Table:
    """Each node of the file with the kernels that compute it, or the reason why none does."""
    kernels: dict[int, list[str]] = {}
    for layer in layers:
        if not layer.inserted:
            for i in layer.nodes:
                kernels.setdefault(i, []).append(layer.name)
    mapped = {i for layer in layers for i in layer.nodes}
    rows: list[list[Cell]] = []
    for i, node in enumerate(nodes):
        names = " ".join(kernels.get(i, ())) or ("(layout only)" if i in mapped else "")
        why = profile.eliminated.get(i, "")
        rows.append([i, node.name, node.op_type, node.shape, node.macs, names, why])
    notes = [
        f"{sum(bool(layer.nodes) for layer in layers)} of {len(layers)} kernels stand for nodes",
        f"of {len(nodes)} nodes {len(mapped)} are mapped, {len(profile.eliminated)} eliminated",
    ]
    columns = [Column("node", "count"), Column("name"), Column("type"), Column("made")]
    columns += [Column("work", "MAC"), Column("kernels"), Column("eliminated")]
    about = "every node of the model's file, and the kernels that compute it"
    return Table("nodes", "Nodes", about, columns, rows, notes)
