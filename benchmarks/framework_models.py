"""Creates four models of one framework from random weights: python benchmarks/framework_models.py FRAMEWORK FOLDER

The models are digits, a small convolutional network, ResNet-50, and an encoder of MiniLM's size for TOKENS tokens. The
script prints the models' paths as JSON.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import DIGITS

TOKENS = 32
BATCHES = 32
SOFTMAX_OPSET = 13
"""From this opset on, Softmax normalises over one axis."""

WIDTH, LAYERS, HEADS, VOCABULARY = 384, 6, 12, 30522
_IMAGE = (224, 224, 3)


def of_onnx(folder: Path) -> Mapping[str, Path]:
    """Creates ONNX files. `small` is SqueezeNet."""
    from harness.models.made import onnx_light

    return {
        "digits": DIGITS,
        "small": onnx_light.make("squeezenet"),
        "resnet50": onnx_light.make("resnet50"),
        "encoder": encoder_onnx(folder / "encoder.onnx"),
    }


def encoder_onnx(path: Path) -> Path:
    """Writes the graph of all-MiniLM-L6-v2 with random weights."""
    from harness.models.build_minilm import build

    random = np.random.default_rng(0)

    def of(*shape: int) -> Any:
        return random.normal(0, 0.02, shape).astype(np.float32)

    weights = {
        f"embeddings.{name}_embeddings.weight": of(count, WIDTH)
        for name, count in (("word", VOCABULARY), ("position", 512), ("token_type", 2))
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{n}" for n in range(LAYERS)):
        sizes = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        sizes["attention.output.dense"] = (WIDTH, WIDTH)
        sizes |= {"intermediate.dense": (4 * WIDTH, WIDTH), "output.dense": (WIDTH, 4 * WIDTH)}
        for part, shape in sizes.items():
            weights[f"{layer}.{part}.weight"] = of(*shape)
            weights[f"{layer}.{part}.bias"] = of(shape[0])
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for norm in norms:
        weights |= {f"{norm}.weight": of(WIDTH) + 1, f"{norm}.bias": of(WIDTH)}
    model = build(weights, heads=HEADS, epsilon=1e-12)
    for port in model.graph.input:
        port.type.tensor_type.shape.dim[1].dim_value = TOKENS
    path.write_bytes(model.SerializeToString())
    return path


def of_torch(folder: Path) -> Mapping[str, Path]:
    """Creates PyTorch files. `small` is a ResNet with one block per stage. digits.pt records no shapes, so its manifest
    states them.
    """
    import torch
    from torch import nn

    from benchmarks.gpu_models import Transformer, resnet50, write

    class Encoder(nn.Module):  # type: ignore[misc]
        """A transformer that returns one vector per sentence instead of one per word."""

        def __init__(self) -> None:
            super().__init__()
            self.words = Transformer(WIDTH, LAYERS, TOKENS, causal=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.words(ids).mean(1)

    torch.manual_seed(0)
    image, ids = torch.randn(2, 3, 224, 224), torch.randint(0, VOCABULARY, (2, TOKENS))
    made = {
        "small": (resnet50((1, 1, 1, 1)), image),
        "resnet50": (resnet50((3, 4, 6, 3)), image),
        "encoder": (Encoder(), ids),
    }
    for name, (module, example) in made.items():
        write(module.eval(), example, folder / f"{name}.pt2")
    return {"digits": DIGITS.with_suffix(".pt"), **{name: folder / f"{name}.pt2" for name in made}}


def of_keras(folder: Path) -> Mapping[str, Path]:
    """Creates SavedModels. `small` is MobileNetV2."""
    import tensorflow as tf

    keras = tf.keras
    keras.utils.set_random_seed(0)
    made = {
        "small": keras.applications.MobileNetV2(_IMAGE, weights=None),
        "resnet50": keras.applications.ResNet50(weights=None, input_shape=_IMAGE),
        "encoder": _keras_encoder(keras),
    }
    for name, model in made.items():
        model.export(folder / name, verbose=False)
    shipped = DIGITS.parent / "digits_savedmodel"
    return {"digits": shipped, **{name: folder / name for name in made}}


def _keras_encoder(keras: Any) -> Any:
    ids = keras.Input((TOKENS,), dtype="int64", name="ids")
    layers = keras.layers
    x = layers.Embedding(VOCABULARY, WIDTH)(ids)
    for _ in range(LAYERS):
        mixed = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)
        x = layers.LayerNormalization()(x + mixed)
        wide = layers.Dense(4 * WIDTH, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(wide))
    return keras.Model(ids, layers.GlobalAveragePooling1D()(x))


def of_litert(folder: Path) -> Mapping[str, Path]:
    """Creates LiteRT files by converting the SavedModels."""
    import tensorflow as tf

    paths = {"digits": DIGITS.with_suffix(".tflite")}
    for name, saved in of_keras(folder).items():
        if name not in paths:
            paths[name] = folder / f"{name}.tflite"
            converted = tf.lite.TFLiteConverter.from_saved_model(str(saved)).convert()
            paths[name].write_bytes(converted)
    return paths


def of_executorch(folder: Path) -> Mapping[str, Path]:
    """Creates ExecuTorch programs from PyTorch's models, for XNNPACK and batches up to BATCHES."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    paths = {"digits": DIGITS.with_suffix(".pte")}
    for name, source in of_torch(folder).items():
        if name in paths:
            continue
        module = torch.export.load(source).module()
        row = (
            torch.zeros(BATCHES, TOKENS, dtype=torch.int64)
            if name == "encoder"
            else torch.zeros(BATCHES, 3, 224, 224)
        )
        batch = {0: torch.export.Dim("batch", min=1, max=BATCHES)}
        program = torch.export.export(module, (row,), dynamic_shapes=(batch,))
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        paths[name] = folder / f"{name}.pte"
        paths[name].write_bytes(lowered.to_executorch().buffer)
    return paths


