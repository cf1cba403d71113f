"""Defines tiny ONNX models that need no training, each with its manifest, for build_examples.py.

Each model applies the rule that generated its example data, so its score is known in advance. The speed of these models
is not meaningful.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from harness.models.made.onnx_graph import FLOAT, INT64, Ports, Shape, build, node
from harness.models.manifest.files import sha256_of
from harness.types import Array

VOCABULARY = "vocab.txt"
PIECES, SHORT = 48, 8
"""Number of wordpieces in an input, and in a summary."""

RATE, SYMBOL_FRAMES, UTTERANCE_SYMBOLS, LOUDEST = 16_000, 800, 40, 32
"""Audio samples/s, audio samples per spoken symbol, symbols per input, and the divisor of symbol i's amplitude (i /
LOUDEST).
"""

SYMBOLS = ("", " ", "'", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""The output symbols. Silence comes first, because silence is the padding."""

TILES = (2, 3)
TILE = 16
GRID = 4
"""TILES: rows and columns of tiles in an image with one bright tile. TILE: the side of a tile in pixels. GRID: the
number of tiles per side of a COCO image.
"""


def save(
    path: Path, nodes: Sequence[Any], inputs: Ports, outputs: Ports, constants: Mapping[str, Array]
) -> None:
    onnx.save(build(path.stem, nodes, inputs, outputs, constants), path)


def declare(path: Path, model: str, task: str, about: str, **more: Any) -> None:
    """Writes the manifest `path` for the ONNX file `model` in the same folder. more: additional fields.

    The name in the manifest is also the name of the default dataset.
    """
    files = {"onnx": {"path": model, "sha256": sha256_of(path.parent / model)}}
    fields = {
        "name": path.stem,
        "version": "1",
        "description": f"{about}: an example",
        "licence": "Apache-2.0",
        "task": task,
        "files": files,
        "dataset": path.stem,
        **more,
    }
    path.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")


def _input(name: str, dtype: str, shape: Shape, *steps: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape), "preprocess": list(steps)}


def _output(name: str, *steps: Any) -> dict[str, Any]:
    return {"name": name, "postprocess": list(steps)}


def write_tiles(folder: Path) -> None:
    """Writes an image classifier that finds the brightest of six tiles."""
    shape: Shape = ["batch", 3, TILES[0] * TILE, TILES[1] * TILE]
    nodes = [
        node("ReduceMean", ["image"], ["grey"], axes=[1]),
        node("AveragePool", ["grey"], ["tiles"], kernel_shape=[TILE] * 2, strides=[TILE] * 2),
        node("Flatten", ["tiles"], ["brightness"]),
    ]
    outputs: Ports = {"brightness": (FLOAT, ["batch", TILES[0] * TILES[1]])}
    save(folder / "tiles.onnx", nodes, {"image": (FLOAT, shape)}, outputs, {})
    size = {"size": [TILES[0] * TILE, TILES[1] * TILE]}
    steps = ["decode", {"resize": size}, {"layout": {"order": "nchw"}}]
    image = _input("image", "float32", shape, *steps)
    for dataset, metric, step in (
        ("folder", "top1", "argmax"),
        ("imagenet", "top5", {"topk": {"k": 5}}),
    ):
        declare(
            folder / f"{dataset}.yaml",
            "tiles.onnx",
            "image-classification",
            "Brightest tile",
            inputs=[image],
            outputs=[_output("brightness", step)],
            accuracy={"metric": metric, "target": 99.0},
        )


def write_lights(folder: Path) -> None:
    """Writes an object detector: a YOLO head with the tiles as anchors and the classes red, green and blue."""
    side = GRID * TILE
    centres = TILE / 2 + TILE * np.arange(GRID)
    y, x = (axis.ravel() for axis in np.meshgrid(centres, centres, indexing="ij"))
    boxes = np.stack([x, y, np.full_like(x, TILE), np.full_like(x, TILE)])[np.newaxis]
    constants = {
        "boxes": boxes.astype(np.float32),
        "white": np.array(255, np.float32),
        "nothing": np.array(0, np.float32),
        "flat": np.array([0, 3, GRID * GRID]),
        "first": np.array([0]),
        "second": np.array([1]),
    }
    nodes = [
        node("AveragePool", ["image"], ["means"], kernel_shape=[TILE] * 2, strides=[TILE] * 2),
        node("Div", ["means", "white"], ["shares"]),
        node("Reshape", ["shares", "flat"], ["scores"]),
        node("Slice", ["scores", "first", "second", "second"], ["one"]),
        node("Mul", ["one", "nothing"], ["zeros"]),  # one row of zeros per sample
        node("Add", ["zeros", "boxes"], ["places"]),
        node("Concat", ["places", "scores"], ["head"], axis=1),
    ]
    inputs: Shape = ["batch", 3, side, side]
    outputs: Shape = ["batch", 7, GRID * GRID]
    path = folder / "lights.onnx"
    save(path, nodes, {"image": (FLOAT, inputs)}, {"head": (FLOAT, outputs)}, constants)
    declare(
        folder / "coco.yaml",
        path.name,
        "object-detection",
        "Coloured tiles",
        inputs=[_input("image", "float32", inputs, "decode", {"layout": {"order": "nchw"}})],
        outputs=[_output("head", {"boxes": {"score": 0.5, "side": side}})],
        accuracy={"metric": "map", "target": 99.0},
    )


