"""Trains the small embedded digit classifier and writes it in every committed format.

    python -m harness.models.train_digits [--out DIR] [--formats-only]

Writes FILES under DIR (default: the root of the repository), and prints the SHA-256 of each file. For a folder, the
digest is the result of harness.models.manifest.files.sha256_of. `--formats-only` skips the training, and rewrites every
format from the weights in digits_weights.npz.

In every format, the model maps "image" to "logits". "image" is float32 (batch, 1, 8, 8) with grey values scaled to
0..1, and "logits" is float32 (batch, 10). Layers: conv 3x3 1 to 16, relu, conv 3x3 16 to 32, relu, max pool 2x2,
flatten (C, H, W order), dense 512 to 128, relu, dense 128 to 10.

Data: "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, CC BY 4.0 (UCI's licence for the datasets that it hosts). scikit-learn (BSD-3-Clause)
ships the data as `load_digits` and describes them as "a copy of the test set of the UCI ML hand-written digits
datasets". The data are 1,797 images of 8x8 integer pixels in the range 0..16, written by 13 people. This script splits
the data by image, not by writer, and stores the images as uint8. The training and held-out images therefore contain
digits written by the same people.

The 500 held-out images were not used to tune any setting. Repeated runs on one machine write identical bytes. Another
CPU model or other package versions may round differently and produce different weights.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.models.manifest.files import sha256_of

SEED = 2026
HELD_OUT = 500
CALIBRATED_ON = 200
EPOCHS, BATCH = 60, 64  # number of passes over the training images, and number of images per step
PEAK_LEARNING_RATE = 4e-3
DROPOUT = 0.25
GREY_MAX = 16  # the largest pixel value in the data
# maximum batch of the ExecuTorch program, because its memory is sized at export
MOST_SAMPLES = 1024
# IR version of onnx 1.16, because older runtimes refuse files with the IR version of newer packages
IR_VERSION = 10

# The libraries read these variables when they are first imported. The last bit of a sum depends on the order of its
# terms. The variables therefore select one thread, and one instruction set for all CPUs that support it.
DETERMINISTIC_ENVIRONMENT = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MKL_CBWR": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}

FILES = (
    "datasets/parts/digits.npz",  # the held-out images and their labels
    "harness/models/shipped/digits_weights.npz",  # see Weights
    # the first CALIBRATED_ON training images, in the same format
    "datasets/parts/digits_calibration.npz",
    # The following files contain the same weights. WRITERS maps the name of each format to the function that writes it.
    "harness/models/shipped/digits.onnx",
    "harness/models/shipped/digits.tflite",
    "harness/models/shipped/digits_savedmodel",
    "harness/models/shipped/digits.keras",
    "harness/models/shipped/digits_openvino",
    "harness/models/shipped/digits.pt",
    "harness/models/shipped/digits.pte",
    "harness/models/shipped/digits_ncnn",
    "harness/models/shipped/digits.mnn",
)

# (name of the layer in the .npz, its index in the torch Sequential)
LAYERS = (("conv1", 0), ("conv2", 2), ("dense1", 7), ("dense2", 10))

Weights = Mapping[str, NDArray[np.float32]]
"""The arrays of digits_weights.npz, all float32, in PyTorch's layout.

conv1_weight (16, 1, 3, 3) and conv2_weight (32, 16, 3, 3) are (out, in, height, width) with padding 1. dense1_weight
(128, 512) and dense2_weight (10, 128) are (out, in). The 512 inputs are in C, H, W = 32, 4, 4 order. The biases are
(16,), (32,), (128,) and (10,).
"""


class Split(NamedTuple):
    """Images are uint8 (n, 8, 8), 0..16; labels are int64 (n,), 0..9."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def load_split() -> Split:
    """Returns 1,297 training images and 500 held-out images. The split is stratified by digit and the same on every
    call.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT, random_state=SEED, stratify=labels
    )
    return Split(images[train], labels[train], images[test], labels[test])


def to_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scales (n, 8, 8) uint8 in 0..16 to (n, 1, 8, 8) float32 in 0..1. The result is exact, because 16 is a power of
    two.
    """
    return images[:, np.newaxis].astype(np.float32) / np.float32(GREY_MAX)


