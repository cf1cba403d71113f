"""Bounds from below how long a layout takes for a sample: the model's operations at the machine's measured peak."""

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, PluginUnavailable
from harness.machine.characterise.here import stored_or_none
from harness.models.graph import onnx_file
from harness.models.graph.flops import graph_costs, total
from harness.search.tune.candidates import Layout

SLACK = 1.2
"""A layout may be so much faster than its bound before it is left out: a peak is measured, and noise slows it."""

Rates = Callable[[int], Mapping[str, float]]
"""Threads -> fields of harness.machine.characterise.here.Rates."""


def least_sample_ns(
    config: RunConfig, path: Path | None, rates: Rates = stored_or_none
) -> Callable[[Layout], float | None]:
    """Returns a function: the least time of a sample in one instance of a layout; None where it is unknown.

    It is known of ONNX files of float32 on the backend `ort`, which multiplies as the file says, once `machine`
    has stored peaks.
    """
    flops = _flops(config, path)

    def least_ns(layout: Layout) -> float | None:
        alone, all_of_them = rates(1), rates(layout.threads)
        # No peak of so many threads is stored: they are no faster than as many single ones.
        peak = all_of_them.get("flops_per_s") or alone.get("flops_per_s", 0.0) * layout.threads
        return flops / peak / SLACK * 1e9 if flops and peak else None

    return least_ns


def _flops(config: RunConfig, path: Path | None) -> int:
    """Operations of products in a sample; 0 where they are unknown, or not of float32."""
    if config.backend != "ort" or config.device != "cpu" or path is None or path.suffix != ".onnx":
        return 0
    try:
        graph = onnx_file.read(path, 1, shapes=dict(config.input_shape))
    except (ConfigError, PluginUnavailable):
        return 0
    if any("Linear" in node.op_type or "Integer" in node.op_type for node in graph.nodes):
        return 0
    return 2 * (total(graph_costs(graph)).macs or 0)
