"""Reads ncnn's .param file, the text that lists the layers of a network. The weights are in a .bin file.

ncnn crashes with a segmentation fault if it computes with a file that it has refused, or with an input of the wrong
size. The checks in this module prevent the crash.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

_MAGIC = "7767517"
_BINARY_MAGIC = int(_MAGIC).to_bytes(4, "little")
_MOST_BYTES = 1 << 26
"""Maximum size of a .param file in bytes. A larger file is refused, because a .param file contains only one line per
layer, and the largest published files contain several thousand lines.
"""

_MOST_DIMENSIONS = 4

_INPUT = "Input"
_W, _H, _D, _C = 0, 1, 11, 2
"""Parameters of Input: the size of each dimension; 0 or absent if the file does not record the size."""


class Layer(NamedTuple):
    """One layer, which is a line of the file."""

    kind: str
    name: str
    bottoms: tuple[str, ...]
    """Blobs that the layer reads."""
    tops: tuple[str, ...]
    """Blobs that the layer writes."""
    parameters: Mapping[int, str]

    def number(self, key: int, default: int = 0) -> int:
        try:
            return int(self.parameters.get(key, default))
        except ValueError:  # an array or a fraction, which the checks do not need
            return default


class _Weights(NamedTuple):
    """Parameters of a layer with weights: the number of rows, the number of weights, and whether the weights are int8."""

    rows: int
    size: int
    int8: int | None


_WEIGHTS: Mapping[str, _Weights] = {
    **dict.fromkeys(("Convolution", "ConvolutionDepthWise"), _Weights(0, 6, 8)),
    **dict.fromkeys(("Convolution1D", "Convolution3D", "Deconvolution"), _Weights(0, 6, None)),
    "InnerProduct": _Weights(0, 2, 8),
    "Embed": _Weights(0, 3, 18),
    "MultiHeadAttention": _Weights(0, 2, 18),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _Weights(0, 1, 8)),
}


def param_of(path: Path) -> Path:
    """Returns the given .param file, or the only one in a folder. Raises a ValueError if the folder does not contain exactly one."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.param"))
    if len(files) != 1:
        raise ValueError(f"the folder must contain exactly one .param, but contains {len(files)}")
    return files[0]


def weights_of(param: Path) -> Path:
    """Returns the .bin next to the .param. Raises a ValueError if the .bin is missing."""
    weights = param.with_suffix(".bin")
    if not weights.is_file():
        raise ValueError(f"its weights, {weights.name}, are missing: put them next to it")
    return weights


def read_layers(param: Path) -> list[Layer]:
    """Returns the layers; raises a ValueError if the file has a different format, or if its lines contradict each
    other.
    """
    with param.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if content.startswith(_BINARY_MAGIC):
        raise ValueError(
            "it is in ncnn's binary format, which has no names: pass the text file, .param"
        )
    if len(content) > _MOST_BYTES:
        raise ValueError("it is too long for a .param file, which is a text file")
    lines = [line.split() for line in content.decode("utf-8", "replace").splitlines()]
    lines = [words for words in lines if words]
    if not lines or lines[0] != [_MAGIC]:
        raise ValueError(f"it is not an ncnn .param file, whose first line is {_MAGIC}")
    try:
        count, _blobs = map(int, lines[1])
        layers = [_layer(words) for words in lines[2:]]
    except (IndexError, ValueError):
        raise ValueError("it is an incomplete ncnn .param file: fetch it again") from None
    if count != len(layers):
        raise ValueError(
            f"its header declares {count} layers, but the file has {len(layers)}: fetch it again"
        )
    _check_wiring(layers)
    return layers


def _layer(words: Sequence[str]) -> Layer:
    kind, name, reads, writes, *rest = words
    bottoms, tops = int(reads), int(writes)
    ends = bottoms + tops
    if bottoms < 0 or tops < 0 or len(rest) < ends:
        raise ValueError("too few blobs")
    pairs = (word.split("=", 1) for word in rest[ends:])
    parameters = {int(key): value for key, value in pairs}
    return Layer(kind, name, tuple(rest[:bottoms]), tuple(rest[bottoms:ends]), parameters)


def _check_wiring(layers: Sequence[Layer]) -> None:
    """Refuses a layer that reads a blob if no earlier layer writes the blob."""
    known: set[str] = set()
    for layer in layers:
        if unknown := [blob for blob in layer.bottoms if blob not in known]:
            raise ValueError(
                f"layer {layer.name!r} reads {unknown[0]!r}, which no layer before it writes"
            )
        known.update(layer.tops)


def inputs_of(layers: Sequence[Layer]) -> dict[str, tuple[int, ...] | None]:
    """Maps an input to the shape of one sample, slowest dimension first; None if the file does not record the shape."""
    found: dict[str, tuple[int, ...] | None] = {}
    for layer in (one for one in layers if one.kind == _INPUT):
        sizes = [layer.number(key) for key in (_C, _D, _H, _W)]
        shape = tuple(size for size in sizes if size > 0)
        found.update(dict.fromkeys(layer.tops, shape or None))
    return found