def build_network() -> Any:
    """Returns the untrained torch model. LAYERS lists the indices of the model's layers."""
    from torch import nn

    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    hidden = [nn.Dropout(DROPOUT), nn.Linear(32 * 4 * 4, 128), nn.ReLU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*first, *second, *hidden, nn.Linear(128, 10))


def train(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Any:
    """Returns the trained torch model in evaluation mode. images: (n, 1, 8, 8), labels: (n,)."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    network = build_network()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(network.parameters())
    steps = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, steps)
    for _ in range(EPOCHS):
        order: Any = torch.randperm(len(x))
        for chosen in order.split(BATCH):
            loss: Any = torch.nn.functional.cross_entropy(network(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def top1(network: Any, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Returns the fraction of images whose label has the largest logit."""
    import torch

    predicted = network(torch.from_numpy(images)).argmax(1).numpy()
    return float((predicted == labels).mean())


def weights_of(network: Any) -> Weights:
    """Returns the trained arrays under the names of the .npz."""
    return {
        f"{layer}_{part}": getattr(network[index], part).detach().numpy().astype(np.float32)
        for layer, index in LAYERS
        for part in ("weight", "bias")
    }


def write_onnx(path: Path, weights: Weights) -> None:
    """Builds the file node by node, because an exporter would write its version and names into the file."""
    from onnx import checker

    from harness.models.made.onnx_graph import FLOAT, Ports, build
    from harness.models.made.onnx_graph import node as make_node

    def node(kind: str, source: str, target: str, layer: str = "", **attributes: Any) -> Any:
        inputs = [source, f"{layer}_weight", f"{layer}_bias"] if layer else [source]
        return make_node(kind, inputs, [target], name=f"{target}_{kind}", **attributes)

    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "image", "conv1", "conv1", **same),
        node("Relu", "conv1", "relu1"),
        node("Conv", "relu1", "conv2", "conv2", **same),
        node("Relu", "conv2", "relu2"),
        node("MaxPool", "relu2", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "pool", "flat"),
        node("Gemm", "flat", "dense1", "dense1", transB=1),
        node("Relu", "dense1", "relu3"),
        node("Gemm", "relu3", "logits", "dense2", transB=1),
    ]
    image: Ports = {"image": (FLOAT, ["batch", 1, 8, 8])}
    logits: Ports = {"logits": (FLOAT, ["batch", 10])}
    model = build("digits", nodes, image, logits, weights, IR_VERSION)
    checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def tensorflow_function(weights: Weights) -> Any:
    """Returns the model as a tf.function that maps (batch, 1, 8, 8) float32 to {"logits": (batch, 10) float32}.

    On the CPU, TensorFlow needs the order N, H, W, C. Reshaping the input is enough, because the input has only one
    channel. The rows of dense1 are reordered once, when the function is created.
    """
    import tensorflow as tf

    def convolve(x: Any, layer: str) -> Any:
        kernel = weights[f"{layer}_weight"].transpose(2, 3, 1, 0)
        return tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + weights[f"{layer}_bias"])

    dense1 = weights["dense1_weight"].reshape(128, 32, 4, 4).transpose(2, 3, 1, 0).reshape(512, 128)
    dense2 = weights["dense2_weight"].T

    def digits(image: Any) -> dict[str, Any]:
        x = convolve(tf.reshape(image, (-1, 8, 8, 1)), "conv1")
        x = tf.nn.max_pool2d(convolve(x, "conv2"), 2, 2, "VALID")
        x = tf.nn.relu(tf.reshape(x, (-1, 512)) @ dense1 + weights["dense1_bias"])
        return {"logits": x @ dense2 + weights["dense2_bias"]}

    return tf.function(digits, input_signature=[tf.TensorSpec((None, 1, 8, 8), name="image")])


def write_savedmodel(path: Path, weights: Weights) -> None:
    """Writes the signature "serving_default", which maps an image to logits. Omits the fingerprint, because it is a
    random number.
    """
    import tensorflow as tf

    module = tf.Module()
    module.digits = tensorflow_function(weights)
    shutil.rmtree(path, ignore_errors=True)
    tf.saved_model.save(module, str(path), {"serving_default": module.digits})
    (path / "fingerprint.pb").unlink()
    # The folder is always empty. It is removed because git would not store it.
    (path / "assets").rmdir()


