"""Reads OpenVINO's counters: the kernels of its CPU plug-in, and the nodes of the file that each kernel computes.

OpenVINO reports each kernel's mean time over all calls of the compiled model, in whole microseconds. The mean over the
last calls alone is computed from two of these means.
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
    "spread": "OpenVINO reports means over all calls, so these means are not trimmed",
    "start": "OpenVINO reports how long a kernel took, not when it started",
    "allocated": "OpenVINO does not report a kernel's allocations",
}


class OpenVinoProfiler(TwinProfiler):
    """Profiles a backend whose compiled model has counters enabled (PERF_COUNT)."""

    def __init__(
        self, twin: Backend, request: Callable[[], openvino.InferRequest], file: Path, batch: int
    ) -> None:
        """request: returns the infer request of the twin instance after the instance has been entered. file: an ONNX
        file, or the .xml of an IR.

        batch: number of samples in the largest batch.
        """
        super().__init__(twin)
        self._request = request
        self._path = file
        self._batch = batch
        self._means: list[Mapping[str, int]] = []
        """One mapping per recorded call, from a kernel to its mean time over all calls so far, in us."""
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
                    implementation=_info(node, "primitiveType"),
                    inserted=not _info(node, "originalLayersNames"),
                    duration_ns=(mean_ns[name],) if mean_ns.get(name) else (),
                )
                for name, node in nodes.items()
                if name not in constants and _info(node, "layerType") not in ("Input", "Output")
            ],
            inputs=file.inputs,
            outputs=file.outputs,
            constants=frozenset(t for name in constants for t in named[name]),
            tensors=dict(_tensors(nodes, named, self._batch)),
            file=None if self._path.suffix == ".onnx" else file.wiring,
            run_start_ns=(),
            run_ns=tuple(self._run_ns[-calls:]),
            without_time="OpenVINO counted no time: it ran in place, or in less than 1 us",
            absent=_ABSENT,
        )


def last_mean_ns(means: Sequence[Mapping[str, int]], calls: int) -> dict[str, int]:
    """Returns the mean of each kernel over the last `calls` calls.

    means: for each call, the mean over all calls up to this call, in us. OpenVINO truncates the means to whole us.
    Therefore, a result is up to len(means) / calls us too short, or up to len(means) / calls - 1 us too long.
    """
    before = len(means) - calls
    earlier = means[before - 1] if before else {}
    return {
        name: max(0, len(means) * mean_us - before * earlier.get(name, 0)) * _NS_PER_US // calls
        for name, mean_us in means[-1].items()
    }


def _us(time: timedelta) -> int:
    return time // timedelta(microseconds=1)


def _info(node: openvino.Node, key: str) -> str:
    """Returns the node's runtime information under `key`; '' if the node has no such information."""
    info = node.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _runtime_nodes(model: openvino.Model) -> dict[str, openvino.Node]:
    """Maps a node's name to the node, in execution order."""
    nodes = sorted(model.get_ordered_ops(), key=lambda node: int(_info(node, "execOrder") or 0))
    return {node.get_friendly_name(): node for node in nodes}


def _sources(node: openvino.Node) -> list[tuple[str, int]]:
    """Returns, for each input, the node that produces it and the index of the node's output."""
    ports = [port.get_source_output() for port in node.inputs()]
    return [(port.get_node().get_friendly_name(), port.get_index()) for port in ports]


def _constants(nodes: Mapping[str, openvino.Node]) -> set[str]:
    """Returns the nodes that do not depend on an input; OpenVINO computes these nodes when it compiles the model."""
    constants: set[str] = set()
    for name, node in nodes.items():
        sources = [source for source, _ in _sources(node)]
        if _info(node, "layerType") == "Const" or (sources and constants.issuperset(sources)):
            constants.add(name)
    return constants


def _wired(node: openvino.Node, named: Mapping[str, Sequence[str]]) -> WiredNode:
    name = node.get_friendly_name()
    inputs = tuple(named[source][port] for source, port in _sources(node))
    return WiredNode(name, _info(node, "layerType"), "", inputs, tuple(named[name]))


def _tensors(
    nodes: Mapping[str, openvino.Node], named: Mapping[str, Sequence[str]], batch: int
) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors. batch: the size of an open first dimension. Tensors with other open sizes are omitted."""
    for name, node in nodes.items():
        for tensor, port in zip(named[name], node.outputs(), strict=True):
            sizes = port.get_partial_shape()
            if sizes.rank.is_dynamic or any(size.is_dynamic for size in list(sizes)[1:]):
                continue
            shape = [batch if size.is_dynamic else size.get_length() for size in sizes]
            yield tensor, Tensor(_dtype(port.get_element_type()), tuple(shape))


def _dtype(kind: openvino.Type) -> str:
    """Returns NumPy's name for a type, e.g. float32 for f32."""
    name = str(kind.get_type_name())
    words = {"f": "float", "i": "int", "u": "uint"}
    return _DTYPES.get(name) or words.get(name[0], name[0]) + name[1:]


_DTYPES = {"boolean": "bool", "bf16": "bfloat16"}


class _FileGraph:
    """The operations that OpenVINO read from a file, which its optimiser calls "original layers".

    Tensors keep the names in the file. OpenVINO splits some nodes of an ONNX file into several operations, and invents
    names for the tensors between them.
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
        """Maps a runtime node to the names of its outputs.

        The names are the outputs of the last operation that the node replaces, unless a later node replaces this
        operation, too.
        """
        last = {name: self._last(node) for name, node in nodes.items()}
        owner = {op: name for name, op in last.items() if op}
        outputs = {}
        for name, node in nodes.items():
            own = [f"{name}#{i}" for i in range(len(node.outputs()))]
            op = last[name]
            theirs = self._outputs[op] if op and owner[op] == name else []
            outputs[name] = theirs if len(theirs) == len(own) else [*theirs[:1], *own][: len(own)]
        return outputs

    def _last(self, node: openvino.Node) -> str | None:
        names = _info(node, "originalLayersNames").split(",")
        return max(
            (n for n in names if n in self._order), key=self._order.__getitem__, default=None
        )


_NO_NODES = ("Parameter", "Constant", "Result")


def _file_node(op: openvino.Node) -> WiredNode:
    inputs = tuple(_name(port.get_source_output()) for port in op.inputs())
    outputs = tuple(map(_name, op.outputs()))
    return WiredNode(op.get_friendly_name(), op.get_type_name(), "", inputs, outputs)


def _name(port: Any) -> str:
    """Returns the tensor's name in the file, or a name made from its node."""
    own = f"{port.get_node().get_friendly_name()}#{port.get_index()}"
    return str(min(port.get_names(), default=own))
