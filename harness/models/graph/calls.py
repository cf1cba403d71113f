"""Maps each node of the model file to nodes of the file's Graph.

If the file defines functions, the Graph contains the function's body, with renamed nodes, in place of each call. The
inputs and outputs of the call keep their names.
"""

from harness.models.graph.graph import DEFAULT_DOMAINS, Graph
from harness.profiler import WiredNode, Wiring


def nodes_of(file: Wiring, graph: Graph) -> list[tuple[int, ...]]:
    """Returns the ascending indices of the graph's nodes for each node of the file. The tuple is empty for a constant."""
    return [_behind(node, graph) for node in file.nodes]


def _behind(call: WiredNode, graph: Graph) -> tuple[int, ...]:
    """Returns the nodes between the call's inputs and outputs. If the node is not a call, returns only this node."""
    domain = "" if call.domain in DEFAULT_DOMAINS else call.domain
    indices: set[int] = set()
    waiting, taken = [t for t in call.outputs if t], set(call.inputs)
    while waiting:
        node = graph.producer.get(waiting.pop())
        if node is not None and node.index not in indices:
            indices.add(node.index)
            if (node.op_type, node.domain) != (call.op_type, domain):
                waiting += [t for t in node.inputs if t and t not in taken]
    return tuple(sorted(indices))
