"""Precisions have the same names everywhere, and one rule finds a model's precision."""

import numpy as np
import pytest

from harness.core.number_types import BITS, number_type, precision


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("f32", "float32"), ("fp32", "float32"), ("Float32", "float32"), ("torch.bfloat16", "bfloat16"), ("half", "float16"), ("i8", "int8"), ("boolean", "bool"), ("nf4", "nf4")],
)  # fmt: skip
def test_every_spelling_maps_to_the_numpy_name(spelled: str, name: str) -> None:
    assert number_type(spelled) == name
    assert number_type(name) == name


def test_shared_names_and_sizes_match_numpy() -> None:
    foreign = {"tf32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"}
    for name in set(BITS) - foreign - {"bool"}:
        assert (np.dtype(name).name, np.dtype(name).itemsize * 8) == (name, BITS[name])


WHOLE = ((100, 100), "float32")


@pytest.mark.parametrize(
    ("weights", "inputs", "computes_in", "found"),
    [
        ([WHOLE], ["float32"], None, "float32"),
        # The weights of MiniLM, for which the old rule returned int64.
        ([WHOLE], ["int64"], None, "float32"),
        # A QDQ file, for which the old rule returned float32.
        ([((100, 100), "int8"), ((100,), "float32")], ["float32"], None, "int8"),
        # The embeddings of this model remain float32.
        ([((100, 100), "i8"), WHOLE], ["int64"], None, "int8"),
        # The int8 table is too small to decide the type of the model.
        ([((10, 10), "uint8"), WHOLE], ["float32"], None, "float32"),
        # Numbers of type int64 may be indices, so they do not decide the precision.
        ([((999, 999), "int64"), WHOLE], ["float32"], None, "float32"),
        # An OpenVINO IR whose file stores compressed weights.
        ([((100, 100), "f16")], ["float32"], "f32", "float32"),
        ([((100, 100), "i8")], ["float32"], "f32", "int8"),
        ([WHOLE], ["float32"], "bf16", "bfloat16"),
        ([], ["int64", "float32"], None, "float32"),
        ([], ["int64"], None, "int64"),
        ([], ["float32"], "torch.bfloat16", "bfloat16"),
        ([], [], None, "none"),
    ],
)
def test_the_weights_decide_the_precision(
    weights: list[tuple[tuple[int, ...], str]],
    inputs: list[str],
    computes_in: str | None,
    found: str,
) -> None:
    assert precision(weights, inputs, computes_in) == found
