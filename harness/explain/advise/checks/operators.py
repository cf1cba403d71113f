"""Compares each operator of a model on ONNX Runtime with ONNX's reference implementation.

Source: Deep500 (Ben-Nun et al., IPDPS 2019), level 0: L1, L2 and largest error of an operator.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import one_line
from harness.explain.advise.layers.settings import Setting
from harness.explain.advise.layers.timing import open_session
from harness.explain.advise.subject import Job
from harness.explain.pieces.cut import Cut
from harness.models.graph.flops import Cost
from harness.models.graph.graph import Graph, Node
from harness.types import Array

LIMIT = 1e-4
"""An operator passes if its error, relative to the reference's largest value, is below this limit. If the largest value
is below 1, the error is relative to 1.
"""

_MOST_MACS = 250_000_000
"""Layers with more MACs than this are not checked, because the reference uses NumPy, which takes minutes for a larger
layer.
"""
_SEED = 2


def check(job: Job, folder: Path) -> list[dict[str, Any]]:
    """Returns a row per operator of the model, measured on the smallest layer that uses it."""
    smallest: dict[str, tuple[Node, Cost]] = {}
    for node in job.graph.layers:
        one = node, job.costs[node.index]
        smallest[node.op_type] = min(smallest.get(node.op_type, one), one, key=_size)
    return [
        {
            "op": op_type,
            "layer": node.name or node.outputs[0],
            **_one(job.graph, node, cost, folder),
        }
        for op_type, (node, cost) in sorted(smallest.items())
    ]


def _size(layer: tuple[Node, Cost]) -> tuple[int, int]:
    return layer[1].macs or 0, layer[1].bytes


def _one(graph: Graph, node: Node, cost: Cost, folder: Path) -> dict[str, Any]:
    if (cost.macs or 0) > _MOST_MACS:
        return {"skipped": f"the reference is too slow for more than {_MOST_MACS / 1e6:.0f} M MACs"}
    try:
        from onnx.reference import ReferenceEvaluator

        cut = Cut(graph, (node,))
        model, path = cut.model(), folder / f"operator-{node.index}.onnx"
        path.write_bytes(model.SerializeToString())
        feeds = _signed(cut.feeds({}))
        ours = open_session(path, Setting()).run(None, feeds)
        # The logarithm of a negative number is NaN in both implementations, so numpy need not warn.
        with np.errstate(all="ignore"):
            theirs = _reference(ReferenceEvaluator, model, feeds)
    except Exception as e:  # noqa: BLE001 - the reference has only ONNX operators
        return {"skipped": one_line(e) or type(e).__name__}
    return errors(ours, theirs)


_OF_MATRICES = ("Softmax", "LogSoftmax", "Hardmax")
"""Operators that, before _OPSET_OF_AXES, treat their input as a matrix. The product of the dimensions before `axis` (default
1) is the number of its rows.
"""
_OPSET_OF_AXES = 13
"""From this opset on, the operators of _OF_MATRICES treat one axis alone."""


def _reference(evaluator: Any, model: Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Returns the outputs of ONNX's reference implementation, which does not know the old rule of _OF_MATRICES."""
    proto = model.graph.node[0]
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    is_old = proto.op_type in _OF_MATRICES and opset < _OPSET_OF_AXES
    if len(model.graph.node) > 1 or not is_old:
        return list(evaluator(model).run(None, feeds))
    axis = next((one.i for one in proto.attribute if one.name == "axis"), 1)
    name = proto.input[0]
    shape = feeds[name].shape
    rows = math.prod(shape[:axis] if axis >= 0 else shape[: len(shape) + axis])
    plain = type(model)()
    plain.CopyFrom(model)
    # Without an axis, the reference takes the last one, which holds a row.
    del plain.graph.node[0].attribute[:]
    (found,) = evaluator(plain).run(None, {**feeds, name: feeds[name].reshape(rows, -1)})
    return [found.reshape(shape)]


def _signed(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Replaces floats by positive and negative numbers, because Relu, for example, would otherwise be the identity."""
    random = np.random.default_rng(_SEED)
    return {
        name: random.standard_normal(values.shape).astype(values.dtype)
        if values.dtype.kind == "f"
        else values
        for name, values in feeds.items()
    }


def errors(ours: Sequence[Array], theirs: Sequence[Array]) -> dict[str, Any]:
    """Returns the errors over all outputs. l1: mean absolute error. l2: Euclidean norm of the errors.

    largest: largest absolute error. relative: largest / max(largest reference value, 1). passed: whether `relative` is
    below LIMIT.
    """
    if [a.shape for a in ours] != [np.shape(b) for b in theirs]:
        shapes = f"{[a.shape for a in ours]} and {[np.shape(b) for b in theirs]}"
        return {"passed": False, "failed": f"the outputs have different shapes: {shapes}"}
    a, b = (
        np.concatenate([np.ravel(x).astype(np.float64) for x in side]) for side in (ours, theirs)
    )
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.where(same, 0.0, np.abs(a - b))
    largest = float(apart.max(initial=0.0))
    finite = np.abs(b[np.isfinite(b)])
    relative = largest / max(1.0, float(finite.max(initial=0.0)))
    if not np.isfinite(apart).all():
        return {"passed": False, "failed": "one output is infinite or NaN where the other is not"}
    return {
        "l1": float(apart.mean()) if apart.size else 0.0,
        "l2": float(np.linalg.norm(apart)),
        "largest": largest,
        "relative": relative,
        "passed": relative < LIMIT,
    }
