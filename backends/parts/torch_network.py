"""Reads the weights, strides and number of multiplications of a PyTorch module from the operators that the module
calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_CONVOLUTIONS = ("convolution", "_convolution", "mkldnn_convolution")
_PRODUCTS: Mapping[str, Callable[[Sequence[Any], Any], int]] = {
    "mm": lambda args, output: output.numel() * args[0].shape[-1],
    "bmm": lambda args, output: output.numel() * args[0].shape[-1],
    "mv": lambda args, _: args[0].numel(),
    **dict.fromkeys(
        ("addmm", "baddbmm", "linear", "mkldnn_linear"),
        lambda args, output: output.numel() * args[1].shape[-1],
    ),
}
_HIDDEN = ("rnn", "lstm", "gru", "attention", "einsum", "embedding_bag", "custom")
"""Multiplications are not counted for operators whose names contain one of these words."""

_TRANSPOSED = 6
"""Position of the argument `transposed` in a convolution's arguments."""


class Recorder(TorchDispatchMode):  # type: ignore[misc] # torch may not be installed
    """Records the operators that are called within the context."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[tuple[tuple[int, ...], str]] = []
        """Shape and type of each weight that quantised operators store in packed form."""
        self.strides: list[tuple[int, ...]] = []
        """The strides of convolutions."""
        self.macs: int | None = 0
        """None once an operator with an unknown number of multiplications has been called."""

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        space, _, name = str(function.overloadpacket).partition(".")
        if space == "quantized":
            self._quantised(name, args, output)
        elif name in _CONVOLUTIONS:
            self._convolution(args, output)
        elif name in _PRODUCTS:
            self._add(_PRODUCTS[name](args, output))
        elif any(word in name for word in _HIDDEN):
            self.macs = None
        return output

    def _add(self, macs: int) -> None:
        self.macs = None if self.macs is None else self.macs + macs

    def _convolution(self, args: Sequence[Any], output: Any) -> None:
        transposed = len(args) > _TRANSPOSED and args[_TRANSPOSED] is True
        each = prod(args[1].shape[1:])
        self._add((args[0] if transposed else output).numel() * each)
        if not transposed:
            self.strides.append(tuple(args[3]))

    def _quantised(self, name: str, args: Sequence[Any], output: Any) -> None:
        if not name.startswith(("conv", "linear")):
            return
        weight = args[1].unpack()[0]
        self.weights.append((tuple(weight.shape), "int8"))
        transposed = "transpose" in name
        self._add((args[0] if transposed else output).numel() * prod(weight.shape[1:]))
        if name.startswith("conv") and not transposed:
            self.strides.append(tuple(args[1].stride()))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records the operators that are called within the context. Gradients are disabled, so that PyTorch splits
    composite operators into their parts.
    """
    with torch.no_grad(), Recorder() as recorder:
        yield recorder


def weights_of(module: Any) -> list[tuple[tuple[int, ...], str]]:
    """Returns the shape and type of each weight, from the module's state or, if the module is frozen, from its graph."""
    tensors = list(module.state_dict().values())
    if isinstance(module, torch.jit.ScriptModule):
        # The graph is stored in a variable, because each access makes a new graph, whose nodes are freed with it.
        graph = module.inlined_graph
        constants = graph.findAllNodes("prim::Constant")
        kinds = ((node, str(node.output().type())) for node in constants)
        tensors += [node.t("value") for node, kind in kinds if "Tensor" in kind or "Float(" in kind]
    return [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
