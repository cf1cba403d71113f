"""Describes a model's weights: zeros, distribution, channel ranges, quantisation noise.

A weight matrix of mostly zeros can be stored in less space. If the channels of a matrix differ by orders of magnitude,
a single 8-bit scale for all channels loses most of the precision.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.explain.advise.subject import Job
from harness.models.graph.graph import Graph
from harness.types import Array

BINS = 32
NEAR_ZERO = 1e-3
"""A value is "near zero" if it is at most this share of the tensor's largest value."""

_LEAST_ELEMENTS = 256
"""A tensor counts as a weight only if it contains at least this many elements. Smaller tensors are treated as offsets,
scales and shapes.
"""

_OUTPUT_AXIS = {"ConvTranspose": 1, "MatMul": -1}
"""Axis of the output channels for each operator; 0 for all other operators."""


def check(job: Job, _folder: Path) -> list[dict[str, Any]]:
    """Returns a row per weight with several axes, in file order."""
    import onnx

    rows = []
    users = _used_by(job.graph)
    for tensor in onnx.load(job.path).graph.initializer:
        if tensor.name not in users or np.prod(tensor.dims) < _LEAST_ELEMENTS:
            continue
        op_type, axis, layer = users[tensor.name]
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype.kind in "fiu":
            about = {"name": tensor.name, "layer": layer, "op": op_type}
            rows.append({**about, **pattern(values, axis)})
    return rows


def _used_by(graph: Graph) -> Mapping[str, tuple[str, int, str]]:
    """Maps each weight to the operator, the output axis and the name of the first layer that reads it."""
    users: dict[str, tuple[str, int, str]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            constant = graph.constants.get(name)
            if constant is not None and len(constant.tensor.shape) > 1:
                axis = _OUTPUT_AXIS.get(node.op_type, 0)
                if node.op_type == "Gemm" and not node.attributes.get("transB", 0):
                    axis = -1
                users.setdefault(name, (node.op_type, axis, node.name or node.outputs[0]))
    return users


def pattern(values: Array, axis: int) -> dict[str, Any]:
    """Describes one weight. axis: the axis of its output channels.
    zero_share, near_zero_share: in [0, 1]. Values below NEAR_ZERO times the largest value are near zero.
    histogram: counts in BINS equal bins from the smallest to the largest value.
    channel_ranges: minimum, median and maximum of the channels' largest absolute values.
    snr_db: signal-to-noise ratio of 8-bit integers with one scale for the tensor, and with one scale per channel.
    snr_db is None if the noise is zero.
    """
    numbers = np.asarray(values, np.float32)
    if not np.isfinite(numbers).all():
        return {"elements": int(numbers.size), "failed": "it contains infinity or NaN"}
    largest = float(np.abs(numbers).max())
    rows = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
    ranges = np.abs(rows).max(axis=1)
    counts, edges = np.histogram(numbers, BINS)
    return {
        "shape": list(numbers.shape),
        "elements": int(numbers.size),
        "zero_share": float((numbers == 0).mean()),
        "near_zero_share": float((np.abs(numbers) <= NEAR_ZERO * largest).mean()),
        "mean": float(numbers.mean(dtype=np.float64)),
        "deviation": float(numbers.std(dtype=np.float64)),
        "least": float(numbers.min()),
        "largest": float(numbers.max()),
        "histogram": {"counts": counts.tolist(), "from": float(edges[0]), "to": float(edges[-1])},
        "channels": len(ranges),
        "channel_ranges": [float(f(ranges)) for f in (np.min, np.median, np.max)],
        "snr_db": {
            "per_tensor": _snr_db(rows, np.full_like(ranges, largest)),
            "per_channel": _snr_db(rows, ranges),
        },
    }


def _snr_db(rows: Array, ranges: Array) -> float | None:
    """Returns the signal-to-noise ratio of weights that are stored as 8-bit integers.

    rows: (channels, n). ranges: (channels,), the value that 127 represents.
    """
    steps = np.where(ranges > 0, ranges, 1.0)[:, np.newaxis] / 127
    noise = float(np.square(rows - np.round(rows / steps) * steps).sum(dtype=np.float64))
    signal = float(np.square(rows).sum(dtype=np.float64))
    return 10 * float(np.log10(signal / noise)) if noise and signal else None
