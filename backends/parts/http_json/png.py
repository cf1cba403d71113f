"""Writes pixels as lossless PNG (RFC 2083), for services that accept image files."""

import struct
import zlib

import numpy as np

from harness.types import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""Maps the number of channels to PNG's colour type: grey, grey with alpha, RGB, RGB with alpha."""

_LEVEL = 6
"""The compression level of zlib."""


def png_of(pixels: Array) -> bytes:
    """Returns a PNG file. Channels may come last or first. Raises a ValueError if the pixels are not an image."""
    check_png(pixels.dtype.name)
    image = _channels_last(pixels)
    height, width, channels = image.shape
    bits = 8 * image.itemsize
    head = struct.pack(">IIBBBBB", width, height, bits, _COLOURS[channels], 0, 0, 0)
    rows = image.astype(f">u{image.itemsize}").view(np.uint8).reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # 0 means no filter
    data = zlib.compress(filtered.tobytes(), _LEVEL)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def check_png(dtype: str) -> None:
    """Raises a ValueError if PNG cannot store values of this type."""
    if dtype not in ("uint8", "uint16"):
        raise ValueError(f"PNG stores uint8 or uint16, but the input is {dtype}: use npy or base64")


def _channels_last(pixels: Array) -> Array:
    shape = pixels.shape
    if 0 not in shape:
        if len(shape) == 2:
            return np.ascontiguousarray(pixels[:, :, None])
        if len(shape) == 3 and shape[2] in _COLOURS:
            return np.ascontiguousarray(pixels)
        if len(shape) == 3 and shape[0] in _COLOURS:
            return np.ascontiguousarray(pixels.transpose(1, 2, 0))
    raise ValueError(
        f"an image has the shape [height, width], with or without 1 to 4 channels, but the input has {[*shape]}"
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum
