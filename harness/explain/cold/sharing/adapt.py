"""Makes a framework share weights by replacing, in this process, some of the backend's calls to the framework.

The backend and its options are the same as in a run. Only the call that reads or creates the weights is replaced. Each
function in this module is called once, after the framework is imported and before a model is loaded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.explain.cold.sharing.ways import INITIALISERS, MAPPED


def adapt(way: str, backend: str, folder: Path) -> None:
    """Applies a way to share. folder: folder for files that both workers share."""
    change = _CHANGES.get((way, backend))
    if change is not None:
        change(folder)


def _ort_without_prepacking(_folder: Path) -> None:
    import onnxruntime as ort

    plain = ort.InferenceSession

    def opened(path: str, options: Any, **how: Any) -> Any:
        options.add_session_config_entry("session.disable_prepacking", "1")
        return plain(path, options, **how)

    ort.InferenceSession = opened


def _litert_without_delegates(_folder: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    plain = Interpreter.__init__

    def made(self: Any, path: str, **how: Any) -> None:
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        plain(self, path, experimental_op_resolver_type=kind, **how)

    Interpreter.__init__ = made


def _openvino_compiled_once(_folder: Path) -> None:
    import openvino

    plain = openvino.Core.compile_model
    compiled: list[Any] = []

    def once(self: Any, *arguments: Any) -> Any:
        if not compiled:
            compiled.append(plain(self, *arguments))
        return compiled[0]

    openvino.Core.compile_model = once


def _torch_mapped(folder: Path) -> None:
    """Maps the parameters from a file. The first process that loads the model writes the file."""
    import torch

    plain, file = torch.jit.load, folder / "parameters.pt"

    def loaded(*arguments: Any, **how: Any) -> Any:
        module = plain(*arguments, **how)
        if not file.exists():
            torch.save(dict(module.state_dict()), file)
        _assign(module, torch.load(file, mmap=True, weights_only=True))
        return module

    torch.jit.load = loaded


def _torch_of_first(_folder: Path) -> None:
    import torch

    plain = torch.jit.load
    first: list[Any] = []

    def loaded(*arguments: Any, **how: Any) -> Any:
        module = plain(*arguments, **how)
        if first:
            _assign(module, first[0].state_dict())
        first.append(module)
        return module

    torch.jit.load = loaded


def _assign(module: Any, values: Mapping[str, Any]) -> None:
    """Replaces the module's tensors with `values`, without a copy."""
    for name, parameter in (*module.named_parameters(), *module.named_buffers()):
        parameter.data = values[name].detach()


_CHANGES: Mapping[tuple[str, str], Callable[[Path], None]] = {
    (MAPPED, "ort"): _ort_without_prepacking,
    (MAPPED, "litert"): _litert_without_delegates,
    (MAPPED, "torch"): _torch_mapped,
    (INITIALISERS, "openvino"): _openvino_compiled_once,
    (INITIALISERS, "torch"): _torch_of_first,
}
