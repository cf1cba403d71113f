"""Measures a profile's layer level: the kernels from the framework's profiler, and the costs of the file's nodes."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from harness import profiler as executed
from harness.core import registry
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.explain.kernels import framework, ort
from harness.explain.kernels.framework import FrameworkProfile
from harness.explain.kernels.layers import NodeCost, summed
from harness.explain.profile.measure.measure import Subject, affordable
from harness.models.graph import onnx_file
from harness.models.graph.calls import nodes_of
from harness.models.graph.flops import graph_costs
from harness.models.graph.graph import Graph, Tensor
from harness.models.graph.wiring import read_wiring
from harness.models.opened import loading
from harness.models.opened.ort_session import setup_of
from harness.models.opened.separate_instance import SeparateInstance
from harness.models.sequences.backend import SequenceBackend
from harness.profiler import HasProfiler, Profiler, Wiring
from harness.types import Backend

LAYER_BACKENDS = ("ort", "openvino", "torch", "tensorflow", "executorch", "ncnn", "mnn", "tract")
"""The backends of this project that report the kernels they execute."""


class Unprofiled(Exception):
    """Raised with the reason if the layer level cannot be measured. The rest of the profile continues."""


def layer_batches(subject: Subject, batches: Sequence[int], most_runs: int) -> dict[str, Any]:
    """Measures the layer level at other batch sizes. If a batch size is refused, the result contains the reason
    instead.
    """
    measured, skipped = {}, {}
    for size in batches:
        try:
            runs = affordable(partial(subject.backend.infer, subject.batch(size)), most_runs)
        except Exception as e:  # noqa: BLE001 - of a framework: a batch that the model refuses
            skipped[str(size)] = one_line(e)
            continue
        measured[str(size)], _ = layer_level(subject, size, runs)
    return {"measured": measured, "skipped": skipped}


def layer_level(
    subject: Subject, batch: int, runs: int, events: Path | None = None
) -> tuple[dict[str, Any], Graph | None]:
    """Returns the level as stored, and the graph of the model's file if it can be read.
    events: a file for ONNX Runtime's JSON profile. Raises Unprofiled if the backend reports no kernels.
    """
    is_ort = subject.config.backend == "ort"
    level = _of_ort(subject, batch, runs, events) if is_ort else _of_backend(subject, batch, runs)
    graph, no_costs = _graph(subject, batch, level.is_onnx)
    costs = node_costs(level.file, graph, level.tensors)
    nodes = [cost._asdict() for cost in costs]
    return {"profile": level.profile.to_json(), "no_costs": no_costs, "nodes": nodes}, graph


def _of_ort(subject: Subject, batch: int, runs: int, events: Path | None) -> FrameworkProfile:
    assert subject.path is not None
    config, spec = subject.config, subject.spec
    if config.device != "cpu":
        raise Unprofiled(
            "on a GPU, ONNX Runtime's profiler times the launches of kernels, not the kernels: drop --device"
        )
    options = dict(config.backend_option)
    setup = setup_of(options, spec.threads, owns_cores=spec.owns_cores, provider=config.provider)
    feeds = subject.feeds(batch)
    try:
        profiled = ort.profile(subject.path, feeds, runs=runs, setup=setup, keep_events=events)
    except ort.NoNode as e:
        raise Unprofiled(str(e)) from e
    return FrameworkProfile(profiled, read_wiring(subject.path), {}, is_onnx=True)


def _of_backend(subject: Subject, batch: int, runs: int) -> FrameworkProfile:
    """Profiles a separate instance for this batch size, because frameworks optimise for the batch size."""
    config, path = subject.config, subject.path
    spec = subject.spec._replace(max_batch=batch)
    with ExitStack() as stack:
        (backend,) = loading.open_backends(config, subject.model, path, spec, stack)
        profiler = _profiler(config.backend, backend)
        assert path is not None
        with registry.plugin(f"the profiler of backend {config.backend!r}"):
            return framework.profile(backend, profiler, subject.batch(batch), path, runs=runs)


def _profiler(name: str, backend: Backend) -> Profiler:
    if isinstance(backend, SeparateInstance):
        raise Unprofiled(
            "its instance runs in a separate process: drop --backend-option processes=on"
        )
    if isinstance(backend, SequenceBackend):
        raise Unprofiled(
            "the layers of a model with states, constants or other batch axes are profiled only by backend 'ort'"
        )
    if not isinstance(backend, HasProfiler):
        have = ", ".join(LAYER_BACKENDS)
        raise Unprofiled(f"backend {name!r} has no layer profile: choose from {have}")
    try:
        return backend.profiler()
    except ConfigError as e:
        raise Unprofiled(str(e)) from e


def _graph(subject: Subject, batch: int, is_onnx: bool) -> tuple[Graph | None, str | None]:
    assert subject.path is not None
    if not is_onnx:
        name = subject.path.name
        return None, f"{name} is not an ONNX file: costs are computed for ONNX files only"
    try:
        return onnx_file.read(subject.path, batch, shapes=subject.shapes(batch)), None
    except (ConfigError, PluginUnavailable) as e:
        return None, one_line(e)


def node_costs(
    wiring: Wiring, graph: Graph | None, tensors: Mapping[str, executed.Tensor]
) -> list[NodeCost]:
    """Returns a cost per node of the file.

    The cost is unknown if the graph does not contain the node. tensors: types of the tensors that have no type in the
    graph, by name.
    """
    costs = graph_costs(graph) if graph else []
    position = {node.index: i for i, node in enumerate(graph.nodes)} if graph else {}
    inside = nodes_of(wiring, graph) if graph else [()] * len(wiring.nodes)
    rows = []
    for node, indices in zip(wiring.nodes, inside, strict=True):
        output = next((t for t in node.outputs if t), "")
        tensor = graph.tensors.get(output) if graph else None
        if tensor is None and output in tensors:
            tensor = Tensor(*tensors[output])
        own = [costs[position[i]] for i in indices]
        rows.append(
            NodeCost(
                node.name or output,
                node.op_type,
                str(tensor) if tensor else "",
                summed(cost.macs for cost in own) if own else None,
                summed(cost.flops for cost in own) if own else None,
                sum(cost.weight_bytes for cost in own),
            )
        )
    return rows
