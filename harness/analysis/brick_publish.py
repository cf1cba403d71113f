"""Bricks for others: ONNX files without names, order or any weight of the model they come from."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.analysis.brick_models import Cut
from harness.errors import ConfigError
from harness.results import write_json

INDEX = "index.json"


def publish(cuts: Mapping[str, Cut], folder: Path) -> int:
    """cuts: by digest. folder: must not exist yet. -> bytes written.

    The index is in the order of the digests, which says nothing about the model's. A ConfigError
    names all layers that cannot be published; then nothing is written.
    """
    hindrances = sorted({cut.brick.why_not for cut in cuts.values() if cut.brick.why_not})
    if hindrances:
        raise ConfigError("\n".join(f"--publish: nothing was written: {why}" for why in hindrances))
    try:
        folder.mkdir(parents=True)
        rows = [_write(cuts[digest], folder) for digest in sorted(cuts)]
        write_json(folder / INDEX, {"schema": 1, "bricks": rows})
    except FileExistsError:
        raise ConfigError(f"--publish {folder} exists: nothing is overwritten") from None
    except OSError as e:
        raise ConfigError(f"--publish {folder} cannot be written: {e.strerror}") from e
    return sum(row["size_bytes"] for row in rows)


def _write(cut: Cut, folder: Path) -> dict[str, Any]:
    """kept_values: how many numbers stand in it that were the model's: shapes, axes, limits."""
    brick, model = cut.brick, cut.model()
    content = model.SerializeToString(deterministic=True)
    path = folder / f"{brick.digest[:16]}.onnx"
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
