"""Builds a record of `advise`: three convolutions, two of them on branches that are joined."""

from typing import Any

from harness.explain.advise.layers.bench import LayerTimes
from harness.explain.advise.layers.settings import INT8, PARALLEL, Setting
from harness.models.opened.ort_session import GRAPH_LEVELS

NOW = Setting(graph="basic", threads=1)
OPS = (("Conv", "BatchNormalization"), ("Conv",), ("Conv",), ("Concat",))
KEYS = ("wide", "narrow", "narrow", "join")
NEEDS: tuple[tuple[int, ...], ...] = ((), (0,), (0,), (1, 2))
MS = 1_000_000

TIMES_MS: dict[Setting, tuple[float, float, float]] = {
    NOW: (8.0, 4.0, 1.0),
    NOW._replace(graph="off"): (10.0, 5.0, 1.0),
    NOW._replace(graph="extended"): (6.0, 4.0, 1.0),
    NOW._replace(graph="all"): (4.0, 4.5, 1.0),
    NOW._replace(threads=2): (4.0, 2.0, 1.0),
    NOW._replace(precision=INT8): (3.0, 1.0, 1.0),
}
"""Times of the layers `wide`, `narrow` and `join`, each run alone."""


def record(**changes: Any) -> dict[str, Any]:
    """Returns the content of measured.json. With the current setting, 17 ms are spent in layers and 3 ms elsewhere."""
    candidates = [
        *(NOW._replace(graph=level) for level in GRAPH_LEVELS if level != NOW.graph),
        NOW._replace(threads=2),
        NOW._replace(threads=2, execution=PARALLEL),
        NOW._replace(precision=INT8),
    ]
    nodes, units = _nodes_and_units()
    content = {
        "schema_version": 1,
        "model": {
            "name": "toy",
            "sha256": "0" * 64,
            "has_random_weights": False,
            "dataset": "synthetic",
            "inputs": {"x": ["float32", 1, 8]},
        },
        "batch": 1,
        "host": "here",
        "environment": {},
        "runtime": "onnxruntime 1.0",
        "now": str(NOW),
        "axes": ["graph", "threads", "execution", "precision"],
        "nodes": nodes,
        "units": units,
        "profiles": {level: _profile(level, nodes) for level in GRAPH_LEVELS},
        "failed_levels": {},
        "layers": _layers(),
        "counted": {"ran": 18, "found": 0, "elsewhere": 0},
        "now_runs": timing(20 * MS, 20 * MS),
        "candidates": [str(s) for s in candidates],
        "pairs": {
            str(NOW._replace(graph="all")): pair(20, 17),
            str(NOW._replace(threads=2)): pair(20, 21),
        },
        "accuracy": None,
        "parts": {},
    }
    return {**content, **changes}


def timing(wall_ns: int, cpu_ns: int, count: int = 7) -> dict[str, list[int]]:
    return {"wall_ns": [wall_ns] * count, "cpu_ns": [cpu_ns] * count}


def pair(now_ms: float, other_ms: float) -> dict[str, Any]:
    sides = {"now": round(now_ms * MS), "other": round(other_ms * MS)}
    return {name: timing(ns, ns) for name, ns in sides.items()}


def accuracy(drop: float | None = 0.2, no_score: str = "") -> dict[str, Any]:
    return {
        "samples": 500,
        "metric": "top1",
        "unit": "%",
        "own_score": None if drop is None else 99.0,
        "score": None if drop is None else 99.0 - drop,
        "drop": drop,
        "no_score": no_score,
        "agreement": 0.98,
        "relative_l2": 0.05,
        "quantisation_samples": 200,
        "quantisation_samples_are_scored": False,
    }


def _nodes_and_units() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    nodes: list[dict[str, Any]] = []
    units: list[dict[str, Any]] = []
    for ops, key, needs in zip(OPS, KEYS, NEEDS, strict=True):
        first = len(nodes)
        for i, op in enumerate(ops):
            known = op != "Concat"
            nodes.append(
                {
                    "name": f"{op.lower()}_{len(nodes)}",
                    "op": op,
                    "takes": [first] if i else [units[n]["nodes"][-1] for n in needs],
                    "eliminated": None,
                    "makes": "float32[1,8]",
                    "macs": 1000 if op == "Conv" else 0,
                    "flops": 2000 if known else 0,
                    "weight_bytes": 10,
                    "input_bytes": 20,
                    "output_bytes": 30,
                }
            )
        units.append({"nodes": list(range(first, len(nodes))), "key": key, "needs": list(needs)})
    return nodes, units


def _layers() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for setting, row in TIMES_MS.items():
        for key, ms in zip(("wide", "narrow", "join"), row, strict=True):
            ns = round(ms * MS)
            alone = LayerTimes((ns, 2 * ns), (ns, 2 * ns), (ns, 2 * ns), (0, 0), ("Conv",))
            found.setdefault(key, {})[str(setting)] = alone._asdict()
    return found


def _profile(level: str, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """`off` runs every node; the other levels fuse the first two nodes, and `all` also inserts a layout change."""
    groups = [[i] for i in range(len(nodes))] if level == "off" else [[0, 1], [2], [3], [4]]
    kernels = [_kernel(f"k{i}", nodes[g[0]]["op"], g) for i, g in enumerate(groups)]
    if level == "all":
        kernels.append(_kernel("reorder", "ReorderOutput", [4], inserted=True))
    return {"run_ns": [20 * MS] * 3, "kernels": kernels}


def _kernel(name: str, op: str, nodes: list[int], *, inserted: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "op": op,
        "nodes": nodes,
        "inserted": inserted,
        "duration_ns": [4 * MS] * 3,
    }
