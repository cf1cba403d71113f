"""Makes the nine topologies in the onnx package runnable, for performance runs only.

The files in onnx/backend/test/data/light contain no weights, because ConstantOfShape nodes produce them at run time.
The equal weights lead to denormals, and the batch size is fixed at 1. This module replaces the weights with untrained,
seeded random numbers, and makes the batch symbolic.
"""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.extras import how_to_install, how_to_install_packages
from harness.core.files import cache_dir, cached_file
from harness.errors import PluginUnavailable

PREFIX = "light/"
RECIPE = b"1"
"""Part of each file's path. Change RECIPE whenever the models change, so that old files are not reused."""

_SEED = 0
_FLOAT = 1
"""onnx.TensorProto.FLOAT"""


class Light(NamedTuple):
    """A topology that takes an ImageNet image."""

    file: str
    """The middle of the file's name, light_<file>.onnx."""
    input: str
    output: str
    about: str


LIGHT: Mapping[str, Light] = {
    "alexnet": Light("bvlc_alexnet", "data_0", "prob_1", "AlexNet"),
    "densenet121": Light("densenet121", "data_0", "fc6_1", "DenseNet-121"),
    "inception_v1": Light("inception_v1", "data_0", "prob_1", "Inception v1"),
    "inception_v2": Light("inception_v2", "data_0", "prob_1", "Inception v2"),
    "resnet50": Light("resnet50", "gpu_0/data_0", "gpu_0/softmax_1", "ResNet-50"),
    "shufflenet": Light("shufflenet", "gpu_0/data_0", "gpu_0/softmax_1", "ShuffleNet"),
    "squeezenet": Light("squeezenet", "data_0", "softmaxout_1", "SqueezeNet"),
    "vgg19": Light("vgg19", "data_0", "prob_1", "VGG-19"),
    "zfnet512": Light("zfnet512", "gpu_0/data_0", "gpu_0/softmax_1", "ZFNet-512"),
}


def names() -> tuple[str, ...]:
    return tuple(LIGHT)


def manifest_of(name: str) -> dict[str, Any]:
    """Returns the content of a manifest for LIGHT[name]."""
    light = LIGHT[name]
    return {
        "name": f"light-{name}",
        "version": RECIPE.decode(),
        "description": f"{light.about} with random weights, from the onnx package: performance only",
        "licence": "Apache-2.0",
        "references": ["https://github.com/onnx/onnx"],
        "task": "none",
        "weights": "random",
        "files": {"onnx": {"path": f"{name}.onnx", "sha256": None}},
        "inputs": [{"name": light.input, "dtype": "float32", "shape": ["batch", 3, 224, 224]}],
        "outputs": [{"name": light.output, "postprocess": "argmax"}],
        "dataset": "synthetic",
    }


def made_path(name: str) -> Path:
    """Returns the path of the runnable file of LIGHT[name], which may not exist yet."""
    digest = hashlib.sha256(RECIPE + _template(name).read_bytes()).hexdigest()
    return cache_dir() / "light" / digest[:16] / f"{name}.onnx"


def make(name: str) -> Path:
    """Writes the runnable file unless it exists. The function takes several seconds, and needs up to 2 GB of memory
    (for vgg19).
    """
    path = made_path(name)
    if not path.is_file():
        with cached_file(path) as temporary:
            write(_template(name), temporary)
    return path


def _template(name: str) -> Path:
    spec = importlib.util.find_spec("onnx")  # find_spec finds the package without importing it
    if spec is None or spec.origin is None:
        raise PluginUnavailable(
            f"model {PREFIX + name!r} needs the module 'onnx': {how_to_install('onnx')}"
        )
    path = Path(spec.origin).parent / "backend/test/data/light" / f"light_{LIGHT[name].file}.onnx"
    if not path.is_file():
        raise PluginUnavailable(
            f"model {PREFIX + name!r}: this onnx package has no {path.name}: "
            + how_to_install_packages("onnx==1.23.2")
        )
    return path


def write(template: Path, path: Path) -> None:
    """Writes a model with weights and a symbolic batch to `path`. template: one of the package's files."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(template)
    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    shapes, nodes = {}, []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            dims = numpy_helper.to_array(constants[node.input[0]])
            shapes[node.output[0]] = tuple(int(d) for d in dims)
        else:
            nodes.append(node)
    shapes |= {t.name: tuple(t.dims) for t in constants.values() if t.data_type == _FLOAT}
    used = {name for node in nodes for name in node.input}
    shapes = {name: shape for name, shape in shapes.items() if name in used}
    _free_batch(nodes, constants, shapes)
    _replace(graph.input, [i for i in graph.input if i.name not in constants])
    _replace(graph.node, nodes)
    _replace(graph.initializer, [t for t in constants.values() if t.name in used - shapes.keys()])
    _replace(graph.value_info, [])
    roles = dict(_roles(nodes, shapes))
    random = np.random.default_rng(_SEED)
    for name, shape in shapes.items():
        array = _weights(random, shape, roles.get(name, ""))
        graph.initializer.append(numpy_helper.from_array(array, name))
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    # before IR version 4, every weight also had to be declared as an input
    model.ir_version = 8
    onnx.save(model, path, format="protobuf")


def _free_batch(nodes: list[Any], constants: dict[str, Any], weights: Mapping[str, Any]) -> None:
    """Replaces the 1 with 0 in each Reshape of activations to [1, ...], so that the Reshape keeps the first dimension."""
    from onnx import numpy_helper

    for node in nodes:
        if node.op_type == "Reshape" and node.input[0] not in weights:
            name = node.input[1]
            dims = numpy_helper.to_array(constants[name]).copy()
            dims[0] = 0
            constants[name] = numpy_helper.from_array(dims, name)


def _roles(nodes: list[Any], shapes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the weights that are neither kernels nor offsets, with their roles for `_weights`."""
    origin = {n.output[0]: n.input[0] for n in nodes if n.op_type == "Unsqueeze"}
    summed = {name for n in nodes if n.op_type == "Sum" for name in n.input}
    for node in nodes:
        names = [origin.get(name, name) for name in node.input]
        if node.op_type == "BatchNormalization":
            yield names[1], "branch" if node.output[0] in summed else "factor"
            yield names[4], "variance"
        elif node.op_type == "Mul":
            yield from ((name, "factor") for name in names if name in shapes)


def _weights(random: np.random.Generator, shape: tuple[int, ...], role: str) -> Any:
    """Returns kernels scaled so that activations neither vanish nor overflow (He), factors near 1, or small offsets.

    role: `branch` means the last factor of a residual branch. If this factor were near 1, each sum would double the
    variance.
    """
    array = random.standard_normal(shape, dtype=np.float32)
    if role == "branch":
        return 0.3 + 0.03 * array
    if role == "variance":
        return 1 + 0.1 * np.abs(array)
    if role == "factor":
        return 1 + 0.1 * array
    array *= (2.0 / np.prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0.01
    return array


def _replace(field: Any, content: list[Any]) -> None:
    """field: a protobuf repeated field."""
    del field[:]
    field.extend(content)
