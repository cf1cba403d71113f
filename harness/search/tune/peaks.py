"""Computes a layout's minimum time per sample from the model's operations and the machine's measured peak."""

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, PluginUnavailable
from harness.machine.characterise.here import stored_or_none
from harness.models.graph import onnx_file
from harness.models.graph.flops import graph_costs, total
from harness.search.tune.candidates import Layout

SLACK = 1.2
"""The bound is divided by this factor, because noise lowers a measured peak, and a layout may be faster than the peak
predicts.
"""

Rates = Callable[[int], Mapping[str, float]]
"""Returns the fields of harness.machine.characterise.here.Rates for a number of threads."""


def least_sample_ns(
    config: RunConfig, path: Path | None, rates: Rates = stored_or_none
) -> Callable[[Layout], float | None]:
    """Returns a function that computes the minimum time per sample in one instance of a layout; the function returns
    None if the time is unknown.

    The time is known only for float32 ONNX files on the backend `ort`, which executes the file's operations, and only
    after `machine` has stored peaks.
    """
    flops = _flops(config, path)

    def least_ns(layout: Layout) -> float | None:
        alone, all_of_them = rates(1), rates(layout.threads)
        # If no peak is stored for this number of threads, the single-thread peak times this number is an upper bound.
        peak = all_of_them.get("flops_per_s") or alone.get("flops_per_s", 0.0) * layout.threads
        return flops / peak / SLACK * 1e9 if flops and peak else None

    return least_ns


def _flops(config: RunConfig, path: Path | None) -> int:
    """Returns the number of operations in one sample's matrix products; 0 if unknown, or if the products are not in
    float32.
    """
    if config.backend != "ort" or config.device != "cpu" or path is None or path.suffix != ".onnx":
        return 0
    try:
        graph = onnx_file.read(path, 1, shapes=dict(config.input_shape))
    except (ConfigError, PluginUnavailable):
        return 0
    if any("Linear" in node.op_type or "Integer" in node.op_type for node in graph.nodes):
        return 0
    return 2 * (total(graph_costs(graph)).macs or 0)
