"""Image files made from scikit-learn's two photographs, for tests that need images."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from harness.models.steps.steps import PREPROCESS
from harness.types import Step, TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def photographs() -> tuple[Array, ...]:
    """Returns a temple and a flower, each 427 x 640 x 3 uint8."""
    return tuple(load_sample_images().images)


def cut(number: int, height: int, width: int) -> Array:
    """Returns a part of a photograph; equal numbers give the same part, and different numbers give different parts."""
    picture = photographs()[number % 2]
    top = 37 * number % (picture.shape[0] - height + 1)
    left = 53 * number % (picture.shape[1] - width + 1)
    return picture[top : top + height, left : left + width]


def encode(pixels: Array, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def write(path: Path, number: int, height: int = 60, width: int = 80) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "PNG" if path.suffix == ".png" else "JPEG"
    path.write_bytes(encode(cut(number, height, width), kind))
    return path


def step(name: str, **options: Any) -> Step:
    """Returns a step with the manifest's defaults."""
    return Step(name, PREPROCESS[name](**options).model_dump())


def image_spec(*shape: int | str, dtype: str = "float32", name: str = "image") -> TensorSpec:
    return TensorSpec(name, dtype, ("batch", *shape))
