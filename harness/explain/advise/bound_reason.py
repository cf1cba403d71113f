"""Finds the reason why layers that are measured alone take longer in total than the whole model, so that the sum of the
layers' times is not a lower bound.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from harness.core.units import show_percent
from harness.explain.advise.layers.bench import BORDERS
from harness.explain.advise.record import Record
from harness.profiler import CONTROL_FLOW

SHORT_NS = 10_000
"""If the mean kernel time is below this value, the profiler's overhead is reported as the cause. The profiler also
rounds times to whole microseconds.
"""

_LARGE = 0.1
"""A cause is reported only if it affects at least this share of the layers' time."""


def why_no_bound(record: Record, times_ns: list[float]) -> str:
    """States the most likely cause. times_ns: (units,) shortest time of each unit when it runs alone."""
    total = sum(times_ns) or 1.0
    inside = [{record.nodes[i]["op"] for i in one["nodes"]} & CONTROL_FLOW for one in record.units]
    flow_ns = sum(ns for ns, ops in zip(times_ns, inside, strict=True) if ops)
    if flow_ns > _LARGE * total:
        names = ", ".join(sorted(set[str]().union(*inside)))
        return (
            f"{show_percent(flow_ns / total)} of the layers' time is spent in {names}, and the "
            "profiler adds its overhead to each kernel in the bodies of these operators"
        )
    changed, changed_ns = _changed(record, times_ns)
    if changed_ns > _LARGE * total:
        most = ", ".join(name for name, _ in changed.most_common(2))
        return (
            f"{show_percent(changed_ns / total)} of the layers' time is spent in layers that run different "
            f"kernels alone than inside the model ({most}): measured alone, they lose quantisation or fusion"
        )
    signed_ns = sum(
        ns
        for one, ns in zip(record.units, times_ns, strict=True)
        if _is_signed(one["nodes"], record)
    )
    if signed_ns > _LARGE * total:
        return (
            f"{show_percent(signed_ns / total)} of the layers' time is spent in layers that read "
            "signed 8-bit integers: ONNX Runtime converts these to unsigned inside the model, but "
            "not in a layer alone"
        )
    kernels = record.kernels(record.now.graph)
    if sum(median(k["duration_ns"]) for k in kernels) < SHORT_NS * len(kernels):
        return (
            "the kernels take only a few microseconds each, which is mostly the profiler's overhead"
        )
    return "the machine was busier when the layers ran than when the model did"


def _is_signed(unit: Sequence[int], record: Record) -> bool:
    """Whether a layer dequantises signed 8-bit integers that an earlier layer computed."""
    takes = (
        record.nodes[i]
        for node in unit
        if record.nodes[node]["op"] == "DequantizeLinear"
        for i in record.nodes[node]["takes"]
        if i not in unit
    )
    return any(maker["makes"].startswith("int8[") for maker in takes)


def _changed(record: Record, times_ns: list[float]) -> tuple[Counter[str], float]:
    """Counts the layers that run different kernels alone than in the model, by replacement (`A instead of B`), and adds
    up the time of these layers.
    """
    executed: dict[int, set[str]] = {}
    for kernel in record.kernels(record.now.graph):
        for node in kernel["nodes"]:
            executed.setdefault(node, set()).add(kernel["op"])
    layers_by_kernels: Counter[str] = Counter()
    total = 0.0
    for unit, alone, ns in zip(record.units, record.alone(record.now), times_ns, strict=True):
        there = {op for node in unit["nodes"] for op in executed.get(node, ())} - BORDERS
        alone_kernels = set(alone.kernels) - BORDERS if alone is not None else set()
        if alone_kernels and there and not alone_kernels & there:
            layers_by_kernels[
                f"{'+'.join(sorted(alone_kernels))} instead of {'+'.join(sorted(there))}"
            ] += 1
            total += ns
    return layers_by_kernels, total
