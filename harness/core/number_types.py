"""Lists NumPy's names for number types. Backends report their precision only with these names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

BITS = {
    "float64": 64,
    "float32": 32,
    "tf32": 19,
    "bfloat16": 16,
    "float16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "uint4": 4,
    "bool": 1,
}
"""Maps a name to the size of one number in bits."""

ORT_ARRAYS = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(uint32)": "uint32",
    "tensor(int32)": "int32",
    "tensor(uint64)": "uint64",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
    "tensor(string)": "string",
}
"""Maps ONNX Runtime types that become NumPy arrays to NumPy's names. Maps, sequences and bfloat16 do not become NumPy
arrays.
"""

_SPELLINGS = {
    f"{short}{bits}": f"{kind}{bits}"
    for short, kind in {"f": "float", "fp": "float", "i": "int", "u": "uint"}.items()
    for bits in (4, 8, 16, 32, 64)
    if f"{kind}{bits}" in BITS
} | {
    "double": "float64",
    "float": "float32",
    "single": "float32",
    "half": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "qint8": "int8",
    "quint8": "uint8",
    "boolean": "bool",
}
"""Maps other spellings, used by frameworks and users, to NumPy's names."""

_WEIGHT_TYPES = frozenset(BITS) - {"tf32", "int64", "int32", "uint64", "uint32", "bool"}
"""Number types that weights may have. Tensors of all other types are indices, shapes or masks."""

_SHARE = 0.25
"""The precision of a model includes a number type if at least this share of the weights has this type. The share is
low, because a quantised MiniLM may keep half of its weights (the embeddings) in float32.
"""


def number_type(name: str) -> str:
    """Returns NumPy's name for a number type in any spelling; returns an unknown name in lower case."""
    plain = name.strip().lower().removeprefix("torch.")
    return _SPELLINGS.get(plain, plain)


def precision(
    weights: Iterable[tuple[Sequence[int], str]],
    inputs: Iterable[str],
    computes_in: str | None = None,
) -> str:
    """Returns the number type in which a model computes: the narrowest type that at least a quarter of the weights
    have.

    weights: shape and number type of each constant in the model file. inputs: number types of the model's inputs, used
    if the model has no weights. computes_in: type to which the framework converts floating-point weights; None if the
    framework does not convert weights.
    """
    elements: Counter[str] = Counter()
    for shape, kind in weights:
        # Biases and scales are skipped, because their types are wider than the types of the weights.
        if sum(size != 1 for size in shape) > 1:
            elements[number_type(kind)] += prod(shape)
    counts = {kind: count for kind, count in elements.items() if kind in _WEIGHT_TYPES}
    common = [kind for kind, count in counts.items() if count >= _SHARE * sum(counts.values())]
    if common:
        narrowest = min(common, key=lambda kind: (BITS[kind], kind))
    else:
        kinds = sorted({number_type(kind) for kind in inputs})
        narrowest = next((kind for kind in kinds if "float" in kind), kinds[0] if kinds else "none")
    return number_type(computes_in) if computes_in and "float" in narrowest else narrowest
