"""Defines tiny ONNX models that need no training, each with its manifest, for build_examples.py.

Every one computes its answer by a rule that fits the data written beside it, so that a score is
known beforehand; none is worth measuring the speed of.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.models.manifest.files import sha256_of
from harness.types import Array

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ModuleNotFoundError as e:
    raise PluginUnavailable(
        f"examples need the module {e.name!r}: {how_to_install('light')}"
    ) from e

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]
Ports = Mapping[str, tuple[int, Shape]]
"""Name -> element type and shape."""

VOCABULARY = "vocab.txt"
PIECES, SHORT = 48, 8
"""Wordpieces of an input; of a summary."""

RATE, SYMBOL_FRAMES, UTTERANCE_SYMBOLS, LOUDEST = 16_000, 800, 40, 32
"""samples/s; samples of one spoken symbol; symbols of one input; symbol i is i / LOUDEST loud."""

SYMBOLS = ("", " ", "'", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Silence first: it fills up what is shorter."""

TILES = (2, 3)
TILE = 16
GRID = 4
"""Tiles of an image in which one is bright, their side in pixels; and tiles a side of COCO's."""


def save(
    path: Path, nodes: Sequence[Any], inputs: Ports, outputs: Ports, constants: Mapping[str, Array]
) -> None:
    graph = helper.make_graph(
        list(nodes),
        path.stem,
        [helper.make_tensor_value_info(n, *about) for n, about in inputs.items()],
        [helper.make_tensor_value_info(n, *about) for n, about in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def declare(path: Path, model: str, task: str, about: str, **more: Any) -> None:
    """The manifest `path` of the ONNX file of that name beside it. more: further fields."""
    files = {"onnx": {"path": model, "sha256": sha256_of(path.parent / model)}}
    fields = {
        "name": path.stem,
        "version": "1",
        "description": f"{about}: an example",
        "licence": "Apache-2.0",
        "task": task,
        "files": files,
        **more,
    }
    path.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")


def _input(name: str, dtype: str, shape: Shape, *steps: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape), "preprocess": list(steps)}


def _output(name: str, *steps: Any) -> dict[str, Any]:
    return {"name": name, "postprocess": list(steps)}


def write_tiles(folder: Path) -> None:
    """Which of six tiles is the brightest: image classification."""
    shape: Shape = ["batch", 3, TILES[0] * TILE, TILES[1] * TILE]
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["grey"], axes=[1]),
        helper.make_node(
            "AveragePool", ["grey"], ["tiles"], kernel_shape=[TILE] * 2, strides=[TILE] * 2
        ),
        helper.make_node("Flatten", ["tiles"], ["brightness"]),
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
            *(folder / f"{dataset}.yaml", "tiles.onnx", "image-classification", "Brightest tile"),
            inputs=[image],
            outputs=[_output("brightness", step)],
            dataset=dataset,
            accuracy={"metric": metric, "target": 99.0},
        )


def write_lights(folder: Path) -> None:
    """A head as YOLO's, whose anchors are the tiles of a grid and whose classes are red, green, blue."""
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
        helper.make_node(
            "AveragePool", ["image"], ["means"], kernel_shape=[TILE] * 2, strides=[TILE] * 2
        ),
        helper.make_node("Div", ["means", "white"], ["shares"]),
        helper.make_node("Reshape", ["shares", "flat"], ["scores"]),
        helper.make_node("Slice", ["scores", "first", "second", "second"], ["one"]),
        helper.make_node("Mul", ["one", "nothing"], ["zeros"]),  # as many rows as the batch has
        helper.make_node("Add", ["zeros", "boxes"], ["places"]),
        helper.make_node("Concat", ["places", "scores"], ["head"], axis=1),
    ]
    inputs: Shape = ["batch", 3, side, side]
    outputs: Shape = ["batch", 7, GRID * GRID]
    path = folder / "lights.onnx"
    save(path, nodes, {"image": (FLOAT, inputs)}, {"head": (FLOAT, outputs)}, constants)
    declare(
        *(folder / "coco.yaml", path.name, "object-detection", "Coloured tiles"),
        inputs=[_input("image", "float32", inputs, "decode", {"layout": {"order": "nchw"}})],
        outputs=[_output("head", {"boxes": {"score": 0.5, "side": side}})],
        dataset="coco",
        accuracy={"metric": "map", "target": 99.0},
    )


def write_spans(folder: Path, pieces: Sequence[str], answers: Sequence[str]) -> None:
    """Every piece that can be an answer starts and ends one: question answering."""
    table = np.isin(np.array(pieces), list(answers)).astype(np.float32) * 9
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["start"]),
        helper.make_node("Identity", ["start"], ["end"]),
    ]
    ports: Ports = {name: (FLOAT, ["batch", PIECES]) for name in ("start", "end")}
    path = folder / "spans.onnx"
    save(path, nodes, {"ids": (INT64, ["batch", PIECES])}, ports, {"table": table})
    tokenise = {"vocab": VOCABULARY, "max_length": PIECES, "gives": "ids", "max_query_length": 16}
    declare(
        *(folder / "squad.yaml", path.name, "question-answering", "Words that answer"),
        inputs=[_input("ids", "int64", ["batch", PIECES], {"tokenise": tokenise})],
        outputs=[_output("start", {"stack": {"outputs": ["start", "end"]}}), _output("end")],
        dataset="squad",
        accuracy={"metric": "squad_f1", "target": 99.0},
    )


