"""Reads the tables that a Keras file indexes. Parses the layers in the file's JSON and does not need Keras."""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.models.tables.flow import Flow, Lookup, Operation, Operators

_OPERATORS = Operators(
    first=frozenset((
        "Cropping1D", "Dropout", "Flatten", "GlobalMaxPooling1D", "Identity", "MaxPooling1D", "Permute",
        "RepeatVector", "Reshape", "SpatialDropout1D", "ZeroPadding1D",
    )),
    several={"Concatenate": (), "Maximum": (), "Minimum": ()},
    arithmetic=frozenset(("Add", "Average", "Dot", "Multiply", "Rescaling", "Subtract")),
    choice=(),
    less="",
    add="",
)  # fmt: skip

_HARMLESS = frozenset((
    *_OPERATORS.first, *_OPERATORS.several, *_OPERATORS.arithmetic, "Activation", "BatchNormalization",
    "Dense", "GlobalAveragePooling1D", "InputLayer", "LayerNormalization", "Masking", "Normalization",
    "Softmax",
))  # fmt: skip
"""Layers that do not select rows. All other layers, such as user-defined layers or nested models, count as unknown.
"""

_TABLE = "Embedding"


def read(path: Path) -> Flow:
    """Raises OSError, or an exception in `WRONG_CONTENT` if the file is not a Keras archive."""
    with zipfile.ZipFile(path) as archive:
        model = json.loads(archive.read("config.json"))
    layers = model["config"]["layers"]
    calls = [*(_chained(layers) if model["class_name"] == "Sequential" else _calls(layers))]
    inputs = {
        layer["config"]["name"]: _tensor(layer["config"]["name"], 0)
        for layer in layers
        if layer["class_name"] == "InputLayer"
    }
    operations = [Operation(_kind(layer), sources, [target]) for layer, sources, target in calls]
    lookups = [
        Lookup(
            source, _kind(layer), layer["config"]["input_dim"] if _kind(layer) == _TABLE else None
        )
        for layer, sources, _ in calls
        if _kind(layer) not in _HARMLESS
        for source in sources
    ]
    return Flow(inputs, _OPERATORS.copies(operations), lookups)


def _kind(layer: Mapping[str, Any]) -> str:
    """Returns the layer's class, or "" for a class that is not from Keras."""
    return "" if layer.get("registered_name") else str(layer["class_name"])


def _tensor(layer: str, call: int) -> str:
    """Returns the name for the tensor that a call of a layer produces. All outputs of a call share one name."""
    return f"{layer}:{call}"


def _calls(
    layers: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], list[str], str]]:
    """Yields (layer, input tensors, output) for each call."""
    for layer in layers:
        for number, call in enumerate(layer["inbound_nodes"]):
            yield layer, [*_sources(call)], _tensor(layer["config"]["name"], number)


def _chained(
    layers: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], list[str], str]]:
    """Yields the same values as `_calls`, for layers that form a chain."""
    names = [_tensor(layer["config"]["name"], 0) for layer in layers]
    for layer, source, target in zip(layers[1:], names, names[1:], strict=False):
        yield layer, [source], target


def _sources(value: Any) -> Iterator[str]:
    """Yields the tensors in the arguments of a call, at any depth."""
    if isinstance(value, Mapping):
        if "keras_history" in value:
            layer, call, _ = value["keras_history"]
            yield _tensor(layer, call)
        else:
            for inner in value.values():
                yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)
