"""Checks a profile's work for consistency: kernels against nodes, and rates against the measured peak.

This module has no side effects. At least one check fails if work is lost or counted twice, or if the peak is wrong.
"""

from collections.abc import Iterator, Sequence

from harness.core.units import counted, show_percent
from harness.explain.kernels.kernels import Kernel, LayerProfile
from harness.explain.kernels.layers import (
    Layer,
    NodeCost,
    Peaks,
    misplaced_work,
    overhead,
    utilisation,
)

MOST_OF_PEAK = 1.05
"""A check fails if a kernel's rate exceeds the peak by this factor. No kernel is faster than the peak; the margin of 5
% allows for noise in both measurements.
"""

LEAST_NS = 20_000
"""Kernels that take less time than this are not checked. For a kernel that takes this long, a profiler that counts
whole microseconds has an error of up to 5 %.
"""

_MOST_APART = 0.001
_MOST_SHARED = 0.25


def doubts(
    profile: LayerProfile, layers: Sequence[Layer], nodes: Sequence[NodeCost], peaks: Peaks | None
) -> list[str]:
    """Returns a line for each failed check. layers: from `layers_of` with the same profile and nodes."""
    if (kernel := misplaced_work(profile, nodes)) is not None:
        return [_wrong_map(kernel)]
    lines = [*_against_nodes(profile, layers, nodes)]
    if peaks is not None:
        lines += [*_against_peak(layers, peaks), *_whole_against_peak(profile, layers, peaks)]
    return lines


def _wrong_map(kernel: Kernel) -> str:
    return (
        f"wrong-map: {kernel.name}, a {kernel.op_type}, cannot multiply, but most of the MACs were "
        "mapped to it: the framework's kernels could not be matched with the nodes of the file, so "
        "no work is shown"
    )


def _against_nodes(
    profile: LayerProfile, layers: Sequence[Layer], nodes: Sequence[NodeCost]
) -> Iterator[str]:
    computed = [cost for i, cost in enumerate(nodes) if i not in profile.eliminated]
    of_nodes = sum(cost.macs or 0 for cost in computed)
    of_kernels = sum(layer.macs or 0 for layer in layers)
    if all(layer.macs is not None for layer in layers) and (
        abs(of_kernels - of_nodes) > _MOST_APART * of_nodes
    ):
        yield (
            f"work-mismatch: the kernels' work adds up to {of_kernels:,} MACs, the work of their "
            f"nodes to {of_nodes:,}: do not quote the work and rates of single kernels"
        )
    shared = sum(layer.shared_macs for layer in layers)
    if shared > _MOST_SHARED * of_nodes:
        yield (
            f"shared-work: {show_percent(shared / of_nodes)} of the MACs belong to nodes that several kernels "
            "compute together: they are divided by time, so the rates of these kernels are means"
        )


def _whole_against_peak(
    profile: LayerProfile, layers: Sequence[Layer], peaks: Peaks
) -> Iterator[str]:
    """Checks the unprofiled call. This check detects excess work in kernels that are too short for a separate check."""
    work = sum(layer.flops or 0 for layer in layers if not layer.is_integer)
    share = work / overhead(profile).plain_ns * 1e9 / peaks.flops_per_s
    if share > MOST_OF_PEAK:
        yield (
            f"model-above-peak: the whole call computes at {show_percent(share)} of the measured "
            "peak, because the machine was slower when the peak was measured, or because the work "
            "is wrong: profile again"
        )


def _against_peak(layers: Sequence[Layer], peaks: Peaks) -> Iterator[str]:
    rates = [
        (share, layer)
        for layer in layers
        if layer.latency_ns >= LEAST_NS and (share := utilisation(layer, peaks))
    ]
    above = [one for one in rates if one[0] > MOST_OF_PEAK]
    if above:
        most, layer = max(above, key=lambda one: one[0])
        yield (
            f"above-peak: {layer.name} computes at {show_percent(most)} of the measured peak, "
            f"{len(above)} of {counted(len(layers), 'kernel')} above {show_percent(MOST_OF_PEAK)}: "
            "either the machine was slower when the peak was measured, or the framework omits "
            "some of the file's work; profile again, and do not quote these rates"
        )
