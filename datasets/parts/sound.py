"""Decodes sound files: WAV with PCM directly, and FLAC through soundfile."""

import os
import struct
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from harness.core.extras import how_to_install
from harness.datasets.parts.sources import unreadable
from harness.errors import ConfigError, PluginUnavailable
from harness.types import Array

_PCM_SCALE = {1: 1 << 7, 2: 1 << 15, 3: 1 << 23, 4: 1 << 31}
"""Maps the number of bytes per value to the full-scale value."""

_PCM, _EXTENSIBLE = 1, 0xFFFE
_FORMATS = {2: "ADPCM", 3: "floats", 6: "A-law", 7: "mu-law", 0x55: "MP3"}
"""Maps the tag of an unsupported format to the format's name. Source: mmreg.h of the Windows SDK."""


def checked_frames(path: Path, rate: int) -> int:
    """Returns the number of audio samples. Raises a ConfigError if the file has a different rate, several channels or
    no sound.
    """
    channels, actual, frames = (
        _flac_header(path) if path.suffix.lower() == ".flac" else _wav_header(path)
    )
    if actual != rate:
        raise ConfigError(
            f"{path} has a sampling rate of {actual:,} Hz, but the audio step expects {rate:,} Hz: convert the file, "
            "because resampling here would change the scores"
        )
    if channels != 1:
        raise ConfigError(f"{path} has {channels} channels: convert it to one channel")
    if not frames:
        raise ConfigError(f"{path} has no audio samples")
    return frames


def decode(path: Path) -> Array:
    """Decodes a file to (frames,) float32 in [-1, 1]."""
    return _flac(path) if path.suffix.lower() == ".flac" else _wav(path)


class _Wav(NamedTuple):
    """The format of a WAV file, and the position of its values."""

    channels: int
    rate: int
    width: int
    """Number of bytes per value."""
    start: int
    """Offset of the values in the file."""
    size: int
    """Total size of the values in bytes, according to the header."""

    @property
    def frames(self) -> int:
        return self.size // (self.width * self.channels)


def _wav_header(path: Path) -> tuple[int, int, int]:
    about = _read_wav_header(path)
    return about.channels, about.rate, about.frames


def _read_wav_header(path: Path) -> _Wav:
    """Reads the header. Raises a ConfigError if the file is not WAV with PCM (plain or WAVE_FORMAT_EXTENSIBLE)."""
    try:
        with path.open("rb") as file:
            riff, _, wave = struct.unpack("<4sI4s", file.read(12))
            if (riff, wave) != (b"RIFF", b"WAVE"):
                raise ValueError("it is not a WAV file")
            form = b""
            while True:
                name, size = struct.unpack("<4sI", file.read(8))
                if name == b"data":
                    return _format(form, file.tell(), size)
                if name == b"fmt ":
                    form = file.read(size)
                    file.seek(size % 2, os.SEEK_CUR)
                else:
                    file.seek(size + size % 2, os.SEEK_CUR)
    except (OSError, ValueError) as e:
        raise unreadable(path, e) from e
    except struct.error as e:
        raise unreadable(path, ValueError("not PCM in a WAV file")) from e


def _format(form: bytes, start: int, size: int) -> _Wav:
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE:
        # The sub-format's GUID begins with the tag.
        (tag,) = struct.unpack_from("<H", form, 24)
    if tag != _PCM:
        name = _FORMATS.get(tag, f"of format {tag}")
        raise ValueError(
            f"its values are {name} with {bits} bits: convert it to 16-bit PCM, e.g. with ffmpeg -c:a pcm_s16le"
        )
    width = (bits + 7) // 8
    if width not in _PCM_SCALE or not channels:
        raise ValueError(
            f"{bits} bits and {channels} channels: only 8, 16, 24 and 32 bits are supported"
        )
    return _Wav(channels, rate, width, start, size)


def _wav(path: Path) -> Array:
    """Reads PCM with 8 (unsigned), 16, 24 or 32 bits."""
    about = _read_wav_header(path)
    width, frames = about.width, about.frames
    try:
        with path.open("rb") as file:
            file.seek(about.start)
            content = file.read(frames * width)
    except OSError as e:
        raise unreadable(path, e) from e
    if len(content) != frames * width:
        raise ConfigError(f"{path} is truncated: it has {len(content)} of {frames * width} bytes")
    if width == 1:
        values = np.frombuffer(content, np.uint8).astype(np.int32) - 128
    elif width == 3:  # 24-bit values become the upper three bytes of an int32
        wide = np.zeros((frames, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(frames, 3)
        values = wide.view("<i4")[:, 0] >> 8
    else:
        values = np.frombuffer(content, f"<i{width}")
    return values.astype(np.float32) / np.float32(_PCM_SCALE[width])


def _flac_header(path: Path) -> tuple[int, int, int]:
    soundfile = _soundfile(path)
    try:
        about = soundfile.info(str(path))
    except (OSError, RuntimeError) as e:
        raise unreadable(path, e) from e
    return about.channels, about.samplerate, about.frames


def _flac(path: Path) -> Array:
    soundfile = _soundfile(path)
    try:
        samples: Array = soundfile.read(str(path), dtype="float32")[0]
    except (OSError, RuntimeError) as e:
        raise unreadable(path, e) from e
    return samples


def _soundfile(path: Path) -> ModuleType:
    try:
        import soundfile
    except ModuleNotFoundError:
        raise PluginUnavailable(
            f"{path} is FLAC, which needs the module 'soundfile': "
            f"{how_to_install('audio')}, or convert the files to WAV"
        ) from None
    module: ModuleType = soundfile
    return module
