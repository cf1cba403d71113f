"""Builds five well-known networks with seeded random weights, for performance runs only.

The files resemble exports from training frameworks. Convolution, batch normalisation and activation are separate nodes,
the batch is symbolic, and the output is a classifier's logits. The weights are untrained.

Sources: He et al. 2015 (ResNet-50: in each stage, v1 puts the stride in the first 1x1 convolution, v1.5 in the 3x3
convolution), Howard et al. 2017 and Sandler et al. 2018 (MobileNet v1 and v2, width 1), Simonyan and Zisserman 2014
(VGG-16, configuration D).
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.extras import how_to_install
from harness.core.files import cache_dir, cached_file
from harness.errors import PluginUnavailable

PREFIX = "zoo/"
RECIPE = "1"
"""Part of each file's path. Change RECIPE whenever the models change, so that old files are not reused."""

_SEED = 0
_CLASSES = 1000
_OPSET, _IR_VERSION = 17, 8


class Network(NamedTuple):
    about: str
    build: Callable[["Builder"], None]
    """Adds all layers between the input and the output."""


class Builder:
    """A graph under construction. Each method adds layers after `end`, and then sets `end` to the output of the last
    added layer.

    end: the name of the last activations. channels: the number of channels at `end`. The weights are scaled (He
    initialisation), so that activations neither vanish nor overflow.
    """

    def __init__(self, name: str) -> None:
        import onnx

        self._helper = onnx.helper
        self._random = np.random.default_rng(_SEED)
        self.model = onnx.ModelProto(ir_version=_IR_VERSION, producer_name="mlperf-harness zoo")
        self.model.opset_import.add(version=_OPSET)
        self.model.graph.name = name
        port, kind = self._helper.make_tensor_value_info, onnx.TensorProto.FLOAT
        self.model.graph.input.append(port("image", kind, ["batch", 3, 224, 224]))
        self.model.graph.output.append(port("logits", kind, ["batch", _CLASSES]))
        self.end, self.channels = "image", 3

    def add(self, op_type: str, *more: str, output: str = "", **attributes: object) -> str:
        """Adds one layer. more: the inputs after `end`. Returns the output's name, which is the new `end`."""
        name = f"{op_type.lower()}_{len(self.model.graph.node)}"
        inputs, outputs = [self.end, *more], [output or name]
        node = self._helper.make_node(op_type, inputs, outputs, name, **attributes)
        self.model.graph.node.append(node)
        self.end = output or name
        return self.end

    def conv(
        self, channels: int, kernel: int, stride: int = 1, groups: int = 1, *, bias: bool = False
    ) -> None:
        shape = (channels, self.channels // groups, kernel, kernel)
        weights = [self._weight(shape)]
        if bias:
            weights.append(self._weight((channels,), 0.01))
        self.add(
            "Conv",
            *weights,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            dilations=[1, 1],
            group=groups,
        )
        self.channels = channels

    def norm(self, factor: float = 1.0) -> None:
        """factor: mean of the scales, which is below 1 on a residual branch to keep sums in range."""
        scale, variance = (self._weight((self.channels,), 0.1, at=at) for at in (factor, 1.0))
        shift, mean = (self._weight((self.channels,), 0.01) for _ in range(2))
        self.add("BatchNormalization", scale, shift, mean, variance, epsilon=1e-5)

    def relu6(self) -> None:
        self.add("Clip", self._constant("zero", 0.0), self._constant("six", 6.0))

    def linear(self, width: int, output: str = "") -> None:
        weights = (self._weight((width, self.channels)), self._weight((width,), 0.01))
        self.add("Gemm", *weights, output=output, transB=1)
        self.channels = width

    def classify(self) -> None:
        """Adds the mean over all positions, and the layer that computes the logits."""
        self.add("GlobalAveragePool")
        self.add("Flatten", axis=1)
        self.linear(_CLASSES, output="logits")

    def _weight(self, shape: tuple[int, ...], spread: float | None = None, at: float = 0.0) -> str:
        """spread: the standard deviation around `at`, by default He's value for a kernel."""
        spread = (2.0 / np.prod(shape[1:])) ** 0.5 if spread is None else spread
        array = self._random.standard_normal(shape, dtype=np.float32)
        np.abs(array, out=array) if at else None
        array *= np.float32(spread)
        array += np.float32(at)
        return self._keep(f"weight_{len(self.model.graph.initializer)}", array)

    def _constant(self, name: str, value: float) -> str:
        known = any(tensor.name == name for tensor in self.model.graph.initializer)
        return name if known else self._keep(name, np.array(value, np.float32))

    def _keep(self, name: str, array: "np.typing.NDArray[np.float32]") -> str:
        tensor = self.model.graph.initializer.add(name=name, data_type=1, dims=array.shape)
        tensor.raw_data = array.tobytes()
        return name


def _bottleneck(
    net: Builder, width: int, stride: int, *, first: bool, stride_in_first: bool
) -> None:
    """first: whether this bottleneck is the first of its stage, in which the shortcut contains a projection."""
    start, channels = net.end, net.channels
    net.conv(width, 1, stride if stride_in_first else 1)
    net.norm()
    net.add("Relu")
    net.conv(width, 3, 1 if stride_in_first else stride)
    net.norm()
    net.add("Relu")
    net.conv(4 * width, 1)
    net.norm(0.3)
    branch = net.end
    net.end = start
    if first:
        net.channels = channels
        net.conv(4 * width, 1, stride)
        net.norm()
    net.add("Add", branch)
    net.add("Relu")


def resnet(net: Builder, *, stride_in_first: bool, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
    """depths: number of bottlenecks per stage, by default the numbers for ResNet-50."""
    net.conv(64, 7, 2)
    net.norm()
    net.add("Relu")
    net.add("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage, blocks in enumerate(depths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            _bottleneck(net, 64 << stage, stride, first=not block, stride_in_first=stride_in_first)
    net.classify()


def _resnet50_v1(net: Builder) -> None:
    resnet(net, stride_in_first=True)


def _resnet50_v1_5(net: Builder) -> None:
    resnet(net, stride_in_first=False)


def _normed(net: Builder, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
    net.conv(channels, kernel, stride, groups)
    net.norm()
    net.relu6()


def _mobilenet_v1(net: Builder) -> None:
    _normed(net, 32, 3, 2)
    widths = (64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    for width, stride in zip(widths, strides, strict=True):
        _normed(net, net.channels, 3, stride, groups=net.channels)
        _normed(net, width, 1)
    net.classify()


_INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""MobileNet v2, table 2: expansion, channels, repeats, stride of the first repeat."""


def _mobilenet_v2(net: Builder) -> None:
    _normed(net, 32, 3, 2)
    for expansion, channels, repeats, first_stride in _INVERTED:
        for i in range(repeats):
            start, before, stride = net.end, net.channels, first_stride if not i else 1
            if expansion > 1:
                _normed(net, expansion * before, 1)
            _normed(net, net.channels, 3, stride, groups=net.channels)
            net.conv(channels, 1)
            is_residual = stride == 1 and before == channels
            net.norm(0.3 if is_residual else 1.0)
            if is_residual:
                net.add("Add", start)
    _normed(net, 1280, 1)
    net.classify()


def _vgg16(net: Builder) -> None:
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            net.conv(channels, 3, bias=True)
            net.add("Relu")
        net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.add("Flatten", axis=1)
    net.channels *= 7 * 7
    for _ in range(2):
        net.linear(4096)
        net.add("Relu")
    net.linear(_CLASSES, output="logits")


ZOO: Mapping[str, Network] = {
    "resnet50_v1": Network("ResNet-50 v1", _resnet50_v1),
    "resnet50_v1.5": Network("ResNet-50 v1.5", _resnet50_v1_5),
    "mobilenet_v1": Network("MobileNet v1", _mobilenet_v1),
    "mobilenet_v2": Network("MobileNet v2", _mobilenet_v2),
    "vgg16": Network("VGG-16", _vgg16),
}


def names() -> tuple[str, ...]:
    return tuple(ZOO)


def manifest_of(name: str) -> dict[str, Any]:
    """Returns the content of a manifest for ZOO[name]."""
    return {
        "name": f"zoo-{name}",
        "version": RECIPE,
        "description": f"{ZOO[name].about} with random weights, built here: performance only",
        "licence": "Apache-2.0",
        "task": "none",
        "weights": "random",
        "files": {"onnx": {"path": f"{name}.onnx", "sha256": None}},
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 224, 224]}],
        "outputs": [{"name": "logits", "postprocess": "argmax"}],
        "dataset": "synthetic",
    }


def made_path(name: str) -> Path:
    """Returns the path of the runnable file of ZOO[name], which may not exist yet."""
    return cache_dir() / "zoo" / RECIPE / f"{name}.onnx"


def make(name: str) -> Path:
    """Writes the runnable file unless it exists. The function takes several seconds, and needs up to 2 GB of memory
    (for vgg16).
    """
    path = made_path(name)
    if not path.is_file():
        if importlib.util.find_spec("onnx") is None:
            raise PluginUnavailable(
                f"model {PREFIX + name!r} needs the module 'onnx': {how_to_install('onnx')}"
            )
        with cached_file(path) as temporary:
            write(name, temporary)
    return path


def write(name: str, path: Path) -> None:
    """Writes ZOO[name] as an ONNX file."""
    net = Builder(name)
    ZOO[name].build(net)
    path.write_bytes(net.model.SerializeToString())
