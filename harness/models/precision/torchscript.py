"""Converts a TorchScript file to int8 with PyTorch's graph-mode quantisation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable
from harness.models.precision.samples import Feed, QuantisationSamples

SOURCE = "torchscript"
BACKEND = "torch"
TITLE = "PyTorch's tools"
SUFFIX = ".pt"

_TOOL = "torch.ao.quantization.quantize_jit"
_HEAVY = (
    "aten::_convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::linear",
    "aten::addmm", "aten::matmul", "aten::bmm", "aten::lstm", "aten::gru",
)  # fmt: skip
"""Float operators that the description lists if they remain in float32."""


def require(precision: str) -> None:
    """Checks that PyTorch still contains the tool, because PyTorch has announced the tool's removal."""
    if find_spec("torch") is None or not _has_tool():
        raise PluginUnavailable(
            f"{precision} of TorchScript is made with the module {_TOOL!r} of PyTorch 2.13, which is "
            f"not installed: {how_to_install('torch')}"
        )


def _has_tool() -> bool:
    """Looks for the module's file, because find_spec would import PyTorch and its parent packages."""
    spec = find_spec("torch")
    folders = (spec.submodule_search_locations or []) if spec else []
    parts = _TOOL.split(".")[1:]
    return any(Path(folder, *parts).with_suffix(".py").is_file() for folder in folders)


def check(_precision: str, source: Path) -> None:
    if source.suffix == ".pt2":
        raise ConfigError(
            f"PyTorch quantises only TorchScript without the model's source, but {source} is a .pt2: "
            "export the model with torch.jit.trace too"
        )


def recipe(_precision: str, _source: Path) -> dict[str, Any]:
    import torch

    return {
        "format": "torchscript",
        "torch": torch.__version__,
        "engine": torch.backends.quantized.engine,
        "weights": "int8 per channel",
        "activations": "uint8",
    }


def write(
    source: Path, path: Path, samples: QuantisationSamples | None, recipe: Mapping[str, Any]
) -> None:
    """Quantises the operators that have integer kernels. Other operators compute in float32."""
    import torch
    from torch.ao.quantization import get_default_qconfig
    from torch.ao.quantization.quantize_jit import quantize_jit

    assert samples is not None  # this module writes only int8 files, which always have samples
    module = torch.jit.load(source, map_location="cpu").eval()
    names = [argument.name for argument in module.forward.schema.arguments[1:]]

    def calibrate(observed: Any, feeds: Sequence[Feed]) -> None:
        with torch.no_grad():
            for feed in feeds:
                observed(*[torch.from_numpy(feed[name]) for name in names])

    settings = {"": get_default_qconfig(recipe["engine"])}
    quantised = quantize_jit(module, settings, calibrate, [samples.feeds])
    if "quantized::" not in str(quantised.inlined_graph):
        raise ConfigError(f"{source}: nothing in it can be quantised")
    torch.jit.save(quantised, path)


def describe(path: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `kernels`, which counts the operators in the file, and `about`."""
    import torch

    nodes = torch.jit.load(path, map_location="cpu").inlined_graph.nodes()
    kernels = Counter(str(node.kind()) for node in nodes)
    left = [name.removeprefix("aten::") for name in _HEAVY if name in kernels]
    about = (
        f"TorchScript, weights {recipe['weights']}, activations {recipe['activations']}; "
        f"ranges from {recipe['samples']}"
    )
    computes = ("quantized::", "aten::")
    return {
        "kernels": {name: n for name, n in sorted(kernels.items()) if name.startswith(computes)},
        "about": f"{about}; {', '.join(left)} in float32" if left else about,
    }
