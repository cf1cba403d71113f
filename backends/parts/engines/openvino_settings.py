"""Options that all pipelines of OpenVINO GenAI share: number types for the computation and the cache."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import openvino

from harness.backends.parts.framework import Choices
from harness.errors import ConfigError

OPTIONS: Choices = {
    "precision": ("f32", "bf16", "f16"),
    "cache": ("f32", "bf16", "f16", "u8"),
}

_CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}
"""Maps a precision to OpenVINO's name for the CPU capability."""


def settings(option: Mapping[str, str], threads: int) -> dict[str, object]:
    """Returns the properties of a pipeline. Raises a ConfigError if this CPU does not support the precision."""
    requested = option["precision"]
    needed = _CAPABILITIES.get(requested)
    if needed and needed not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ConfigError(
            f"--backend-option precision={requested}: this CPU has no {needed}: use precision=f32"
        )
    return {
        "INFERENCE_PRECISION_HINT": requested,
        "KV_CACHE_PRECISION": option["cache"],
        "INFERENCE_NUM_THREADS": threads,
        # Otherwise OpenVINO would pin every instance to the same cores.
        "ENABLE_CPU_PINNING": False,
    }


def weights(paths: Iterable[Path]) -> list[tuple[tuple[int, ...], str]]:
    """Returns the shape and number type of each constant in the files."""
    core = openvino.Core()
    return [
        (tuple(node.get_output_shape(0)), node.get_element_type().get_type_name())
        for path in paths
        for node in core.read_model(path).get_ops()
        if node.get_type_name() == "Constant"
    ]