def write_tflite(path: Path, weights: Weights) -> None:
    """Writes a float32 file with the signature "serving_default" from image to logits. The batch can be resized."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        write_savedmodel(Path(folder) / "digits", weights)
        converter = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/digits")
        path.write_bytes(converter.convert())


def write_keras(path: Path, weights: Weights) -> None:
    """Writes a file with only Keras layers, and without Keras's date and object numbers."""
    import keras

    layers = keras.layers
    image = keras.Input((1, 8, 8), name="image")
    x = layers.Reshape((8, 8, 1), name="grey")(image)
    x = layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1")(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2")(x)
    x = layers.Permute((3, 1, 2), name="channels_first")(layers.MaxPool2D(2, name="pool")(x))
    x = layers.Dense(128, activation="relu", name="dense1")(layers.Flatten(name="flat")(x))
    model = keras.Model(image, layers.Dense(10, name="logits")(x), name="digits")
    for name, ours in (("conv1", "conv1"), ("conv2", "conv2"), ("dense1", "dense1")):
        kernel = weights[f"{ours}_weight"]
        kernel = kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
        model.get_layer(name).set_weights([kernel, weights[f"{ours}_bias"]])
    model.get_layer("logits").set_weights([weights["dense2_weight"].T, weights["dense2_bias"]])
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "digits.keras"
        model.save(saved)
        with zipfile.ZipFile(saved) as archive:
            config = json.loads(archive.read("config.json"), object_hook=_without_object_ids)
        metadata = {"keras_version": keras.__version__}
        _copy_archive(saved, path, {"config.json": config, "metadata.json": metadata})


def _without_object_ids(node: dict[str, Any]) -> dict[str, Any]:
    """Removes the memory addresses that Keras uses to identify shared objects, because the model shares no objects."""
    return {key: value for key, value in node.items() if key != "shared_object_id"}


def _copy_archive(source: Path, target: Path, replaced: Mapping[str, Any]) -> None:
    """Copies a zip file without compression and with the date 1980. replaced: maps names to new JSON, or to None to
    omit a file.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name in replaced:
                if replaced[name] is None:
                    continue
                content = json.dumps(replaced[name]).encode()
            new.writestr(zipfile.ZipInfo(name), content)


def write_openvino(path: Path, weights: Weights) -> None:
    """Converts the ONNX file to a float32 IR: a folder with digits.xml and digits.bin."""
    import openvino

    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder) / "digits.onnx"
        write_onnx(onnx, weights)
        model = openvino.convert_model(onnx)
        model.set_friendly_name("digits")
        openvino.save_model(model, path / "digits.xml", compress_to_fp16=False)


def torch_module(weights: Weights) -> Any:
    """Returns the model as a torch module that maps image to logits."""
    import torch

    class Digits(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.network = build_network()

        def forward(self, image: Any) -> Any:
            return self.network(image)

    digits = Digits().eval()
    for layer, index in LAYERS:
        for part in ("weight", "bias"):
            array = torch.from_numpy(weights[f"{layer}_{part}"])
            getattr(digits.network[index], part).data.copy_(array)
    return digits


def write_torchscript(path: Path, weights: Weights) -> None:
    """Writes a traced model without the names and positions of source files."""
    import torch

    traced = torch.jit.trace(torch_module(weights), torch.zeros(2, 1, 8, 8))
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "digits.pt"
        torch.jit.save(traced, saved)
        with zipfile.ZipFile(saved) as archive:
            places = [name for name in archive.namelist() if name.endswith(".debug_pkl")]
        _copy_archive(saved, path, dict.fromkeys(places))


def write_executorch(path: Path, weights: Weights) -> None:
    """Writes a program whose operators run in XNNPACK, for batches up to MOST_SAMPLES."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    batch = {0: torch.export.Dim("batch", min=1, max=MOST_SAMPLES)}
    # If the example is smaller, torch.export limits the convolutions' batch to 15.
    example = (torch.zeros(MOST_SAMPLES, 1, 8, 8),)
    exported = torch.export.export(torch_module(weights), example, dynamic_shapes=(batch,))
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    path.write_bytes(lowered.to_executorch().buffer)


