"""Tabulates A15 over batches: work, traffic and roofline position by batch size. Pure.

From the layer level at the profile's batch and at each of --batches, all of them measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.explain.kernels import layers as ly
from harness.explain.kernels.layers import Layer, Peaks
from harness.explain.profile.measure.memory import slope
from harness.explain.profile.tables.layer_tables import LayerLevel, peaks_of
from harness.results.pages.tables import Cell, Column, Table, columns


class AtBatch(NamedTuple):
    """A profiled call, with the time of the same call without the profiler."""

    batch: int
    layers: Sequence[Layer]
    call_ns: float

    @property
    def flops(self) -> int | None:
        """None where those of one layer are unknown."""
        return ly.summed(layer.flops for layer in self.layers)

    @property
    def moved_bytes(self) -> int:
        return sum(layer.read_bytes + layer.write_bytes for layer in self.layers)

    @property
    def intensity(self) -> float | None:
        """FLOP/byte."""
        return self.flops / self.moved_bytes if self.flops and self.moved_bytes else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / self.call_ns * 1e9 if self.flops else None

    def named(self, name: str) -> Layer | None:
        return next((layer for layer in self.layers if layer.name == name), None)


def at_batches(content: Mapping[str, Any]) -> list[AtBatch]:
    """By batch, ascending, including the profile's own. Empty without a layer level."""
    if not content.get("layer"):
        return []
    measured = {str(content["batch"]): content["layer"], **_others(content).get("measured", {})}
    batches = []
    for batch, level in measured.items():
        layer_level = LayerLevel.from_json(level)
        batches.append(AtBatch(int(batch), layer_level.layers, layer_level.parts.plain_ns))
    return sorted(batches, key=lambda one: one.batch)


def _others(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return content.get("layer_batches") or {}


def batch_tables(content: Mapping[str, Any]) -> Iterator[Table]:
    """No table where only one batch was profiled."""
    batches, peaks = at_batches(content), peaks_of(content)
    if len(batches) < 2:
        return
    skipped = [f"batch {b}: {why}" for b, why in _others(content).get("skipped", {}).items()]
    yield _whole(batches, peaks, skipped)
    yield _kernels(batches, peaks)


def _whole(batches: Sequence[AtBatch], peaks: Peaks | None, skipped: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for one in batches:
        rate = one.flops_per_s
        bounds = [ly.bound_of(layer, peaks) for layer in one.layers] if peaks else []
        rows.append(
            [
                one.batch,
                one.call_ns,
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
    points = {float(one.batch): one.intensity for one in batches if one.intensity}
    notes = ["latency without the profiler; memory-bound, compute-bound: kernels"]
    if unknown := {layer.ops for one in batches for layer in one.layers if layer.flops is None}:
        notes.append(f"no FLOPs, because these have no rule: {', '.join(sorted(unknown))}")
    if len(points) > 1:
        notes.append(f"the intensity grows with batch ** {slope(points):.2f}")
    about = "A15: the whole model by batch"
    return Table("whole_by_batch", "By batch", about, heads, rows, [*notes, *skipped])


def _kernels(batches: Sequence[AtBatch], peaks: Peaks | None) -> Table:
    """One row for each kernel, the slowest at the largest batch first."""
    largest = batches[-1]
    rows: list[list[Cell]] = []
    for layer in sorted(largest.layers, key=lambda la: -la.latency_ns):
        same = [one.named(layer.name) for one in batches]
        bounds = [ly.bound_of(la, peaks) if peaks and la else None for la in same]
        first = next((i for i, bound in enumerate(bounds) if bound == "compute"), None)
        rows.append(
            [
                layer.index,
                layer.name,
                layer.ops,
                *(la.intensity if la else None for la in same),
                *(la.flops_per_s if la else None for la in same),
                batches[first].batch if first is not None else None,
            ]
        )
    heads = columns("index [count] | kernel | nodes of the file")
    heads += [Column(f"intensity at {one.batch}", "FLOP/byte") for one in batches]
    heads += [Column(f"rate at {one.batch}", "FLOP/s") for one in batches]
    heads.append(Column("compute-bound from", "count"))
    about = f"A14 by batch: every kernel, the slowest at batch {largest.batch} first"
    notes = ["compute-bound from: the smallest of these batches where the kernel is; -: none"]
    return Table("kernels_by_batch", "Kernels by batch", about, heads, rows, notes)
