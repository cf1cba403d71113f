"""Describes models and their bricks in the form of bricks.json, before any brick runs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.core.clock import utc_text
from harness.explain.bricks.cut import cutting
from harness.explain.bricks.options import BrickOptions
from harness.explain.pieces.cut import Brick, Cut
from harness.machine import host
from harness.models.graph.graph import Graph

SCHEMA = {"schema": 1}


class Subject(NamedTuple):
    """Bricks that belong together. by_digest: one cut per brick.
    graph: the model from which the bricks were cut, or None for published bricks. weight_bytes: size of the model's
    weights, as far as known. about: how the bricks form the model, as in bricks.json, or None if this was not
    published.
    """

    name: str
    graph: Graph | None
    by_digest: Mapping[str, Cut]
    weight_bytes: int
    about: Mapping[str, Any] | None


def cut(name: str, graph: Graph, most: int) -> Subject:
    """Cuts a model into pieces of at most `most` layers."""
    cuts = [Cut(graph, piece) for piece in cutting.by_groups(graph, most)]
    by_digest = {one.brick.digest: one for one in cuts}
    return Subject(name, graph, by_digest, graph.weight_bytes, _about(graph, cuts, most))


def _about(graph: Graph, cuts: Sequence[Cut], most: int) -> dict[str, Any]:
    """Returns how the bricks form the model.

    Layers are named by the digests of their keys. `pieces` refer to layers by position.
    """
    place = {node.index: i for i, node in enumerate(graph.layers)}
    return {
        "sizes": dict(graph.sizes),
        "layers": [graph.digest(node) for node in graph.layers],
        "op_types": [node.op_type for node in graph.layers],
        "readers": [sorted(_readers(graph, node, place)) for node in graph.layers],
        "pieces": [
            {
                "brick": cut.brick.digest,
                "layers": [place[node.index] for node in cut.nodes],
                "inputs": cut.inputs,
                "outputs": cut.outputs,
            }
            for cut in cuts
        ],
        "published_lengths": [len(piece) for piece in cutting.by_chains(graph, most)],
    }


def _readers(graph: Graph, node: Any, place: Mapping[int, int]) -> set[int]:
    readers = (reader for name in node.outputs for reader in graph.consumers.get(name, ()))
    return {place[reader.index] for reader in readers if reader.index in place}


def content(subjects: Sequence[Subject], options: BrickOptions) -> dict[str, Any]:
    """Returns the content of bricks.json.

    most_layers, batch: values for models that this command cuts. Published bricks may have other values.
    """
    machine = host.fingerprint()["machine"]
    bricks = {d: _brick(one.brick) for sub in subjects for d, one in sub.by_digest.items()}
    is_cut = any(one.graph is not None for one in subjects)
    longest = max((len(brick["layers"]) for brick in bricks.values()), default=0)
    return {
        **SCHEMA,
        "started": utc_text(),
        "most_layers": options.most_layers if is_cut else longest,
        "batch": options.batch if is_cut else None,
        "threads": options.threads,
        "rounds": options.rounds,
        "machine": " ".join(f"{machine[k]}" for k in ("cpu", "architecture", "cores_usable")),
        "version": "not run",
        "models": {one.name: dict(one.about) for one in subjects if one.about is not None},
        "bricks": bricks,
    }


def _brick(brick: Brick) -> dict[str, Any]:
    return {
        "layers": brick.layers,
        "inputs": [str(tensor) for tensor in brick.inputs],
        "outputs": [str(tensor) for tensor in brick.outputs],
        "weight_bytes": brick.weight_bytes,
        "why_not": brick.why_not,
    }
