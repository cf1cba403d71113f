"""Lists the nodes that --nodes can name: the machine, the versions and the models of each."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core import child
from harness.core.config.parse import LOCAL_NODES, RAY_NODES, parse_nodes
from harness.errors import ConfigError
from harness.results.pages.tables import aligned, columns
from harness.run.measured.nodes.links import NodeLinks

_RAYS = columns(
    "node | machine | CPU | cores [count] | memory [bytes] | harness | Python | packages | models"
)
_STATIC = columns(
    "node | host | cores [count] | harness | backend | model | dataset | instances | rate [samples/s]"
)

_FRAMEWORKS = ("onnxruntime", "openvino", "tensorflow-cpu", "tensorflow", "torch", "ai-edge-litert")


def lines(text: str) -> Iterator[str]:
    """The table for nodes as --nodes names them. Raises a ConfigError for those that cannot be asked."""
    try:
        nodes = parse_nodes(text)
    except ValueError as e:
        raise ConfigError(f"--nodes: {e}") from None
    if nodes.startswith(LOCAL_NODES):
        raise ConfigError(f"--nodes {nodes} are started by a run: there are none to list")
    if nodes.startswith(RAY_NODES):
        told = child.call("harness.cluster.ray.listing:facts", {"nodes": nodes}, None)
        yield f"Ray {told['ray']}, {nodes}"
        rows = [_of_ray(node) for node in told["nodes"] if "error" not in node]
        yield from aligned(_RAYS, rows)
        yield from (f"{n['address']}: {n['error']}" for n in told["nodes"] if "error" in n)
        return
    links = NodeLinks([f"http://{address}" for address in nodes.split(",")])
    try:
        facts = links.facts()
    finally:
        links.close()
    rows = [
        (
            *(name, one.machine, len(one.cpus), f"{one.version} {one.code[:8]}"),
            *(
                f"{one.backend} {one.backend_description.get('framework_version', '')}".strip(),
                one.model,
            ),
            *(one.dataset, f"{one.instances} x {one.threads}", one.rate_per_s),
        )
        for name, one in facts.items()
    ]
    yield from aligned(_STATIC, rows)


def _of_ray(node: Mapping[str, Any]) -> tuple[Any, ...]:
    about = node["environment"]
    machine, packages = about["machine"], about["packages"]
    commit = (about["harness"].get("commit") or "")[:8]
    return (
        *(node["address"], machine["fingerprint"], machine["cpu"], machine["cores_usable"]),
        *(machine["memory_bytes"], f"{about['harness']['version']} {commit}".strip()),
        about["system"]["python"],
        " ".join(f"{name}={packages[name]}" for name in _FRAMEWORKS if name in packages),
        " ".join(node["models"]),
    )
