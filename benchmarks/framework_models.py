"""Makes four models of one framework from random weights: python benchmarks/framework_models.py FRAMEWORK FOLDER

The models are digits, a small convolutional network, ResNet-50, and an encoder of MiniLM's size for TOKENS tokens. The
script prints their paths as JSON.
"""

import json
import shutil
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
WIDTH, LAYERS, HEADS, VOCABULARY = 384, 6, 12, 30522
_IMAGE = (224, 224, 3)


def of_onnx(folder: Path) -> Mapping[str, Path]:
    """Makes ONNX files. `small` is SqueezeNet."""
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
    """Makes PyTorch files. `small` is a ResNet with one block per stage. digits.pt records no shapes; its manifest does."""
    import torch
    from torch import nn

    from benchmarks.gpu_models import Transformer, resnet50, write

    class Encoder(nn.Module):  # type: ignore[misc]
        """A transformer with one vector per sentence instead of one per word."""

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
    """Makes SavedModels. `small` is MobileNetV2."""
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
    """Makes LiteRT files by converting the SavedModels."""
    import tensorflow as tf

    paths = {"digits": DIGITS.with_suffix(".tflite")}
    for name, saved in of_keras(folder).items():
        if name not in paths:
            paths[name] = folder / f"{name}.tflite"
            converted = tf.lite.TFLiteConverter.from_saved_model(str(saved)).convert()
            paths[name].write_bytes(converted)
    return paths


def of_ncnn(folder: Path) -> Mapping[str, Path]:
    """Makes ncnn files by converting the ONNX files, and writes the shapes into them."""
    found = find_spec("pnnx")
    if found is None or found.origin is None:
        raise SystemExit("framework_models.py: install the package pnnx, which converts to ncnn")
    program = Path(found.origin).with_name("pnnx")
    paths = {"digits": DIGITS.parent / "digits_ncnn/digits.param"}
    for name, source in of_onnx(folder).items():
        if name in paths:
            continue
        shapes = ["3,224,224"] if name != "encoder" else [f"{TOKENS}"] * 3
        kind = "i64" if name == "encoder" else "f32"
        copy = folder / f"{name}.onnx"
        if copy != source:
            shutil.copy(source, copy)
        given = ",".join(f"[1,{shape}]{kind}" for shape in shapes)
        command = [str(program), copy.name, f"inputshape={given}", "fp16=0"]
        subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)
        paths[name] = folder / f"{name}.ncnn.param"
        sizes = " ".join(f"{key}={size}" for key, size in zip("012", (shapes[0].split(","))[::-1], strict=False))  # fmt: skip
        text = paths[name].read_text(encoding="utf-8")
        lines = (f"{x} {sizes}" if x.startswith("Input ") else x for x in text.splitlines())
        paths[name].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def of_mnn(folder: Path) -> Mapping[str, Path]:
    """Makes MNN files by converting the ONNX files, in a process each, because the converter prints on stdout."""
    paths = {"digits": DIGITS.with_suffix(".mnn")}
    for name, source in of_onnx(folder).items():
        if name not in paths:
            paths[name] = folder / f"{name}.mnn"
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
    "ncnn": of_ncnn,
    "mnn": of_mnn,
    "tract": of_onnx,
}


if __name__ == "__main__":
    framework, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    print(json.dumps({name: str(path) for name, path in MADE[framework](out).items()}))