def of_trees(_folder: Path) -> Mapping[str, Path]:
    """Returns the shipped trees, because no other model takes a table."""
    return {"digits": DIGITS.with_name("digits-trees.ubj")}


def of_ncnn(folder: Path) -> Mapping[str, Path]:
    """Creates ncnn files by converting the ONNX files, and writes the shapes into the ncnn files. Omits the encoder,
    because pnnx cannot convert it.
    """
    found = find_spec("pnnx")
    if found is None or found.origin is None:
        raise SystemExit("framework_models.py: install the package pnnx, which converts to ncnn")
    program = str(Path(found.origin).with_name("pnnx"))
    paths = {"digits": DIGITS.parent / "digits_ncnn/digits.param"}
    for name in ("small", "resnet50"):
        with_new_softmax(of_onnx(folder)[name], folder / f"{name}.onnx")
        command = [program, f"{name}.onnx", "inputshape=[1,3,224,224]", "fp16=0"]
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)
        paths[name] = folder / f"{name}.ncnn.param"
        text = paths[name].read_text(encoding="utf-8")
        sized = re.sub(r"^(Input .*)", r"\1 0=224 1=224 2=3", text, flags=re.MULTILINE)
        paths[name].write_text(sized, encoding="utf-8")
    return paths


def with_new_softmax(source: Path, target: Path) -> None:
    """Writes an ONNX file of opset 13 or later, because the converters of ncnn and MNN misread older Softmax operators."""
    import onnx
    from onnx import version_converter

    model = onnx.load(source)
    if model.opset_import[0].version < SOFTMAX_OPSET:
        model = version_converter.convert_version(model, SOFTMAX_OPSET)
    onnx.save(model, target)


def of_mnn(folder: Path) -> Mapping[str, Path]:
    """Creates MNN files by converting the ONNX files. Uses separate processes, because the converter prints on stdout."""
    paths = {"digits": DIGITS.with_suffix(".mnn")}
    for name, path in of_onnx(folder).items():
        if name not in paths:
            source, paths[name] = folder / f"{name}.onnx", folder / f"{name}.mnn"
            with_new_softmax(path, source)
            words = (
                "-f",
                "ONNX",
                "--modelFile",
                source,
                "--MNNModel",
                paths[name],
                "--bizCode",
                "MNN",
            )
            code = "import _tools, sys; _tools.mnnconvert(sys.argv)"
            command = [sys.executable, "-c", code, *map(str, words)]
            subprocess.run(command, stdout=sys.stderr, check=True)
    return paths


MADE: Mapping[str, Callable[[Path], Mapping[str, Path]]] = {
    "ort": of_onnx,
    "openvino": of_onnx,
    "torch": of_torch,
    "tensorflow": of_keras,
    "litert": of_litert,
    "executorch": of_executorch,
    "trees": of_trees,
    "ncnn": of_ncnn,
    "mnn": of_mnn,
    "tract": of_onnx,
}


if __name__ == "__main__":
    framework, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    print(json.dumps({name: str(path) for name, path in MADE[framework](out).items()}))
