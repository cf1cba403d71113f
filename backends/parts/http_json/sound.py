"""Writes sound as a 16-bit PCM WAV file, for services that accept speech files."""

import struct

import numpy as np

from harness.types import Array

RATE_HZ = 16_000
"""The default sampling rate, usual for speech."""

_SCALE = 1 << 15


def wav_of(sound: Array, rate_hz: int = RATE_HZ) -> bytes:
    """Returns a WAV file with one channel. sound: floats in [-1, 1]. Raises a ValueError if the array is not a single
    channel.
    """
    if sound.dtype.kind != "f" or sum(size > 1 for size in sound.shape) > 1:
        raise ValueError(
            f"audio is one row of floats, but the input is {sound.dtype} of shape {[*sound.shape]}"
        )
    scaled = np.rint(sound.reshape(-1).astype(np.float64) * _SCALE)
    data = scaled.clip(-_SCALE, _SCALE - 1).astype("<i2").tobytes()
    about = struct.pack("<HHIIHH", 1, 1, rate_hz, 2 * rate_hz, 2, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(about)) + about
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
