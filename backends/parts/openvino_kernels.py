"""Reads OpenVINO's counters: the kernels of its CPU plug-in, and the file's nodes behind each kernel.

OpenVINO tells of each kernel the mean over all calls of the compiled model, in whole microseconds; the
mean of the last calls alone is the difference of two such means.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import openvino

from harness.backends.parts.framework import TwinProfiler
from harness.profiler import Executed, ExecutedKernel, Tensor, WiredNode, Wiring
from harness.types import Backend

_NS_PER_US, _NS_PER_MS = 1_000, 1_000_000
_ABSENT = {
    "spread": "OpenVINO counts means over all calls, so these are means that nothing is trimmed from",
    "start": "OpenVINO tells how long a kernel took, not when",
    "allocated": "OpenVINO does not tell what a kernel allocates",
}


class OpenVinoProfiler(TwinProfiler):
    """twin: counts. request: its one request, once it is entered. file: an ONNX file, or the .xml of an
    IR. batch: the largest.
    """

    def __init__(
        self, twin: Backend, request: Callable[[], openvino.InferRequest], file: Path, batch: int
    ) -> None:
        super().__init__(twin)
        self._request = request
        self._path = file
        self._batch = batch
        self._means: list[Mapping[str, int]] = []
        """After each recorded call: kernel -> the mean of all calls so far, us."""
        self._run_ns: list[int] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        yield
        request = self._request()
        infos = request.get_profiling_info()
        self._means.append({info.node_name: _us(info.real_time) for info in infos})
        self._run_ns.append(round(request.latency * _NS_PER_MS))

    def executed(self, calls: int) -> Executed:
        nodes = _runtime_nodes(self._request().get_compiled_model().get_runtime_model())
        file = _FileGraph(openvino.Core().read_model(self._path))
        named = file.names_of(nodes)
        constants = _constants(nodes)
        mean_ns = last_mean_ns(self._means, calls)
        return Executed(
            runtime=f"openvino {openvino.__version__.partition('-')[0]}",
            kernels=[
                ExecutedKernel(
                    node=_wired(node, named),
                    implementation=_told(node, "primitiveType"),
                    inserted=not _told(node, "originalLayersNames"),
                    duration_ns=(mean_ns[name],) if mean_ns.get(name) else (),
                )
                for name, node in nodes.items()
                if name not in constants and _told(node, "layerType") not in ("Input", "Output")
            ],
            inputs=file.inputs,
            outputs=file.outputs,
            constants=frozenset(t for name in constants for t in named[name]),
            tensors=dict(_tensors(nodes, named, self._batch)),
            file=None if self._path.suffix == ".onnx" else file.wiring,
            run_start_ns=(),
            run_ns=tuple(self._run_ns[-calls:]),
            without_time="OpenVINO counted no time: done in place, or in less than 1 us",
            absent=_ABSENT,
        )


def last_mean_ns(means: Sequence[Mapping[str, int]], calls: int) -> dict[str, int]:
    """Of the last `calls`, from means over all calls up to then. As OpenVINO cuts those to whole us,
    these are up to len(means) / calls us too short, or the rest of that above 1 us too long.
    """
    before = len(means) - calls
    earlier = means[before - 1] if before else {}
    return {
        name: max(0, len(means) * mean_us - before * earlier.get(name, 0)) * _NS_PER_US // calls
        for name, mean_us in means[-1].items()
    }


def _us(time: timedelta) -> int:
    return time // timedelta(microseconds=1)


def _told(node: openvino.Node, key: str) -> str:
    """Of what a node of the runtime's graph says about itself."""
    info = node.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _runtime_nodes(model: openvino.Model) -> dict[str, openvino.Node]:
    """By name, in order of execution."""
    found = sorted(model.get_ordered_ops(), key=lambda node: int(_told(node, "execOrder") or 0))
    return {node.get_friendly_name(): node for node in found}


def _sources(node: openvino.Node) -> list[tuple[str, int]]:
    """Of each input the node that makes it, and which of its outputs that is."""
    ports = [port.get_source_output() for port in node.inputs()]
    return [(port.get_node().get_friendly_name(), port.get_index()) for port in ports]


def _constants(nodes: Mapping[str, openvino.Node]) -> set[str]:
    """Nodes that depend on no input: done when the model is compiled."""
    found: set[str] = set()
    for name, node in nodes.items():
        sources = _sources(node)
        if _told(node, "layerType") == "Const" or (sources and all(s in found for s, _ in sources)):
            found.add(name)
    return found


def _wired(node: openvino.Node, named: Mapping[str, Sequence[str]]) -> WiredNode:
    name = node.get_friendly_name()
    inputs = tuple(named[source][port] for source, port in _sources(node))
    return WiredNode(name, _told(node, "layerType"), "", inputs, tuple(named[name]))


def _tensors(
    nodes: Mapping[str, openvino.Node], named: Mapping[str, Sequence[str]], batch: int
) -> Iterator[tuple[str, Tensor]]:
    """A first size that is left open is the batch; tensors with another open size are left out."""
    for name, node in nodes.items():
        for tensor, port in zip(named[name], node.outputs(), strict=True):
            sizes = port.get_partial_shape()
            if sizes.rank.is_dynamic or any(size.is_dynamic for size in list(sizes)[1:]):
                continue
            shape = [batch if size.is_dynamic else size.get_length() for size in sizes]
            yield tensor, Tensor(_dtype(port.get_element_type()), tuple(shape))


def _dtype(kind: openvino.Type) -> str:
    """NumPy's name, e.g. f32 -> float32."""
    name = str(kind.get_type_name())
    words = {"f": "float", "i": "int", "u": "uint"}
    return _DTYPES.get(name) or words.get(name[0], name[0]) + name[1:]


_DTYPES = {"boolean": "bool", "bf16": "bfloat16"}


class _FileGraph:
    """The operations of a file as OpenVINO read it: what its optimiser calls "original layers".

    Tensors have the names that the file gives them; OpenVINO makes several operations of some nodes
    of an ONNX file, and what lies between those has no name there, but one of OpenVINO's.
    """

    def __init__(self, model: openvino.Model) -> None:
        ops = model.get_ordered_ops()
        self._outputs = {op.get_friendly_name(): list(map(_name, op.outputs())) for op in ops}
        self._order = {name: i for i, name in enumerate(self._outputs)}
        self.inputs = tuple(_name(port) for port in model.inputs)
        self.outputs = tuple(_name(result.input(0).get_source_output()) for result in model.results)
        computing = [op for op in ops if op.get_type_name() not in _NO_NODES]
        constants = [op for op in ops if op.get_type_name() == "Constant"]
        self.wiring = Wiring(
            [_file_node(op) for op in computing],
            self.inputs,
            self.outputs,
            frozenset(_name(port) for op in constants for port in op.outputs()),
        )

    def names_of(self, nodes: Mapping[str, openvino.Node]) -> dict[str, list[str]]:
        """Of each node of the runtime's graph the names of what it makes: those of the last
        operation it stands for, unless a later node stands for that one, too.
        """
        last = {name: self._last(node) for name, node in nodes.items()}
        owner = {op: name for name, op in last.items() if op}
        found = {}
        for name, node in nodes.items():
            own = [f"{name}#{i}" for i in range(len(node.outputs()))]
            op = last[name]
            theirs = self._outputs[op] if op and owner[op] == name else []
            found[name] = theirs if len(theirs) == len(own) else [*theirs[:1], *own][: len(own)]
        return found

    def _last(self, node: openvino.Node) -> str | None:
        names = _told(node, "originalLayersNames").split(",")
        return max(
            (n for n in names if n in self._order), key=self._order.__getitem__, default=None
        )


_NO_NODES = ("Parameter", "Constant", "Result")


def _file_node(op: openvino.Node) -> WiredNode:
    inputs = tuple(_name(port.get_source_output()) for port in op.inputs())
    outputs = tuple(map(_name, op.outputs()))
    return WiredNode(op.get_friendly_name(), op.get_type_name(), "", inputs, outputs)


def _name(port: Any) -> str:
    """Of a tensor, in the file where it has one."""
    own = f"{port.get_node().get_friendly_name()}#{port.get_index()}"
    return str(min(port.get_names(), default=own))