def write_spans(folder: Path, pieces: Sequence[str], answers: Sequence[str]) -> None:
    """Writes a model that answers questions. Each piece that can be an answer gets high start and end scores."""
    table = np.isin(np.array(pieces), list(answers)).astype(np.float32) * 9
    nodes = [
        node("Gather", ["table", "ids"], ["start"]),
        node("Identity", ["start"], ["end"]),
    ]
    ports: Ports = {name: (FLOAT, ["batch", PIECES]) for name in ("start", "end")}
    path = folder / "spans.onnx"
    save(path, nodes, {"ids": (INT64, ["batch", PIECES])}, ports, {"table": table})
    tokenise = {"vocab": VOCABULARY, "max_length": PIECES, "gives": "ids", "max_query_length": 16}
    declare(
        folder / "squad.yaml",
        path.name,
        "question-answering",
        "Words that answer",
        inputs=[_input("ids", "int64", ["batch", PIECES], {"tokenise": tokenise})],
        outputs=[_output("start", {"stack": {"outputs": ["start", "end"]}}), _output("end")],
        accuracy={"metric": "squad_f1", "target": 99.0},
    )


def write_summaries(folder: Path, pieces: Sequence[str]) -> None:
    """Writes a model that summarises a text by returning its first words, as pieces of a vocabulary."""
    nodes = [node("Slice", ["ids", "first", "last", "axis"], ["summary"])]
    constants = {"first": np.array([1]), "last": np.array([1 + SHORT]), "axis": np.array([1])}
    inputs: Ports = {"ids": (INT64, ["batch", PIECES])}
    path = folder / "summaries.onnx"
    save(path, nodes, inputs, {"summary": (INT64, ["batch", SHORT])}, constants)
    tokenise = {"vocab": VOCABULARY, "max_length": PIECES, "gives": "ids"}
    steps = [{"column": {"names": ["text"]}}, {"tokenise": tokenise}]
    declare(
        folder / "csv.yaml",
        path.name,
        "none",
        "The first words of a text",
        inputs=[_input("ids", "int64", ["batch", PIECES], *steps)],
        outputs=[_output("summary")],
        accuracy={
            "metric": "rouge",
            "target": 50.0,
            "symbols": ["" if p.startswith("[") else f" {p}" for p in pieces],
        },
    )


def write_letters(folder: Path) -> None:
    """Writes a speech recogniser that maps the loudness of each twentieth of a second to a letter."""
    frames = SYMBOL_FRAMES * UTTERANCE_SYMBOLS
    nodes = [
        node("Reshape", ["samples", "parts"], ["spoken"]),
        node("ReduceMax", ["spoken"], ["loudness"], axes=[2], keepdims=0),
        node("Mul", ["loudness", "loudest"], ["levels"]),
        node("Round", ["levels"], ["whole"]),
        node("Cast", ["whole"], ["letters"], to=INT64),
    ]
    constants = {
        "parts": np.array([0, UTTERANCE_SYMBOLS, SYMBOL_FRAMES]),
        "loudest": np.array(LOUDEST, np.float32),
    }
    path = folder / "letters.onnx"
    outputs: Ports = {"letters": (INT64, ["batch", UTTERANCE_SYMBOLS])}
    save(path, nodes, {"samples": (FLOAT, ["batch", frames])}, outputs, constants)
    audio = {"rate": RATE, "max_seconds": frames / RATE}
    declare(
        folder / "librispeech.yaml",
        path.name,
        "speech-recognition",
        "Letters by their loudness",
        inputs=[_input("samples", "float32", ["batch", frames], {"audio": audio})],
        outputs=[_output("letters")],
        accuracy={"metric": "wer", "target": 10.0, "symbols": list(SYMBOLS)},
    )


def write_vectors(folder: Path, matrix: Array) -> None:
    """Writes two embedding models. One is a projection, and the other scales the input to length 1."""
    wide, narrow = matrix.shape
    path = folder / "projection.onnx"
    nodes = [node("MatMul", ["x", "matrix"], ["embedding"])]
    inputs: Ports = {"x": (FLOAT, ["batch", wide])}
    save(path, nodes, inputs, {"embedding": (FLOAT, ["batch", narrow])}, {"matrix": matrix})
    declare(
        folder / "npz.yaml",
        path.name,
        "embedding",
        "A projection",
        inputs=[_input("x", "float32", ["batch", wide])],
        outputs=[_output("embedding")],
        accuracy={"metric": "cosine", "target": 0.9},
    )
    path = folder / "unit.onnx"
    nodes = [node("LpNormalization", ["x"], ["embedding"], axis=1)]
    save(path, nodes, inputs, {"embedding": (FLOAT, ["batch", wide])}, {})
    declare(
        folder / "pairs.yaml",
        path.name,
        "embedding",
        "Vectors of length 1",
        inputs=[_input("x", "float32", ["batch", wide])],
        outputs=[_output("embedding")],
        dataset="csv",
        accuracy={"metric": "retrieval", "target": 99.0},
    )


def write_densities(folder: Path) -> None:
    """Writes a model that segments volumes. A voxel gets the class of the nearest density: 0, 1 or 2."""
    nodes = [
        node("Sub", ["volume", "densities"], ["off"]),
        node("Mul", ["off", "off"], ["squares"]),
        node("Neg", ["squares"], ["logits"]),
    ]
    constants = {"densities": np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1, 1)}
    size = ["depth", "height", "width"]
    path = folder / "densities.onnx"
    inputs: Ports = {"volume": (FLOAT, ["batch", 1, *size])}
    save(path, nodes, inputs, {"logits": (FLOAT, ["batch", 3, *size])}, constants)
    declare(
        folder / "kits.yaml",
        path.name,
        "segmentation",
        "Densities of voxels",
        inputs=[_input("volume", "float32", ["batch", 1, *size], {"clip": {"low": 0, "high": 2}})],
        outputs=[_output("logits", "argmax")],
        accuracy={"metric": "dice", "target": 0.99},
        max_batch=1,
    )
