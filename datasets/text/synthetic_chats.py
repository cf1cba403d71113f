"""Makes chats with images, sound and text of given sizes, to measure the speed (not accuracy) of multimodal models."""

import base64
import hashlib
import io
import json
import re
import struct
import wave
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.datasets.parts.prompts.options import Options, drawn
from harness.datasets.parts.prompts.tokens import MEMORY_LIMIT_BYTES, input_of, summary
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import refuse_data_dir
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup

COUNT, MOST = 256, 100_000
TEXT_WORDS, OUTPUT_TOKENS = 32, 128

MOST_IMAGES, MOST_PIXELS, MOST_SECONDS = 16, 8192, 600.0
SQUARE_PIXELS = 16
"""Edge length of the single-coloured squares in an image, in pixels. The squares keep the file small, although a server
must decode every pixel.
"""

RATE_HZ = 16_000
_TONE_S = 0.25

_WORDS = (
    *("a", "the", "of", "and", "to", "in", "on", "with", "from", "by", "red", "blue", "green"),
    *("large", "small", "old", "new", "house", "tree", "river", "road", "city", "child", "dog"),
    *("table", "light", "water", "hand", "word", "year", "name", "line", "side", "world", "week"),
    *("reads", "sees", "takes", "gives", "finds", "counts", "draws", "turns", "left", "right"),
)
_TEXT, _IMAGE, _SOUND = 1, 2, 3
"""Keys of independent streams of random numbers."""


class SyntheticChatsDataset(LoadedRows):
    """Chats with one user message that contains images (PNG), sound (WAV, 16 kHz, mono) and text. All samples are
    different.

    --dataset-option:
    images   number of images (1; 0 if only `seconds` is given)
    size     width and height of an image in pixels, WIDTHxHEIGHT (512x512)
    seconds  length of the sound; no sound if omitted
    words    words of the text: a number, LOW:HIGH, or a lognormal distribution (32)
    output   the maximum number of tokens in the answer, like `words` (128)
    count    number of chats (256)
    """

    synthetic = True
    options = ("images", "size", "seconds", "words", "output", "count")

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, "synthetic-chats")
        self._input = input_of(setup, "synthetic-chats")
        options = Options(setup.options)
        count = options.whole("count", COUNT, MOST)
        self._seed = setup.seed
        self._seconds = _seconds(options.text("seconds", "0"))
        usual = "0" if self._seconds else "1"
        self._images = _images(options.text("images", usual))
        self._width, self._height = _size(options.text("size", "512x512"))
        self._words, self._outputs = (
            drawn(options.lengths(name, default), count, setup.seed, name)
            for name, default in (("words", TEXT_WORDS), ("output", OUTPUT_TOKENS))
        )
        fits = MEMORY_LIMIT_BYTES // len(self._request(0))
        self.performance_count = max(1, min(count, fits))
        super().__init__(count)

    def __len__(self) -> int:
        return len(self._words)

    def load(self, indices: Sequence[int]) -> None:
        held = np.empty(len(indices), object)
        for row, index in enumerate(indices):
            held[row] = self._request(index)
        self.hold(indices, {self._input: held})

    def _random(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *stream])

    def _request(self, index: int) -> bytes:
        parts: list[dict[str, Any]] = []
        for number in range(self._images):
            file = png(self._width, self._height, self._random(_IMAGE, index, number))
            url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        if self._seconds:
            sound = wav(self._seconds, self._random(_SOUND, index))
            data = {"data": base64.b64encode(sound).decode(), "format": "wav"}
            parts.append({"type": "input_audio", "input_audio": data})
        words = self._random(_TEXT, index).choice(_WORDS, int(self._words[index])).tolist()
        parts.append({"type": "text", "text": " ".join(words)})
        chat = {
            "max_tokens": int(self._outputs[index]),
            "messages": [{"role": "user", "content": parts}],
        }
        return json.dumps(chat, separators=(",", ":")).encode()

    def label(self, index: int) -> None:
        return None

    def describe(self) -> Mapping[str, object]:
        about = {
            "images": self._images,
            **({"size": f"{self._width}x{self._height}"} if self._images else {}),
            "seconds": self._seconds,
            "words": summary(self._words),
            "max_tokens": summary(self._outputs),
        }
        content = (self._seed, about, self._words.tolist(), self._outputs.tolist())
        return {
            "name": "synthetic-chats",
            "count": len(self),
            "source": f"made here, seed {self._seed}",
            "prompts": "messages",
            **about,
            "digest": hashlib.sha256(repr(content).encode()).hexdigest(),
        }


def png(width: int, height: int, random: np.random.Generator) -> bytes:
    """Returns a PNG file with squares in random colours."""
    across, down = -(-width // SQUARE_PIXELS), -(-height // SQUARE_PIXELS)
    squares = random.integers(0, 256, (down, across, 3), np.uint8)
    pixels = squares.repeat(SQUARE_PIXELS, 0).repeat(SQUARE_PIXELS, 1)[:height, :width]
    unfiltered = np.zeros((height, 1), np.uint8)
    rows = np.concatenate([unfiltered, pixels.reshape(height, -1)], axis=1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 6)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def wav(seconds: float, random: np.random.Generator) -> bytes:
    """Returns a WAV file with random tones, one after another."""
    count = round(seconds * RATE_HZ)
    pitches_hz = random.uniform(100, 1000, int(seconds / _TONE_S) + 1)
    pitch_hz = pitches_hz.repeat(round(_TONE_S * RATE_HZ))[:count]
    wave_form = np.sin(2 * np.pi * np.cumsum(pitch_hz) / RATE_HZ)
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE_HZ)
        sound.writeframes((wave_form * 8000).astype("<i2").tobytes())
    return file.getvalue()


def _images(text: str) -> int:
    if not re.fullmatch("[0-9]{1,2}", text) or int(text) > MOST_IMAGES:
        raise _problem("images", text, f"a number from 0 to {MOST_IMAGES}")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch("([0-9]{1,4})x([0-9]{1,4})", text)
    if match is None or not all(1 <= int(edge) <= MOST_PIXELS for edge in match.groups()):
        raise _problem("size", text, f"WIDTHxHEIGHT in pixels, up to {MOST_PIXELS}x{MOST_PIXELS}")
    return int(match[1]), int(match[2])


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or float(text) > MOST_SECONDS:
        raise _problem("seconds", text, f"a number of seconds up to {MOST_SECONDS:g}")
    return float(text)


def _problem(name: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"--dataset-option {name}={text[:60]} is not {expected}")


_: type[Dataset] = SyntheticChatsDataset
