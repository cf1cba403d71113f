"""Decodes image files with any of four decoders, which return the same pixels for every image format that defines its
pixels exactly.

Every decoder returns (height, width, channels) uint8, with the channels in the requested order. All decoders ignore the
EXIF orientation; OpenCV needs a flag to ignore the orientation. If the step `decode` requests grey images, the decoders
return the luma of a JPEG. An alpha channel is dropped.

Files are not trusted, so the header is read first, and an image that is too large is refused before it is decoded. A
truncated JPEG is refused for every decoder, because OpenCV would fill the missing part with grey.

A JPEG has no checksum. If bytes in the middle of the file were overwritten, libjpeg only prints a warning and fills the
gap. Pillow, OpenCV and TensorFlow hide the warning. simplejpeg raises the warning as an error, so `damage` uses
simplejpeg.
"""

import importlib.util
import io
import struct
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.types import Array

MAX_PIXELS = 89_478_485
"""An image with more pixels (width x height) is refused. Pillow has the same limit; an RGBA image of this size takes a
third of a GiB.
"""

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
"""Formats that Pillow reads without starting a separate program."""

Decoder = Callable[[bytes], Array]

_PACKAGES = {
    "pillow": ("pillow",),
    "opencv": ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless"),
    "simplejpeg": ("simplejpeg",),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
_EXTRAS = {"opencv": "images", "simplejpeg": "images", "tensorflow": "tensorflow"}


class Header(NamedTuple):
    """An image's size in pixels."""

    width: int
    height: int
    scan: int
    """Offset of the first scan in a JPEG; 0 for other formats."""


def library_version(library: str) -> str:
    """Returns the name and version of a library's package without importing it. library: a key of _PACKAGES."""
    for package in _PACKAGES[library]:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    raise PluginUnavailable(
        f"{library} is not installed, but the model's preprocessing steps need it: "
        f"{how_to_install(_EXTRAS[library])}"
    )


def make_decoder(options: Mapping[str, Any]) -> Decoder:
    """Returns a decoder, which raises a ValueError with the reason. options: options of the step `decode`."""
    name, colour, fast = options["decoder"], options["colour"], options["dct"] == "fast"
    library_version(name)
    decode = _MAKERS[name](colour, fast)

    def checked(data: bytes) -> Array:
        check_file(data)
        try:
            return decode(data)
        except (MemoryError, ValueError):
            raise
        except Exception as e:  # catches all, because Pillow raises six classes for broken files
            raise ValueError(f"{name} cannot decode it: {' '.join(str(e).split())}") from e

    return checked


def check_file(data: bytes) -> Header:
    """Returns the header. Raises a ValueError if the header shows that the image is too large or truncated."""
    header = _jpeg_header(data) if data[:2] == b"\xff\xd8" else _other_header(data)
    if header.width * header.height > MAX_PIXELS:
        raise ValueError(
            f"{header.width} x {header.height} pixels are more than {MAX_PIXELS:,} and could fill "
            "the memory: make the image smaller"
        )
    if header.scan and data.rfind(b"\xff\xd9", header.scan) < 0:
        raise ValueError("the JPEG is truncated: its end is missing")
    return header


def can_see_damage() -> bool:
    """Returns whether simplejpeg is installed. No other library reports libjpeg's warnings."""
    return importlib.util.find_spec("simplejpeg") is not None


def damage(data: bytes) -> str:
    """Returns libjpeg's warning about a JPEG; '' if libjpeg does not warn, or for other formats.

    Only the brightness is decoded. Wrong bytes that happen to be valid JPEG data are not detected.
    """
    if data[:2] != b"\xff\xd8":
        return ""
    import simplejpeg

    try:
        _, _, space, _ = simplejpeg.decode_jpeg_header(data)
        simplejpeg.decode_jpeg(data, "CMYK" if space in ("CMYK", "YCCK") else "GRAY")
    except ValueError as e:
        return f"the JPEG is damaged: {' '.join(str(e).split())}"
    return ""


def _jpeg_header(data: bytes) -> Header:
    """Reads the segments (ITU-T T.81, B.1.1.4) before the scan. The function takes a twentieth of the time that Pillow
    would need.
    """
    at, size = 2, (0, 0)
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # skips a fill byte before the marker
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            size = struct.unpack_from(">HH", data, at + 5)
        elif marker == 0xDA and all(size):
            return Header(size[1], size[0], at)
        at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
    raise ValueError("the JPEG is truncated or broken: it has no image data")


def _other_header(data: bytes) -> Header:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.mode[0] in "IF":  # refused, because Pillow would clip values above 255
                raise ValueError("it has more than 8 bits per channel: convert it to 8 bits")
            header = Header(*image.size, 0)
            # This call checks every chunk of a PNG, because OpenCV would return an incomplete image.
            image.verify()
    except UnidentifiedImageError:
        raise ValueError(f"it is not an image in one of the formats {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
        raise ValueError(f"it could fill the memory: {e}") from None
    except (MemoryError, ValueError):
        raise
    except Exception as e:  # catches all, because Pillow raises many classes
        raise ValueError(f"its header is broken: {' '.join(str(e).split())}") from e
    return header


def _pillow(colour: str, _fast: bool) -> Decoder:
    from PIL import Image

    def decode(data: bytes) -> Array:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if colour == "grey":
                image.draft("L", None)  # draft selects the luma of a JPEG, as the other decoders do
                return np.asarray(image.convert("L"))[..., np.newaxis]
            pixels = np.asarray(image.convert("RGB"))
        return np.ascontiguousarray(pixels[..., ::-1]) if colour == "bgr" else pixels

    return decode


def _opencv(colour: str, _fast: bool) -> Decoder:
    import cv2

    # Images are already decoded in parallel, and OpenCV's threads would keep running after loading.
    cv2.setNumThreads(1)
    flags = {
        "rgb": cv2.IMREAD_COLOR_RGB,
        "bgr": cv2.IMREAD_COLOR_BGR,
        "grey": cv2.IMREAD_GRAYSCALE,
    }[colour] | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(data: bytes) -> Array:
        pixels: Array | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if pixels is None:
            raise ValueError("OpenCV cannot decode it")
        return pixels.reshape(*pixels.shape[:2], -1)

    return decode


def _simplejpeg(colour: str, fast: bool) -> Decoder:
    import simplejpeg

    space = {"rgb": "RGB", "bgr": "BGR", "grey": "GRAY"}[colour]

    def decode(data: bytes) -> Array:
        if data[:2] != b"\xff\xd8":
            raise ValueError("it is not a JPEG, the only format that simplejpeg decodes")
        pixels: Array = simplejpeg.decode_jpeg(data, space, fastdct=fast, fastupsample=fast)
        return pixels

    return decode


def _tensorflow(colour: str, fast: bool) -> Decoder:
    import tensorflow as tf

    channels = 1 if colour == "grey" else 3
    dct = "INTEGER_FAST" if fast else "INTEGER_ACCURATE"

    def decode(data: bytes) -> Array:
        if data[:2] == b"\xff\xd8":
            pixels = tf.io.decode_jpeg(data, channels, dct_method=dct).numpy()
        else:
            pixels = tf.io.decode_image(data, channels, expand_animations=False).numpy()
        return np.ascontiguousarray(pixels[..., ::-1]) if colour == "bgr" else pixels

    return decode


_MAKERS: Mapping[str, Callable[[str, bool], Decoder]] = {
    "pillow": _pillow,
    "opencv": _opencv,
    "simplejpeg": _simplejpeg,
    "tensorflow": _tensorflow,
}