def outputs_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """Returns the blobs that no layer reads."""
    read = {blob for layer in layers for blob in layer.bottoms}
    return tuple(blob for layer in layers for blob in layer.tops if blob not in read)


def weight_types(layers: Sequence[Layer]) -> Iterator[tuple[tuple[int, int], str]]:
    """Yields the shape and the number type of each layer's weights."""
    for layer in layers:
        yield from _constants(layer)
        at = _WEIGHTS.get(layer.kind)
        if at is None or not (rows := layer.number(at.rows)):
            continue
        is_int8 = at.int8 is not None and layer.number(at.int8) != 0
        yield (rows, layer.number(at.size) // rows), "int8" if is_int8 else "float32"


def _constants(layer: Layer) -> Iterator[tuple[tuple[int, int], str]]:
    """Yields the shape and the number type of each constant matrix of the layer."""
    if layer.kind == "MemoryData":
        sizes = [max(1, layer.number(key)) for key in (_C, _D, _H, _W)]
        yield (prod(sizes[:-1]), sizes[-1]), "float32"
    if layer.kind == "Gemm":
        kind = "int8" if layer.number(18) else "float32"
        m, n, k = (layer.number(key) for key in (7, 8, 9))
        if layer.number(4):
            yield (m, k), kind
        if layer.number(5):
            yield (k, n), kind


def strides_of(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Returns the strides of each convolution. A vertical stride that the file omits equals the horizontal stride."""
    found = (layer for layer in layers if layer.kind.startswith("Convolution"))
    return [(layer.number(13, layer.number(3, 1)), layer.number(3, 1)) for layer in found]


_FREE = frozenset(
    {
        *("Input", "Split", "Pooling", "Flatten", "ReLU", "Clip", "Sigmoid", "TanH"),
        *("Swish", "HardSwish", "HardSigmoid", "GELU", "PReLU", "ELU", "SELU", "Mish"),
        *("BinaryOp", "UnaryOp", "Eltwise", "Concat", "Slice", "Crop", "Padding", "Reshape"),
        *("Permute", "Softmax", "BatchNorm", "Scale", "Bias", "Dropout", "Reduction", "Squeeze"),
        *(
            "ExpandDims",
            "Interp",
            "ShuffleChannel",
            "Embed",
            "LayerNorm",
            "GroupNorm",
            "InstanceNorm",
            "RMSNorm",
        ),
        *("MemoryData", "Noop", "Cast"),
    }
)
"""Types of layers without convolutions or matrix products."""


def multiplications(layers: Sequence[Layer], shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Returns the number of multiplications in convolutions and matrix products; None if the number is unknown for a
    layer.

    shapes: the shape of each blob for one sample.
    """
    count = 0
    for layer in layers:
        if layer.kind in _FREE:
            continue
        at, output = _WEIGHTS.get(layer.kind), shapes.get(layer.tops[0], ())
        rows = layer.number(at.rows) if at else 0
        if not layer.kind.startswith(("Convolution", "InnerProduct")) or at is None or not rows:
            return None
        count += prod(output) * (layer.number(at.size) // rows)
    return count


def misfit(layers: Sequence[Layer], name: str, shape: Sequence[int | str | None]) -> str:
    """Returns the reason why an input of this shape cannot fit; '' if it may fit. shape: the shape of one sample.

    Checks the layer that reads the input, because ncnn would read beyond the end of an input that is too small.
    """
    if not 1 <= len(shape) <= _MOST_DIMENSIONS:
        return f"ncnn takes 1 to {_MOST_DIMENSIONS} dimensions without the batch"
    reader = _reader(layers, name)
    if reader is None or not all(isinstance(size, int) for size in shape):
        return ""
    sizes = [size for size in shape if isinstance(size, int)]
    wanted = _wanted(reader)
    if reader.kind == "Convolution" and wanted and (len(sizes) != 3 or sizes[0] != wanted):
        return f"its first layer takes [{wanted}, height, width]"
    if reader.kind == "InnerProduct" and wanted and wanted not in (prod(sizes), sizes[-1]):
        return f"its first layer takes {wanted} numbers"
    return ""


def selects_rows(layers: Sequence[Layer], name: str) -> bool:
    """Returns whether the input contains row numbers of a table."""
    reader = _reader(layers, name)
    return reader is not None and reader.kind == "Embed"


def _reader(layers: Sequence[Layer], name: str) -> Layer | None:
    return next((layer for layer in layers if name in layer.bottoms), None)


def _wanted(layer: Layer) -> int:
    """Returns the input size of a layer, which is the number of channels of a convolution or the length of a matrix
    product's input; 0 if the size is unknown.
    """
    at = _WEIGHTS.get(layer.kind)
    rows = layer.number(at.rows) if at else 0
    if at is None or not rows:
        return 0
    width = layer.number(1, 1)
    window = width * layer.number(11, width) if layer.kind == "Convolution" else 1
    return layer.number(at.size) // rows // max(1, window)
