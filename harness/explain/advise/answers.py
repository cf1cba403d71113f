"""Answers Benanza's six questions for ONNX Runtime on a CPU, from one record. This module has no side effects.

Source: Benanza (Li et al., IPDPS 2020), section III-D. Benanza compares GPU libraries. This module compares graph
levels, layouts, thread counts, executors and precisions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.explain.advise.bound_reason import why_no_bound
from harness.explain.advise.content import (
    Bound,
    Content,
    Coverage,
    Kernels,
    Layer,
    Level,
    LowerBound,
    Measured,
    MovingKernel,
)
from harness.explain.advise.layers.bench import Clock
from harness.explain.advise.predict import CREDIBLE, advice, predicted_ns, top, unpredicted
from harness.explain.advise.questions import questions
from harness.explain.advise.record import Record
from harness.explain.pieces.lower_bound import critical_path
from harness.explain.profile.tables.tables import CONTENDED
from harness.models.graph import flops
from harness.models.graph.flops import Cost
from harness.models.opened.ort_session import GRAPH_LEVELS

_UNDOES_ITSELF = frozenset(("Transpose", "Cast"))
_DOES_NOTHING = frozenset(("Identity", "Dropout"))


def answers(content: Mapping[str, Any]) -> Content:
    """Returns all data that the tables, the page and the JSON show. content: the content of measured.json."""
    record = Record(content)
    ranked = advice(record)
    best = top(ranked)
    document: Content = {
        "model": content["model"],
        "batch": content["batch"],
        "host": content["host"],
        "runtime": content["runtime"],
        "now": content["now"],
        "stopped": bool(content.get("stopped")),
        "measured": _measured(record),
        "lower_bound": _lower_bound(record),
        "work": _work(record),
        "coverage": _coverage(record),
        "layers": _layers(record),
        "levels": _levels(record),
        "kernels": _kernels(record),
        "advice": [one.to_json() for one in ranked],
        "top": best.to_json() if best else None,
        "unpredicted": unpredicted(record),
        "accuracy": content["accuracy"],
        "peaks": content.get("peaks", {}),
        "counted": content["counted"],
    }
    document["questions"] = questions(document, ranked)
    return document


def _measured(record: Record) -> Measured:
    is_single = record.clock() == "cpu"
    ratio = record.now_median_ns("wall") / max(record.now_median_ns("cpu"), 1)
    return {
        "wall_ns": record.now_ns("wall"),
        "median_wall_ns": record.now_median_ns("wall"),
        "cpu_ns": record.now_ns("cpu"),
        "clock": record.clock(),
        "wall_over_cpu": ratio if is_single else None,
        "contended": is_single and ratio > CONTENDED,
    }


def _lower_bound(record: Record) -> LowerBound:
    """Computes the bound from CPU time if all settings use one thread, otherwise from wall time."""
    first = record.clock()
    clocks: tuple[Clock, ...] = ("cpu", "wall") if first == "cpu" else ("wall",)
    by_clock: dict[str, Bound] = {}
    for clock in clocks:
        times, _ = record.best_ns(clock)
        path = critical_path(times, record.needs)
        now_ns = record.now_ns(clock)
        by_clock[clock] = {
            "sequential_ns": sum(times),
            "parallel_ns": path.ns,
            "ratio": sum(times) / now_ns,
            "parallel_ratio": path.ns / now_ns,
            "path": list(path.units),
        }
    is_bound = by_clock[first]["ratio"] <= CREDIBLE
    return {
        "clock": first,
        **by_clock[first],
        "by_clock": by_clock,
        "units": len(record.units),
        "why_none": "" if is_bound else why_no_bound(record, record.best_ns(first)[0]),
    }


def _work(record: Record) -> dict[str, Any]:
    layers = (i for unit in record.units for i in unit["nodes"])
    whole = flops.total(_cost(record.nodes[i]) for i in layers)
    seconds = record.now_ns("wall") / 1e9
    peak = record.content.get("peaks", {}).get("flops_per_s")
    return {
        **whole._asdict(),
        "bytes": whole.bytes,
        "gflops_per_s": (whole.flops or 0) / seconds / 1e9,
        "of_peak": (whole.flops or 0) / seconds / peak if peak else None,
    }


def _cost(node: Mapping[str, Any]) -> Cost:
    return Cost(*(node[name] for name in Cost._fields))


def _coverage(record: Record) -> Coverage:
    """Computes two shares: operators with a FLOP rule (by nodes and by kernel time), and layers that were measured
    alone (by their time in the model).
    """
    kernels = [k for k in record.kernels(record.now.graph) if k["nodes"]]
    costs = [flops.total([_cost(record.nodes[i]) for i in k["nodes"]]) for k in kernels]
    unknown = [any(record.nodes[i]["flops"] is None for i in k["nodes"]) for k in kernels]
    known = [c._replace(flops=None) if u else c for c, u in zip(costs, unknown, strict=True)]
    kernel_ns = [median(k["duration_ns"]) for k in kernels]
    by_time = flops.coverage([k["op"] for k in kernels], known, kernel_ns)
    by_node = flops.coverage([n["op"] for n in record.nodes], [_cost(n) for n in record.nodes])
    alone = [ns is not None for ns in record.own_ns(record.now, "wall")]
    why_missing = {one.failed for one in record.alone(record.now) if one and one.failed}
    inside = record.inside_ns
    missing = Counter(record.about(i) for i, ok in enumerate(alone) if not ok)
    return {
        "work_nodes": by_node.node_share,
        "work_time": by_time.time_share,
        "work_missing": dict(by_node.missing),
        "layers_alone": sum(alone),
        "layers": len(alone),
        "layers_time": sum(ns for ns, ok in zip(inside, alone, strict=True) if ok)
        / (sum(inside) or 1.0),
        "layers_missing": dict(missing),
        "why_missing": sorted(why_missing)[:3],
    }


def _layers(record: Record) -> list[Layer]:
    """Returns one row per distinct layer, slowest first.

    Times refer to one occurrence. gain_ns is the sum over all occurrences.
    """
    clock = record.clock()
    now, (best, level) = record.own_ns(record.now, clock), record.best_ns(clock)
    alike: dict[str, list[int]] = defaultdict(list)
    for i, unit in enumerate(record.units):
        alike[unit["key"]].append(i)
    rows: list[Layer] = []
    for key, positions in alike.items():
        i = positions[0]
        whole = flops.total(_cost(record.nodes[n]) for n in record.units[i]["nodes"])
        mine = now[i]
        rows.append(
            {
                "key": key,
                "ops": record.about(i),
                "count": len(positions),
                "first": record.nodes[record.units[i]["nodes"][0]]["name"],
                "makes": record.nodes[record.units[i]["nodes"][-1]]["makes"],
                "now_ns": mine,
                "best_ns": best[i],
                "best": level[i],
                "gain_ns": None if mine is None else (mine - best[i]) * len(positions),
                "in_model_ns": sum(record.inside_ns[p] for p in positions),
                "macs": whole.macs,
                "flops": whole.flops,
                "bytes": whole.bytes,
            }
        )
    return sorted(rows, key=lambda row: -(row["now_ns"] or 0) * row["count"])


def _levels(record: Record) -> list[Level]:
    """Returns the time of the whole model at each graph level, with all other settings unchanged. A comparison of the
    levels shows the gain from fusion and layout.
    """
    rows: list[Level] = []
    for level in GRAPH_LEVELS:
        setting = record.now._replace(graph=level)
        kernels = record.kernels(level)
        realised = record.realised(setting)
        now_ns = record.now_ns(record.clock(setting))
        rows.append(
            {
                "graph": level,
                "kernels": len(kernels) or None,
                "fused": sum(len(k["nodes"]) > 1 and not k["inserted"] for k in kernels),
                "inserted": sum(k["inserted"] for k in kernels),
                "predicted_ns": predicted_ns(record, setting),
                "measured_ns": now_ns
                if setting == record.now
                else (now_ns / realised.ratio if realised else None),
                "failed": record.content["failed_levels"].get(level),
            }
        )
    return rows


def _kernels(record: Record) -> Kernels:
    """Describes the kernels that do not compute any layer, and the time between kernels."""
    kernels = record.kernels(record.now.graph)
    profile = record.content["profiles"][record.now.graph]
    runs = range(len(profile["run_ns"]))
    between = [profile["run_ns"][r] - sum(k["duration_ns"][r] for k in kernels) for r in runs]
    return {
        "executed": len(kernels),
        "nodes": len(record.nodes),
        "unexpected": sorted(_unexpected(record, kernels), key=lambda k: -k["ns"]),
        "between_ns": median(between),
        "run_ns": median(profile["run_ns"]),
        "in_file": list(_in_file(record.nodes)),
    }


def _unexpected(record: Record, kernels: Sequence[Mapping[str, Any]]) -> Iterator[MovingKernel]:
    """Yields the kernels that do no computation: kernels inserted by the runtime, and kernels whose nodes only move
    data.
    """
    for kernel in kernels:
        ops = [record.nodes[i]["op"] for i in kernel["nodes"]]
        is_moving = bool(ops) and all(flops.only_moves(op) for op in ops)
        if kernel["inserted"] or is_moving:
            yield {
                "name": kernel["name"],
                "op": kernel["op"],
                "why": "inserted by the runtime" if kernel["inserted"] else "moves numbers only",
                "ns": min(kernel["duration_ns"]),
            }


def _in_file(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the nodes that the model's author could remove from the file."""
    for node in nodes:
        if node["op"] in _DOES_NOTHING:
            yield f"{node['op']} {node['name']!r} does nothing at inference"
        for i in node["takes"]:
            if node["op"] in _UNDOES_ITSELF and nodes[i]["op"] == node["op"]:
                yield f"{node['op']} {nodes[i]['name']!r} is followed by {node['name']!r}"
