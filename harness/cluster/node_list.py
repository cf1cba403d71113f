"""Lists the nodes that --nodes can refer to, and each node's machine, versions and models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core import child
from harness.core.config.parse import LOCAL_NODES, RAY_NODES, parse_nodes
from harness.errors import ConfigError
from harness.models.opened.node import NodeFacts
from harness.results.pages.tables import aligned, columns
from harness.run.measured.nodes.links import NodeLinks

_RAY_HEADS = columns(
    "node | machine | CPU | cores [count] | memory [bytes] | harness | Python | packages | models"
)
_HEADS = columns(
    "node | host | cores [count] | harness | backend | framework | model | dataset | instances | rate [samples/s]"
)

_FRAMEWORKS = (
    *("onnxruntime", "openvino", "tensorflow-cpu", "tensorflow", "torch", "ai-edge-litert"),
    *("executorch", "treelite", "xgboost-cpu", "xgboost", "lightgbm"),
    *("ncnn", "mnn", "tract", "onnxruntime-genai", "openvino-genai", "xllamacpp"),
)


def lines(text: str) -> Iterator[str]:
    """Yields a table of the nodes. text: value of --nodes. Raises ConfigError if the nodes cannot be listed."""
    try:
        nodes = parse_nodes(text)
    except ValueError as e:
        raise ConfigError(f"--nodes: {e}") from None
    if nodes.startswith(LOCAL_NODES):
        raise ConfigError(f"--nodes {nodes}: a run starts these nodes, so there are none to list")
    yield from _of_ray(nodes) if nodes.startswith(RAY_NODES) else _of_addresses(nodes.split(","))


def _of_ray(nodes: str) -> Iterator[str]:
    listing = child.call("harness.cluster.ray.listing:facts", {"nodes": nodes}, None)
    yield f"Ray {listing['ray']}, {nodes}"
    rows = [_ray_row(node) for node in listing["nodes"] if "error" not in node]
    if listing["nodes"] and not rows:
        raise ConfigError("\n".join(f"{n['address']}: {n['error']}" for n in listing["nodes"]))
    yield from aligned(_RAY_HEADS, rows)
    yield from (f"{n['address']}: {n['error']}" for n in listing["nodes"] if "error" in n)


def _ray_row(node: Mapping[str, Any]) -> Sequence[Any]:
    about = node["environment"]
    machine, packages = about["machine"], about["packages"]
    commit = (about["harness"].get("commit") or "")[:8]
    return (
        node["address"],
        machine["fingerprint"],
        machine["cpu"],
        machine["cores_usable"],
        machine["memory_bytes"],
        f"{about['harness']['version']} {commit}".strip(),
        about["system"]["python"],
        " ".join(f"{name}={packages[name]}" for name in _FRAMEWORKS if name in packages),
        " ".join(node["models"]),
    )


def _of_addresses(addresses: Sequence[str]) -> Iterator[str]:
    links = NodeLinks([f"http://{address}" for address in addresses])
    try:
        facts = links.facts()
    finally:
        links.close()
    yield from aligned(_HEADS, [_row(name, one) for name, one in facts.items()])


def _row(name: str, one: NodeFacts) -> Sequence[Any]:
    return (
        name,
        one.machine,
        len(one.cpus),
        f"{one.version} {one.code[:8]}",
        one.backend,
        str(one.backend_description.get("framework", "")),
        one.model,
        one.dataset,
        f"{one.instances} x {one.threads}",
        one.rate_per_s,
    )
