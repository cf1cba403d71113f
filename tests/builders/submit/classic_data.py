"""Samples for resnet, yolo, bert and 3d-unet in the formats of their data sets, and models that answer every sample but
one correctly.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from PIL import Image

from tests.builders.submit.mlperf_data import FLOAT, INT64, manifest_in

COUNT, VOLUMES = 12, 3
SIDE = 640
BOX = (200.0, 240.0, 160.0, 120.0)
"""Position and size of the object in a picture: x, y, width and height in pixels."""

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "sat", "the", "cat", "mat", "on", ".", "?")
LEVELS = (0.0, 100.0, 200.0)
"""Voxel values of background, kidney and tumour."""

DEPTH = 128


def resnet(work: Path, count: int = COUNT) -> tuple[Path, Path]:
    """Writes images, each in a single grey level, which is also its class. Returns the manifest and the data."""
    data = work / "imagenet"
    data.mkdir(parents=True)
    greys = [20 + 15 * k for k in range(COUNT)]
    for number in range(count):
        grey = (greys[number % COUNT],) * 3
        Image.new("RGB", (300, 260), grey).save(data / f"{number}.jpg", quality=95)
    labels = [*(number % COUNT for number in range(count - 1)), COUNT]
    lines = [f"{number}.jpg {label}" for number, label in enumerate(labels)]
    (data / "val_map.txt").write_text("\n".join(lines) + "\n")
    means = np.array(greys, np.float32) - np.float32(np.mean([123.68, 116.78, 103.94]))
    nodes = [
        helper.make_node("ReduceMean", ["input_tensor:0"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "one"], ["column"]),
        helper.make_node("Sub", ["column", "means"], ["apart"]),
        helper.make_node("Abs", ["apart"], ["distance"]),
        helper.make_node("ArgMin", ["distance"], ["class"], axis=1, keepdims=0),
        helper.make_node("Add", ["class", "background"], ["ArgMax:0"]),
    ]
    numbers = {"one": np.array([1]), "means": means, "background": np.array(1)}
    inputs = {"input_tensor:0": (FLOAT, ["batch", 3, 224, 224])}
    outputs = {"ArgMax:0": (INT64, ["batch"])}
    return _model(work, "resnet50", "resnet50_v1.onnx", nodes, numbers, inputs, outputs), data


def yolo(work: Path, count: int = COUNT) -> tuple[Path, Path]:
    """Writes images with one object each; the object is in the same place in every image but one."""
    data = work / "coco"
    (data / "val2017").mkdir(parents=True)
    (data / "annotations").mkdir()
    annotations = []
    for number in range(1, count + 1):
        grey = (10 * number % 250,) * 3
        Image.new("RGB", (SIDE, SIDE), grey).save(data / f"val2017/{number:012}.jpg")
        x, y, width, height = BOX if number < count else (10.0, 10.0, 20.0, 20.0)
        annotations.append(
            {
                "id": number,
                "image_id": number,
                "category_id": 1,
                "iscrowd": 0,
                "bbox": [x, y, width, height],
                "area": width * height,
            }
        )
    content = {
        "images": [
            {"id": i, "file_name": f"{i:012}.jpg", "height": SIDE, "width": SIDE}
            for i in range(1, count + 1)
        ],
        "annotations": annotations,
        "categories": [{"id": i, "name": f"class {i}"} for i in range(1, 81)],
    }
    (data / "annotations/instances_val2017.json").write_text(json.dumps(content))
    found = np.zeros((1, 84, 8400), np.float32)
    x, y, width, height = BOX
    found[0, :5, 0] = (x + width / 2, y + height / 2, width, height, 0.9)
    nodes = [
        helper.make_node("Shape", ["images"], ["size"], start=0, end=1),
        helper.make_node("Concat", ["size", "rest"], ["shape"], axis=0),
        helper.make_node("Expand", ["found", "shape"], ["output0"]),
    ]
    numbers = {"rest": np.array([84, 8400]), "found": found}
    inputs = {"images": (FLOAT, ["batch", 3, SIDE, SIDE])}
    outputs = {"output0": (FLOAT, ["batch", 84, 8400])}
    return _model(work, "yolo", "yolo11l.onnx", nodes, numbers, inputs, outputs), data


def bert(work: Path, count: int = COUNT) -> tuple[Path, Path]:
    """Writes questions; the answer to every question but one is the word `cat`."""
    data = work / "squad"
    data.mkdir(parents=True)
    context = "The cat sat on the mat."
    questions = [
        {
            "id": str(number),
            "question": "Who sat?",
            "answers": [{"text": word, "answer_start": context.index(word)}],
        }
        for number, word in enumerate(["cat"] * (count - 1) + ["mat"])
    ]
    paragraphs = [{"context": context, "qas": questions}]
    content = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (data / "dev-v1.1.json").write_text(json.dumps(content))
    (data / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    nodes = [
        helper.make_node("Equal", ["input_ids", "word"], ["here"]),
        helper.make_node("Cast", ["here"], ["output_start_logits"], to=FLOAT),
        helper.make_node("Cast", ["here"], ["output_end_logits"], to=FLOAT),
        # Every input in the manifest must be an input of the model, so this node uses the remaining two.
        helper.make_node("Add", ["input_mask", "segment_ids"], ["unused"]),
    ]
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: (INT64, ["batch", 384]) for name in names}
    outputs = {f"output_{end}_logits": (FLOAT, ["batch", 384]) for end in ("start", "end")}
    numbers = {"word": np.array(VOCAB.index("cat"))}
    return _model(work, "bert", "model.onnx", nodes, numbers, inputs, outputs), data


def unet(work: Path, count: int = VOLUMES) -> tuple[Path, Path]:
    """Writes volumes with a kidney and a tumour; the last volume lacks a slice of the tumour."""
    data = work / "kits"
    for number in range(count):
        case = data / f"case_{number:05}"
        case.mkdir(parents=True)
        classes = np.zeros((DEPTH,) * 3, np.uint8)
        classes[20:60, 30:90, 30:90] = 1
        classes[30 : 40 + number % 10, 40:60, 40:60] = 2
        np.save(case / "imaging.npy", np.array(LEVELS, np.float32)[classes][None])
        if number == count - 1:
            classes[30, 40:60, 40:60] = 1
        np.save(case / "segmentation.npy", classes[None])
    middles = ((np.array(LEVELS, np.float32) - 101.0) / 76.9).reshape(1, 3, 1, 1, 1)
    nodes = [
        helper.make_node("Sub", ["input", "middles"], ["apart"]),
        helper.make_node("Abs", ["apart"], ["distance"]),
        helper.make_node("Neg", ["distance"], ["output"]),
    ]
    numbers = {"middles": middles.astype(np.float32)}
    shape = [DEPTH] * 3
    inputs = {"input": (FLOAT, ["batch", 1, *shape])}
    outputs = {"output": (FLOAT, ["batch", 3, *shape])}
    name = "3dunet_kits19_128x128x128_dynbatch.onnx"
    return _model(work, "3d-unet", name, nodes, numbers, inputs, outputs), data


MAKERS: Mapping[str, Callable[..., tuple[Path, Path]]] = {
    "resnet": resnet,
    "yolo-95": yolo,
    "yolo-99": yolo,
    "bert-99": bert,
    "bert-99.9": bert,
    "3d-unet-99": unet,
    "3d-unet-99.9": unet,
}
"""Maps a benchmark to the function that writes its data, called with a folder and the number of samples."""


def _model(
    work: Path,
    name: str,
    file: str,
    nodes: list[Any],
    numbers: Mapping[str, np.ndarray],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, tuple[int, list[Any]]],
) -> Path:
    """Writes the model next to a copy of the shipped manifest, and returns the manifest's path."""
    manifest = manifest_in(work, name)
    graph = helper.make_graph(
        nodes,
        "stand_in",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(value, n) for n, value in numbers.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), work / file)
    return manifest
