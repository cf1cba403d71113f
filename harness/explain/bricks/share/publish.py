"""Publishes bricks as ONNX files without names, order or weights of their model."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.files import write_json
from harness.errors import ConfigError
from harness.explain.bricks.cut.record import Subject
from harness.explain.pieces.cut import Cut

INDEX = "index.json"
SCHEMA = 1


def publish(subjects: Sequence[Subject], folder: Path, *, with_order: bool) -> tuple[int, int]:
    """Returns (bricks, bytes written). folder: must not exist yet. with_order: publish how the
    bricks form each model, too.
    The index is sorted by digest, which reveals nothing about the model. A ConfigError names all
    layers that cannot be published; then nothing is written.
    """
    cuts = {digest: cut for one in subjects for digest, cut in one.by_digest.items()}
    reasons = {
        why for cut in cuts.values() for why in (cut.brick.why_not, cut.brick.why_private) if why
    }
    hindrances = sorted(reasons | _unknown_shapes(cuts.values()))
    problems = [f"--publish: nothing was written: {why}" for why in hindrances]
    if with_order:
        problems += [
            f"--publish-order: {one.name} was published without one"
            for one in subjects
            if one.about is None
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    models = [_order(one.about) for one in subjects if with_order and one.about is not None]
    try:
        folder.mkdir(parents=True)
        rows = [_write(cuts[digest], folder) for digest in sorted(cuts)]
        order = {"models": models} if models else {}
        write_json(folder / INDEX, {"schema": SCHEMA, "bricks": rows, **order})
    except FileExistsError:
        raise ConfigError(f"--publish {folder} exists: nothing is overwritten") from None
    except OSError as e:
        raise ConfigError(f"--publish {folder} cannot be written: {e.strerror}") from e
    return len(rows), sum(row["size_bytes"] for row in rows)


def _unknown_shapes(cuts: Iterable[Cut]) -> set[str]:
    """A user of published bricks checks output shapes, so all must be known."""
    return {
        f"{cut.nodes[0].op_type}: the shape of a tensor depends on data ({tensor})"
        for cut in cuts
        for tensor in cut.brick.outputs
        if tensor.elements is None
    }


def _order(about: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors between the pieces get numbers instead of the model's names."""
    numbers: dict[str, int] = {}

    def numbered(names: Sequence[str]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) for name in names]

    pieces = [
        {
            "brick": piece["brick"],
            "inputs": numbered(piece["inputs"]),
            "outputs": numbered(piece["outputs"]),
        }
        for piece in about["pieces"]
    ]
    return {"pieces": pieces, "published_lengths": about["published_lengths"]}


def file_name(digest: str) -> str:
    """Raises ValueError for a text that is not a brick's digest."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{digest:.80} is not a brick's digest")
    return f"{digest[:16]}.onnx"


def _write(cut: Cut, folder: Path) -> dict[str, Any]:
    """kept_values: how many of the model's own numbers the file holds: shapes, axes, limits."""
    brick, model = cut.brick, cut.model()
    content = model.SerializeToString(deterministic=True)
    path = folder / file_name(brick.digest)
    path.write_bytes(content)
    return {
        "file": path.name,
        "brick": brick.digest,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "layers": brick.layers,
        "inputs": [str(tensor) for tensor in brick.inputs],
        "outputs": [str(tensor) for tensor in brick.outputs],
        "kept_values": cut.kept_values,
    }
