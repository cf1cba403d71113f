"""Lists NumPy's names of number types. A backend reports its precision only by these names."""

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
"""Maps ONNX Runtime types that become NumPy arrays to NumPy's name. Maps, sequences and bfloat16 do not."""

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
"""Maps spellings of frameworks and users to NumPy's name."""

_WEIGHT_TYPES = frozenset(BITS) - {"tf32", "int64", "int32", "uint64", "uint32", "bool"}
"""Number types of weights. Tensors of other types are indices, shapes or masks."""

_SHARE = 0.25
"""A number type is listed in the precision if at least this share of the weights has it. It is low, because a quantised
MiniLM may keep half of its weights (the embeddings) in float32.
"""


def number_type(name: str) -> str:
    """Returns NumPy's name for `name` in any spelling. Returns an unknown name in lower case."""
    plain = name.strip().lower().removeprefix("torch.")
    return _SPELLINGS.get(plain, plain)


def precision(
    weights: Iterable[tuple[Sequence[int], str]],
    inputs: Iterable[str],
    computes_in: str | None = None,
) -> str:
    """Returns the number type in which a model computes. It is the narrowest type that at least a quarter of its
    weights have.

    weights: shape and number type of each constant in the model file. inputs: the number types of the model's inputs,
    used for a model without weights. computes_in: the type to which the framework converts floating-point weights, or
    None if it does not convert them.
    """
    elements: Counter[str] = Counter()
    for shape, kind in weights:
        # Biases and scales have wider types than their weights.
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