NCNN_LAYERS = """\
7767517
7 7
Input image 0 1 image 0=8 1=8 2=1
Convolution conv1 1 1 image relu1 0=16 1=3 4=1 5=1 6=144 9=1
Convolution conv2 1 1 relu1 relu2 0=32 1=3 4=1 5=1 6=4608 9=1
Pooling pool 1 1 relu2 pool 0=0 1=2 2=2 5=1
Flatten flat 1 1 pool flat
InnerProduct dense1 1 1 flat relu3 0=128 1=1 2=65536 9=1
InnerProduct logits 1 1 relu3 logits 0=10 1=1 2=1280
"""
"""Layers of the ncnn model. The keys mean: 0 outputs, 1 kernel or bias, 4 padding, 5 bias, 6 or 2 weights, 9 activation
(1 is ReLU).
"""


def write_ncnn(path: Path, weights: Weights) -> None:
    """Writes a folder with digits.param and digits.bin. A zero before the weights in digits.bin means float32."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    (path / "digits.param").write_text(NCNN_LAYERS, encoding="ascii")
    with (path / "digits.bin").open("wb") as file:
        for layer, _ in LAYERS:
            file.write(bytes(4))
            for part in ("weight", "bias"):
                file.write(weights[f"{layer}_{part}"].astype("<f4").tobytes())


def write_mnn(path: Path, weights: Weights) -> None:
    """Converts the ONNX file to MNN. Replaces the random identifier of MNN's converter with zeros."""
    # This internal module is used because MNN's own command, mnnconvert, sends usage reports to its developers.
    import _tools

    with tempfile.TemporaryDirectory() as folder:
        onnx, made = Path(folder) / "digits.onnx", Path(folder) / "digits.mnn"
        write_onnx(onnx, weights)
        words = (
            "-f",
            "ONNX",
            "--modelFile",
            str(onnx),
            "--MNNModel",
            str(made),
            "--bizCode",
            "MNN",
        )
        _tools.mnnconvert(["mnnconvert", *words])
        drawn = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
        content, count = drawn.subn(b"00000000-0000-0000-0000-000000000000", made.read_bytes())
    if count != 1:
        raise ValueError(f"{count} identifiers in MNN's file, not 1: its format has changed")
    path.write_bytes(content)


WRITERS: Mapping[str, Callable[[Path, Weights], None]] = {
    "digits.onnx": write_onnx,
    "digits.tflite": write_tflite,
    "digits_savedmodel": write_savedmodel,
    "digits.keras": write_keras,
    "digits_openvino": write_openvino,
    "digits.pt": write_torchscript,
    "digits.pte": write_executorch,
    "digits_ncnn": write_ncnn,
    "digits.mnn": write_mnn,
}


def write_trained(root: Path) -> None:
    """Trains the model, writes the held-out images and the weights under `root`, and prints the accuracy."""
    split = load_split()
    network = train(to_input(split.train_images), split.train_labels)
    # The arrays are not compressed, so that the bytes do not depend on zlib. numpy dates every member 1980-01-01.
    np.savez(root / FILES[0], images=split.test_images, labels=split.test_labels)
    np.savez(root / FILES[1], allow_pickle=False, **weights_of(network))
    write_calibration(root, split)
    accuracy = top1(network, to_input(split.test_images), split.test_labels)
    print(f"top-1 on the {len(split.test_labels)} held-out images: {accuracy:.4f}")


def write_calibration(root: Path, split: Split) -> None:
    """Writes training images that determine the quantisation ranges. These images are never scored."""
    some = slice(CALIBRATED_ON)
    np.savez(root / FILES[2], images=split.train_images[some], labels=split.train_labels[some])


def write_all(root: Path, *, formats_only: bool) -> None:
    """Writes all FILES under `root`. All formats are written from the weights in that folder."""
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    if not formats_only:
        write_trained(root)
    with np.load(root / FILES[1], allow_pickle=False) as file:
        weights = dict(file)
    for name in FILES[3:]:
        path = root / name
        WRITERS[path.name](path, weights)
    for name in FILES:
        if (root / name).exists():
            print(sha256_of(root / name), name)


def main() -> None:
    """Parses the command line, sets the environment before the libraries are imported, and writes the files."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description="Train the embedded digit classifier.")
    parser.add_argument("--out", type=Path, default=root, help="root folder of the written files")
    parser.add_argument(
        "--formats-only", action="store_true", help="do not train: use the weights under --out"
    )
    options = parser.parse_args()
    os.environ.update(DETERMINISTIC_ENVIRONMENT)
    write_all(options.out, formats_only=options.formats_only)


if __name__ == "__main__":
    main()
