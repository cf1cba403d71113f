"""Applies the steps of an image: decode, resize, crop, normalise, layout and conversion to the input's type."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.datasets.parts import numbers
from harness.datasets.parts.image.decode import library_version, make_decoder
from harness.errors import ConfigError
from harness.types import Array, Step, TensorSpec

Transform = Callable[[Array], Array]

_RANK = {"decode": 0, "resize": 1, "crop": 1, "normalise": 2, "layout": 3}


class ImageSteps:
    """Converts the bytes of an image file to one row of the input. Several threads may call the same object at the same
    time.

    The constructor raises a ConfigError that lists all problems of the steps. A call that fails raises a ValueError
    with the reason.
    """

    def __init__(self, spec: TensorSpec, steps: Sequence[Step]) -> None:
        """steps: the declared steps; () means only `decode`."""
        steps = steps if steps and steps[0].name == "decode" else (DECODE, *steps)
        problems = [f"input {spec.name!r}: {text}" for text in _problems(steps)]
        if problems:
            raise ConfigError("\n".join(problems))
        self.versions = _versions(steps)
        self._decode = make_decoder(steps[0].options)
        self._transforms = [_MAKERS[step.name](step.options) for step in steps[1:]]
        self._cast = _cast_to(np.dtype(spec.dtype))

    def __call__(self, data: bytes) -> Array:
        return self.of_pixels(self._decode(data))

    def of_pixels(self, pixels: Array) -> Array:
        """Applies the steps after `decode`. pixels: (height, width, channels) uint8."""
        for transform in self._transforms:
            pixels = transform(pixels)
        return self._cast(pixels)


DECODE = Step("decode", {"decoder": "pillow", "colour": "rgb", "dct": "accurate"})


def _problems(steps: Sequence[Step]) -> list[str]:
    unknown = [s.name for s in steps if s.name not in _RANK]
    if unknown:
        return [f"the step {name!r} is not for images" for name in unknown]
    problems: list[str] = []
    names = [s.name for s in steps]
    if [_RANK[n] for n in names] != sorted(_RANK[n] for n in names):
        problems.append(
            f"the steps {', '.join(names)} are in the wrong order: write decode first, then resize and crop, "
            "normalise, layout"
        )
    problems += [
        f"the step {name!r} appears {names.count(name)} times: keep one"
        for name in ("decode", "resize", "normalise", "layout")
        if names.count(name) > 1
    ]
    channels = 1 if steps[0].options["colour"] == "grey" else 3
    problems += [
        f"normalise has {len(step.options[key])} values of {key} for {channels} channels"
        for step in steps
        if step.name == "normalise"
        for key in ("mean", "std")
        if len(step.options[key]) not in (1, channels)
    ]
    return problems


def _versions(steps: Sequence[Step]) -> dict[str, str]:
    """Returns the versions of all libraries that can change the pixels, by library."""
    libraries = {
        s.options[key] for s in steps for key in ("decoder", "library") if key in s.options
    }
    return {"numpy": np.__version__, **{name: library_version(name) for name in sorted(libraries)}}


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Returns a size as (height, width)."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _resize(options: Mapping[str, Any]) -> Transform:
    keep, fill, size = options["keep"], options["fill"], _pair(options["size"])
    library_version(options["library"])
    scale = _LIBRARIES[options["library"]](options["method"])

    def resize(pixels: Array) -> Array:
        height, width = _target(pixels.shape[0], pixels.shape[1], size, keep)
        if (height, width) != pixels.shape[:2]:
            pixels = scale(pixels, height, width)
        return _padded(pixels, size, fill) if keep == "pad" else pixels

    return resize


def _target(height: int, width: int, size: tuple[int, int], keep: str) -> tuple[int, int]:
    """Returns the new size. The scaled side is truncated for `shorter`, as in MLPerf, and rounded for `pad`."""
    if keep == "none":
        return size
    if keep == "shorter":
        if height > width:
            return size[1] * height // width, size[1]
        return size[0], size[0] * width // height
    ratio = min(size[0] / height, size[1] / width)
    return max(1, round(height * ratio)), max(1, round(width * ratio))


def frame(height: int, width: int, size: Sequence[int] | int) -> tuple[float, float, float, float]:
    """Returns the position of an image after `keep: pad` as x, y, width and height, in fractions of the padded image."""
    padded = _pair(size)
    inside = _target(height, width, padded, "pad")
    top, left = (padded[0] - inside[0]) // 2, (padded[1] - inside[1]) // 2
    return left / padded[1], top / padded[0], inside[1] / padded[1], inside[0] / padded[0]


def _padded(pixels: Array, size: tuple[int, int], fill: int) -> Array:
    """Centres the image. If the padding is odd, the larger part is below or to the right."""
    height, width, channels = pixels.shape
    canvas = np.full((*size, channels), fill, pixels.dtype)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    canvas[top : top + height, left : left + width] = pixels
    return canvas


Scale = Callable[[Array, int, int], Array]


def _pillow(method: str) -> Scale:
    """Scales with Pillow, which widens the filter for antialiasing when an image shrinks. OpenCV widens the filter only
    for `area`.
    """
    from PIL import Image

    resample = {
        "nearest": Image.Resampling.NEAREST,
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "area": Image.Resampling.BOX,
        "lanczos": Image.Resampling.LANCZOS,
    }[method]

    def scale(pixels: Array, height: int, width: int) -> Array:
        grey = pixels.shape[2] == 1
        image = Image.fromarray(pixels[..., 0] if grey else pixels)
        scaled = np.asarray(image.resize((width, height), resample))
        return scaled[..., np.newaxis] if grey else scaled

    return scale


def _opencv(method: str) -> Scale:
    import cv2

    # Images are already resized in parallel, and OpenCV's threads would keep running after loading.
    cv2.setNumThreads(1)
    interpolation = {
        "nearest": cv2.INTER_NEAREST,
        "bilinear": cv2.INTER_LINEAR,
        "bicubic": cv2.INTER_CUBIC,
        "area": cv2.INTER_AREA,
        "lanczos": cv2.INTER_LANCZOS4,
    }[method]

    def scale(pixels: Array, height: int, width: int) -> Array:
        scaled: Array = cv2.resize(pixels, (width, height), interpolation=interpolation)
        return scaled.reshape(height, width, -1)

    return scale


def _tensorflow(method: str) -> Scale:
    """Scales with TensorFlow's default method, which does not antialias. Returns float32 except for `nearest`."""
    import tensorflow as tf

    name = "lanczos3" if method == "lanczos" else method

    def scale(pixels: Array, height: int, width: int) -> Array:
        scaled: Array = tf.image.resize(pixels, (height, width), name).numpy()
        return scaled

    return scale


