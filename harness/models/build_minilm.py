"""Builds all-MiniLM-L6-v2, a realistic sequence workload, from published weights as an ONNX file with a manifest.

    python -m harness.models.build_minilm SOURCE OUT

SOURCE is a folder with model.safetensors, config.json and vocab.txt from sentence-transformers (Apache-2.0, W. Wang et
al. 2020, N. Reimers and I. Gurevych 2019). The script needs the package `onnx` and writes minilm.onnx, vocab.txt and
minilm.yaml to OUT. The repository does not contain these files.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness.core.console import say
from harness.errors import PluginUnavailable
from harness.models.manifest.files import sha256_of
from harness.types import Array

try:
    from harness.models.made import onnx_graph
except PluginUnavailable as e:
    if __name__ != "__main__":
        raise
    say(str(e))
    sys.exit(e.exit_status)

INPUTS = ("input_ids", "attention_mask")
LARGEST_HEADER_BYTES = 100 << 20


def read_safetensors(path: Path) -> dict[str, Array]:
    """Returns the file's float32 tensors by name. Raises ValueError if the file is not a safetensors file.

    The file consists of the header's length in eight bytes, the header in JSON (dtype, shape and data_offsets by name),
    and the tensors.
    """
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(LARGEST_HEADER_BYTES, len(content) - 8):
        raise ValueError(f"{path} is not a safetensors file")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        if about["dtype"] == "F32":
            data = content[8 + length + start : 8 + length + end]
            tensors[name] = np.frombuffer(data, "<f4").reshape(about["shape"])
    return tensors


class _Graph:
    """Collects nodes and constants, and names them."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights = weights
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def add(self, kind: str, *inputs: str | Array | float, **attributes: Any) -> str:
        """Adds a node and returns the name of its output."""
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx_graph.node(kind, names, [output], **attributes))
        return output

    def constant(self, value: Array | float) -> str:
        """Adds a constant and returns its name. A number becomes float32, and an array keeps its type."""
        name = f"constant_{len(self.constants)}"
        number = isinstance(value, float)
        self.constants[name] = np.asarray(value, np.float32 if number else None, order="C")
        return name

    def dense(self, x: str, layer: str) -> str:
        product = self.add("MatMul", x, self._weights[f"{layer}.weight"].T)
        return self.add("Add", product, self._weights[f"{layer}.bias"])

    def normalised(self, x: str, layer: str, epsilon: float) -> str:
        scale, bias = (self._weights[f"{layer}.{part}"] for part in ("weight", "bias"))
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def embedded(self, epsilon: float) -> str:
        def table(name: str) -> Array:
            return self._weights[f"embeddings.{name}_embeddings.weight"]

        words = self.add("Gather", table("word"), INPUTS[0])
        length = self.add("Shape", INPUTS[0], start=1, end=2)
        first, axis = np.array([0]), np.array([0])
        places = self.add("Slice", table("position"), first, length, axis)
        places = self.add("Add", places, table("token_type")[0])
        return self.normalised(self.add("Add", words, places), "embeddings.LayerNorm", epsilon)

    def attention(self, x: str, layer: str, blocked: str, heads: int) -> str:
        """blocked: (n, 1, 1, length), with 0 for the text's tokens and a large negative number for padding."""
        hidden = self._weights[f"{layer}.self.query.bias"].size
        split = np.array([0, 0, heads, hidden // heads])

        def part(name: str, order: list[int]) -> str:
            wide = self.add("Reshape", self.dense(x, f"{layer}.self.{name}"), split)
            return self.add("Transpose", wide, perm=order)

        query, key = part("query", [0, 2, 1, 3]), part("key", [0, 2, 3, 1])
        score = self.add("MatMul", query, key)
        score = self.add("Div", score, math.sqrt(hidden / heads))
        weight = self.add("Softmax", self.add("Add", score, blocked), axis=-1)
        mixed = self.add("MatMul", weight, part("value", [0, 2, 1, 3]))
        mixed = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = self.add("Reshape", mixed, np.array([0, 0, hidden]))
        return self.dense(mixed, f"{layer}.output.dense")

    def gelu(self, x: str) -> str:
        bent = self.add("Erf", self.add("Div", x, math.sqrt(2)))
        return self.add("Mul", self.add("Mul", x, 0.5), self.add("Add", bent, 1.0))


def build(weights: Mapping[str, Array], *, heads: int, epsilon: float) -> Any:
    """Builds a BERT encoder. The encoder outputs the mean of all token vectors, scaled to length 1.

    The inputs are input_ids and attention_mask, (batch, sequence) int64; the output is embedding, (batch, hidden).
    """
    graph = _Graph(weights)
    seen = graph.add("Cast", INPUTS[1], to=onnx_graph.FLOAT)
    wide = graph.add("Unsqueeze", seen, np.array([1, 2]))
    blocked = graph.add("Mul", graph.add("Sub", wide, 1.0), 1e9)
    x = graph.embedded(epsilon)
    layers = sum(name.endswith("attention.self.query.bias") for name in weights)
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        attended = graph.attention(x, f"{layer}.attention", blocked, heads)
        x = graph.add("Add", x, attended)
        x = graph.normalised(x, f"{layer}.attention.output.LayerNorm", epsilon)
        widened = graph.gelu(graph.dense(x, f"{layer}.intermediate.dense"))
        narrowed = graph.dense(widened, f"{layer}.output.dense")
        x = graph.normalised(graph.add("Add", x, narrowed), f"{layer}.output.LayerNorm", epsilon)
    column = graph.add("Unsqueeze", seen, np.array([2]))
    total = graph.add("ReduceSum", graph.add("Mul", x, column), np.array([1]), keepdims=0)
    mean = graph.add("Div", total, graph.add("ReduceSum", seen, np.array([1]), keepdims=1))
    last = graph.add("LpNormalization", mean, axis=1, p=2)
    graph.nodes.append(onnx_graph.node("Identity", [last], ["embedding"]))
    hidden = weights["embeddings.LayerNorm.bias"].size
    return onnx_graph.build(
        "minilm",
        graph.nodes,
        {name: (onnx_graph.INT64, ["batch", "sequence"]) for name in INPUTS},
        {"embedding": (onnx_graph.FLOAT, ["batch", hidden])},
        graph.constants,
        ir_version=10,
    )


def manifest(model: Path) -> dict[str, object]:
    gives = dict(zip(INPUTS, ("ids", "mask"), strict=True))
    return {
        "name": "minilm",
        "version": "1.0",
        "description": "all-MiniLM-L6-v2, sentences as vectors of 384 numbers; performance only",
        "licence": "Apache-2.0",
        "references": ["https://www.sbert.net"],
        "task": "embedding",
        "files": {"onnx": {"path": model.name, "sha256": sha256_of(model)}},
        "inputs": [
            {
                "name": name,
                "dtype": "int64",
                "shape": ["batch", "sequence"],
                "preprocess": {
                    "tokenise": {"vocab": "vocab.txt", "max_length": 256, "gives": gives[name]}
                },
            }
            for name in INPUTS
        ],
        "outputs": [{"name": "embedding"}],
        "dataset": "synthetic",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    config = json.loads((options.source / "config.json").read_bytes())
    model = build(
        read_safetensors(options.source / "model.safetensors"),
        heads=config["num_attention_heads"],
        epsilon=config["layer_norm_eps"],
    )
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "minilm.onnx"
    path.write_bytes(model.SerializeToString())
    shutil.copy(options.source / "vocab.txt", options.out)
    (options.out / "minilm.yaml").write_text(yaml.safe_dump(manifest(path), sort_keys=False))


if __name__ == "__main__":
    main()
