"""Converts numbers from files to a model's input, with its element type and shape, and applies the declared steps."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, Shape, Step, TensorSpec, show_shape

STEPS = ("normalise", "clip")
"""The steps that `apply` applies. Both steps compute in float32."""


def apply(rows: Array, steps: Sequence[Step]) -> Array:
    """Applies the steps normalise and clip in the declared order. Ignores other steps. rows: (n, ...)."""
    for step in steps:
        if step.name == "normalise":
            rows = normalised(rows, step.options)
        elif step.name == "clip":
            rows = np.clip(rows, step.options["low"], step.options["high"], dtype=np.float32)
    return rows


def normalised(values: Array, options: Mapping[str, Any]) -> Array:
    """Applies the step `normalise`: (values * scale - mean) / std in float32.

    values: (n, ...). mean and std: one number, or one number per entry of the last axis. An array with one axis needs
    one number. Raises a ConfigError for other lengths.
    """
    result = values.astype(np.float32, order="C")
    columns = result.shape[-1] if result.ndim > 1 else 1
    scale = np.float32(options["scale"])
    mean, std = (np.asarray(options[key], np.float32) for key in ("mean", "std"))
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, columns):
            raise ConfigError(
                f"normalise.{name} has {len(numbers)} numbers for {columns} columns: "
                "write one, or one per column"
            )
    # Whole rows are computed at once, because an inner loop over only three channels would take NumPy six times as
    # long.
    width = prod(result.shape[1:])
    rows = result.reshape(len(result), width)
    if scale != 1:
        rows *= scale
    if mean.any():
        rows -= np.tile(mean, width // len(mean))
    if (std != 1).any():
        rows /= np.tile(std, width // len(std))
    return result


def cast(rows: Array, dtype: str) -> tuple[Array, int | None]:
    """Converts rows to a different element type. Also returns the index of the first row with a value that does not fit
    the type.

    For an integer type, values must be whole numbers in the type's range. For a floating-point type, values are
    rounded, but must not overflow.
    """
    target = np.dtype(dtype)
    if rows.dtype == target:
        return rows, None
    with np.errstate(all="ignore"):
        result: Array = rows.astype(target)
    wrong = result != rows if target.kind in "iub" else np.isfinite(result) != np.isfinite(rows)
    bad = wrong.reshape(len(rows), -1).any(axis=1)
    return result, int(bad.argmax()) if bad.any() else None


def plain_label(value: object) -> object:
    """Converts a label to a plain Python value. An array of one number becomes a number, and a whole float becomes an
    int.
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def not_finite(rows: Array) -> int | None:
    """Returns the index of the first row with NaN or infinity; None without such a row. rows: (n, ...)."""
    if rows.dtype.kind != "f":
        return None
    bad = ~np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    return int(bad.argmax()) if bad.any() else None


def array_of(values: Sequence[float | int]) -> Array:
    """Returns (n,) float64, or int64 if at least one value is an int and all values are whole and fit into int64."""
    if any(isinstance(value, int) for value in values) and all(v == v // 1 for v in values):
        with suppress(OverflowError):
            return np.array([int(value) for value in values], np.int64)
    return np.asarray(values, np.float64)


def joined(parts: Sequence[Array]) -> Array:
    """Joins (n, ...) arrays side by side.

    The result contains integers if one array contains integers and the others contain only whole numbers, because
    floats would lose the last digits of large integers.
    """
    result: Array = np.concatenate(parts, axis=1)
    if result.dtype.kind != "f" or all(part.dtype.kind == "f" for part in parts):
        return result
    whole = [cast(part, "int64") for part in parts]
    if any(bad is not None for _, bad in whole):
        return result
    return np.concatenate([part for part, _ in whole], axis=1)


def row_shape(have: tuple[int, ...], spec: TensorSpec) -> tuple[int, ...] | None:
    """Returns the shape into which the input's rows of shape `have` are reshaped; None if the rows do not fit.

    A row may fit unchanged, or after sizes of 1 are added or removed. A flat row may also fit the input's fixed shape,
    e.g. 784 columns for 1x28x28. Other changes of shape, e.g. from channels last to channels first, would mix up
    values.
    """
    want = spec.shape[1:]
    same = len(have) == len(want)
    if same and all(not isinstance(w, int) or w == h for h, w in zip(have, want, strict=True)):
        return have
    fixed = tuple(w for w in want if isinstance(w, int))
    if len(fixed) != len(want) or prod(fixed) != prod(have):
        return None
    alike = [h for h in have if h != 1] == [w for w in fixed if w != 1]
    return fixed if len(have) == 1 or alike else None


def shown_shape(shape: Shape) -> str:
    """Returns the shape of one sample for messages, e.g. `[3, 224, 224]`."""
    return show_shape(shape) if shape else "one number"