def write_summaries(folder: Path, pieces: Sequence[str]) -> None:
    """The first words of a text as its summary, in pieces of a vocabulary: texts by their symbols."""
    nodes = [helper.make_node("Slice", ["ids", "first", "last", "axis"], ["summary"])]
    constants = {"first": np.array([1]), "last": np.array([1 + SHORT]), "axis": np.array([1])}
    inputs: Ports = {"ids": (INT64, ["batch", PIECES])}
    path = folder / "summaries.onnx"
    save(path, nodes, inputs, {"summary": (INT64, ["batch", SHORT])}, constants)
    tokenise = {"vocab": VOCABULARY, "max_length": PIECES, "gives": "ids"}
    steps = [{"column": {"names": ["text"]}}, {"tokenise": tokenise}]
    declare(
        *(folder / "csv.yaml", path.name, "none", "The first words of a text"),
        inputs=[_input("ids", "int64", ["batch", PIECES], *steps)],
        outputs=[_output("summary")],
        dataset="csv",
        accuracy={
            "metric": "rouge",
            "target": 50.0,
            "symbols": ["" if p.startswith("[") else f" {p}" for p in pieces],
        },
    )


def write_letters(folder: Path) -> None:
    """How loud each twentieth of a second is: speech recognition, of a language that is that simple."""
    frames = SYMBOL_FRAMES * UTTERANCE_SYMBOLS
    nodes = [
        helper.make_node("Reshape", ["samples", "parts"], ["spoken"]),
        helper.make_node("ReduceMax", ["spoken"], ["loudness"], axes=[2], keepdims=0),
        helper.make_node("Mul", ["loudness", "loudest"], ["levels"]),
        helper.make_node("Round", ["levels"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["letters"], to=INT64),
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
        *(
            folder / "librispeech.yaml",
            path.name,
            "speech-recognition",
            "Letters by their loudness",
        ),
        inputs=[_input("samples", "float32", ["batch", frames], {"audio": audio})],
        outputs=[_output("letters")],
        dataset="librispeech",
        accuracy={"metric": "wer", "target": 10.0, "symbols": list(SYMBOLS)},
    )


def write_vectors(folder: Path, matrix: Array) -> None:
    """A projection, and vectors as they are but of length 1: embeddings."""
    wide, narrow = matrix.shape
    path = folder / "projection.onnx"
    nodes = [helper.make_node("MatMul", ["x", "matrix"], ["embedding"])]
    inputs: Ports = {"x": (FLOAT, ["batch", wide])}
    save(path, nodes, inputs, {"embedding": (FLOAT, ["batch", narrow])}, {"matrix": matrix})
    declare(
        *(folder / "npz.yaml", path.name, "embedding", "A projection"),
        inputs=[_input("x", "float32", ["batch", wide])],
        outputs=[_output("embedding")],
        dataset="npz",
        accuracy={"metric": "cosine", "target": 0.9},
    )
    path = folder / "unit.onnx"
    nodes = [helper.make_node("LpNormalization", ["x"], ["embedding"], axis=1)]
    save(path, nodes, inputs, {"embedding": (FLOAT, ["batch", wide])}, {})
    declare(
        *(folder / "pairs.yaml", path.name, "embedding", "Vectors of length 1"),
        inputs=[_input("x", "float32", ["batch", wide])],
        outputs=[_output("embedding")],
        dataset="csv",
        accuracy={"metric": "retrieval", "target": 99.0},
    )


def write_densities(folder: Path) -> None:
    """Which of the densities 0, 1 and 2 a voxel is nearest to: segmentation of volumes."""
    nodes = [
        helper.make_node("Sub", ["volume", "densities"], ["off"]),
        helper.make_node("Mul", ["off", "off"], ["squares"]),
        helper.make_node("Neg", ["squares"], ["logits"]),
    ]
    constants = {"densities": np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1, 1)}
    size = ["depth", "height", "width"]
    path = folder / "densities.onnx"
    inputs: Ports = {"volume": (FLOAT, ["batch", 1, *size])}
    save(path, nodes, inputs, {"logits": (FLOAT, ["batch", 3, *size])}, constants)
    declare(
        *(folder / "kits.yaml", path.name, "segmentation", "Densities of voxels"),
        inputs=[_input("volume", "float32", ["batch", 1, *size], {"clip": {"low": 0, "high": 2}})],
        outputs=[_output("logits", "argmax")],
        dataset="kits",
        accuracy={"metric": "dice", "target": 0.99},
        max_batch=1,
    )
