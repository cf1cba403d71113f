"""Decodes sound files: WAV with the standard library, FLAC with soundfile."""

import wave
from pathlib import Path
from types import ModuleType

import numpy as np

from harness.core.extras import how_to_install
from harness.datasets.parts.sources import unreadable
from harness.errors import ConfigError, PluginUnavailable
from harness.types import Array

_PCM_SCALE = {1: 1 << 7, 2: 1 << 15, 3: 1 << 23, 4: 1 << 31}
"""Bytes of a value -> full scale."""


def checked_frames(path: Path, rate: int) -> int:
    """The number of samples in the file. A ConfigError for another rate, two channels or no sound."""
    channels, actual, frames = _flac_header(path) if path.suffix == ".flac" else _wav_header(path)
    if actual != rate:
        raise ConfigError(
            f"{path}: {actual:,} Hz, the audio step says {rate:,}: convert the file: resampling "
            "here would change the scores"
        )
    if channels != 1:
        raise ConfigError(f"{path}: {channels} channels: convert it to one")
    if not frames:
        raise ConfigError(f"{path}: it holds no sound")
    return frames


def decode(path: Path) -> Array:
    """(frames,) float32 in [-1, 1]."""
    return _flac(path) if path.suffix == ".flac" else _wav(path)


def _wav_header(path: Path) -> tuple[int, int, int]:
    try:
        with wave.open(str(path), "rb") as file:
            return file.getnchannels(), file.getframerate(), file.getnframes()
    except (OSError, EOFError, wave.Error) as e:
        raise unreadable(path, _named(e, "not PCM in a WAV file")) from e


def _wav(path: Path) -> Array:
    """PCM with 8 (unsigned), 16, 24 or 32 bits."""
    try:
        with wave.open(str(path), "rb") as file:
            width, frames = file.getsampwidth(), file.getnframes()
            content = file.readframes(frames)
    except (OSError, EOFError, wave.Error) as e:
        raise unreadable(path, _named(e, "not PCM in a WAV file")) from e
    if width not in _PCM_SCALE or len(content) != frames * width:
        raise ConfigError(f"{path} is cut off: {len(content)} of {frames * width} bytes")
    if width == 1:
        values = np.frombuffer(content, np.uint8).astype(np.int32) - 128
    elif width == 3:  # the upper three bytes of four
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


def _named(error: Exception, otherwise: str) -> Exception:
    """The error, or `otherwise` where it has no text, as EOFError."""
    return error if str(error) else ValueError(otherwise)
