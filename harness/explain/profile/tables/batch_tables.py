"""Tabulates the whole model by batch size: work, traffic and roofline position. This module has no side effects.

The input is the layer level at the profile's batch size and at each size in --batches, all measured.
"""

from collections.abc import Iterator, Mapping, Sequence

from harness.explain.kernels import layers as ly
from harness.explain.kernels.layers import Peaks
from harness.explain.profile.measure.memory import slope
from harness.explain.profile.tables.layer_tables import LayerLevel, Profiled
from harness.results.pages.tables import Cell, Column, Table, columns


def batch_tables(profiled: Profiled) -> Iterator[Table]:
    """Yields the tables; yields nothing if only one batch size was profiled."""
    batches, peaks = profiled.by_batch, profiled.peaks
    if len(batches) < 2:
        return
    refused = (profiled.content.get("layer_batches") or {}).get("skipped", {})
    yield _whole(batches, peaks, [f"batch {batch}: {why}" for batch, why in refused.items()])
    yield _kernels(batches, peaks)


def _whole(batches: Mapping[int, LayerLevel], peaks: Peaks | None, skipped: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for batch, one in batches.items():
        rate = one.flops_per_s
        bounds = [ly.bound_of(layer, peaks) for layer in one.layers] if peaks else []
        rows.append(
            [
                batch,
                one.parts.plain_ns,
                one.flops,
                one.moved_bytes,
                one.intensity,
                rate,
                peaks.bound(one.intensity) if peaks else None,
                rate / peaks.flops_per_s if peaks and rate else None,
                bounds.count("memory") if peaks else None,
                bounds.count("compute") if peaks else None,
            ]
        )
    heads = columns(
        "batch [count] | latency [ns] | flops [FLOP] | moved [bytes] | intensity [FLOP/byte]"
        "| rate [FLOP/s] | bound | of peak [share] | memory-bound [count] | compute-bound [count]"
    )
    points = {float(batch): one.intensity for batch, one in batches.items() if one.intensity}
    notes = [
        "latency without the profiler; memory-bound and compute-bound: the number of such kernels"
    ]
    if unknown := {la.ops for one in batches.values() for la in one.layers if la.flops is None}:
        notes.append(
            f"no FLOPs, because these operators have no rule: {', '.join(sorted(unknown))}"
        )
    if len(points) > 1:
        notes.append(f"the intensity grows with batch ** {slope(points):.2f}")
    about = "the whole model by batch"
    return Table("whole_by_batch", "By batch", about, heads, rows, [*notes, *skipped])


def _kernels(batches: Mapping[int, LayerLevel], peaks: Peaks | None) -> Table:
    """Tabulates a row per kernel. The kernel that is slowest at the largest batch size comes first."""
    sizes = list(batches)
    largest = sizes[-1]
    rows: list[list[Cell]] = []
    for layer in sorted(batches[largest].layers, key=lambda la: -la.latency_ns):
        same = [one.by_name.get(layer.name) for one in batches.values()]
        bounds = [ly.bound_of(la, peaks) if peaks and la else None for la in same]
        first = next((i for i, bound in enumerate(bounds) if bound == "compute"), None)
        rows.append(
            [
                layer.index,
                layer.name,
                layer.ops,
                *(la.intensity if la else None for la in same),
                *(la.flops_per_s if la else None for la in same),
                sizes[first] if first is not None else None,
            ]
        )
    heads = columns("index [count] | kernel | nodes of the file")
    heads += [Column(f"intensity at {batch}", "FLOP/byte") for batch in sizes]
    heads += [Column(f"rate at {batch}", "FLOP/s") for batch in sizes]
    heads.append(Column("compute-bound from", "count"))
    about = f"every kernel by batch, the slowest at batch {largest} first"
    notes = ["compute-bound from: the smallest batch at which the kernel is compute-bound; -: none"]
    return Table("kernels_by_batch", "Kernels by batch", about, heads, rows, notes)