_LIBRARIES = {"pillow": _pillow, "opencv": _opencv, "tensorflow": _tensorflow}


def _crop(options: Mapping[str, Any]) -> Transform:
    """Crops the centre. Truncates a size as MLPerf's reference does, and a fraction as tf.image.central_crop does."""
    size, fraction = options["size"], options["fraction"]

    def crop(pixels: Array) -> Array:
        have = pixels.shape[:2]
        if fraction is not None:
            starts = [int((side - side * fraction) / 2) for side in have]
            sides = tuple(side - 2 * start for side, start in zip(have, starts, strict=True))
        else:
            sides = _pair(size)
            starts = [(side - part) // 2 for side, part in zip(have, sides, strict=True)]
        if min(starts) < 0:
            raise ValueError(
                f"{have[0]} x {have[1]} pixels are left (height x width), too few to crop "
                f"{sides[0]} x {sides[1]}: resize first"
            )
        top, left = starts
        return pixels[top : top + sides[0], left : left + sides[1]]

    return crop


def _layout(options: Mapping[str, Any]) -> Transform:
    return (lambda x: x.transpose(2, 0, 1)) if options["order"] == "nchw" else (lambda x: x)


_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], Transform]] = {
    "resize": _resize,
    "crop": _crop,
    "normalise": lambda options: lambda pixels: numbers.normalised(pixels, options),
    "layout": _layout,
}


def _cast_to(dtype: "np.dtype[Any]") -> Transform:
    """Rounds and clips floats for an integer type. Leaves other conversions to NumPy."""

    def cast(pixels: Array) -> Array:
        if pixels.dtype.kind == "f" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            pixels = np.clip(np.rint(pixels), limits.min, limits.max)
        return pixels.astype(dtype, copy=False)

    return cast
