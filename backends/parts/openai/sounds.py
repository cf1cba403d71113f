"""Sends audio for transcription, and text for speech, over OpenAI's API."""

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from harness.backends.parts.openai.plain import Plain, json_of, prompts_of, text_of
from harness.backends.parts.refusals import refused
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.remote import BadAnswer, Reply, Request, Usage
from harness.types import Array, BackendSetup, Batch

_OK = 200
_BOUNDARY = "mlperf-harness-5c1d0e7f94a2b863"
_SAMPLE_BYTES = 2  # 16 bits
_LARGEST = 32767
_MOST_RATE = 384_000


def _rate(setup: BackendSetup, default: int) -> int:
    text = setup.options.get("rate", str(default))
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_RATE):
        raise ConfigError(f"--backend-option rate: {text!r} is not a number of samples per second")
    return int(text)


class Transcriptions(Plain):
    """Transcribes sound, which is uploaded as a 16-bit WAV file; the answer is text (UTF-8 as uint8).

    The first input is the sound, float32 in [-1, 1]. A second input, if present, is the number of audio samples without
    the padding at the end (`gives: length` of the step `audio`).

    rate: audio samples per second in the dataset.
    """

    endpoint = "transcriptions"
    path = "/v1/audio/transcriptions"
    options: ClassVar = {"rate": "NUMBER"}

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._rate = _rate(setup, 16_000)

    def _sound(self, batch: Batch) -> Array:
        sounds, *lengths = [np.asarray(rows).reshape(-1) for rows in batch.inputs.values()]
        if sounds.dtype.kind != "f" or len(lengths) > 1:
            raise ValueError(
                "endpoint=transcriptions takes one recording as floats, and optionally its length: use --dataset librispeech"
            )
        return sounds[: int(lengths[0][0])] if lengths else sounds

    def request(self, batch: Batch) -> Request:
        samples = np.clip(self._sound(batch), -1, 1)
        pcm = np.rint(samples * _LARGEST).astype("<i2").tobytes()
        head = struct.pack(
            "<4sI8sIHHIIHH4sI",
            *(b"RIFF", 36 + len(pcm), b"WAVEfmt ", 16, 1, 1, self._rate),
            *(self._rate * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES, b"data", len(pcm)),
        )
        fields = {"model": self.model, "response_format": "json", **self.fields}
        about = (("Content-Type", f"multipart/form-data; boundary={_BOUNDARY}"),)
        return Request(self.path, about, (_multipart(fields, head + pcm),))

    def media_ns(self, batch: Batch) -> int:
        """Returns the duration of the sound."""
        return len(self._sound(batch)) * NS_PER_S // self._rate

    def answer(self, reply: Reply, _samples: int) -> list[Array]:
        text = json_of(reply).get("text")
        if not isinstance(text, str):
            raise BadAnswer(f"the reply's `text` is {text!r:.60}, not a string")
        return [np.frombuffer(text.encode("utf-8", "replace"), np.uint8)]


def _multipart(fields: Mapping[str, Any], wav: bytes) -> bytes:
    parts = []
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            text = str(one).lower() if isinstance(one, bool) else str(one)
            parts.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode())
    about = 'Content-Disposition: form-data; name="file"; filename="sound.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    parts.append(about.encode() + wav)
    begin = f"--{_BOUNDARY}\r\n".encode()
    return b"".join(begin + part + b"\r\n" for part in parts) + f"--{_BOUNDARY}--\r\n".encode()


class Speech(Plain):
    """Turns text into sound: 16-bit PCM without a header, as uint8. The sound is read as it arrives.

    rate: audio samples per second that the server sends.
    voice: name of the voice.
    """

    endpoint = "speech"
    path = "/v1/audio/speech"
    options: ClassVar = {"rate": "NUMBER", "voice": "NAME"}
    streams = True
    """Replies are read as they arrive."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._rate = _rate(setup, 24_000)
        self._voice = setup.options.get("voice", "alloy")

    def test(self) -> Request:
        return self._asking("Hello", {})

    def _asking(self, text: str, more: Mapping[str, Any]) -> Request:
        return self.json_request(
            {"input": text, "voice": self._voice, "response_format": "pcm", **more}
        )

    def request(self, batch: Batch) -> Request:
        (fields,) = prompts_of(batch, self.endpoint)
        return self._asking(text_of(fields, self.endpoint), fields)

    def answer(self, reply: Reply, _samples: int) -> list[Array]:
        return self.reader().answer(reply)

    def reader(self) -> "Sound":
        return Sound(lambda count: count * NS_PER_S // (_SAMPLE_BYTES * self._rate))


class Sound:
    """Reads the sound of one reply. The first piece counts as the first token."""

    is_exact = False
    first_token = None

    def __init__(self, duration_ns: Callable[[int], int]) -> None:
        """duration_ns: returns the duration of the sound in a number of bytes."""
        self._duration_ns = duration_ns
        self.chunks = 0
        """Number of pieces that have arrived so far."""
        self.usage = Usage()

    def feed(self, piece: bytes) -> int:
        self.chunks += bool(piece)
        return self.chunks

    def answer(self, reply: Reply) -> list[Array]:
        """Returns the bytes of the sound. Raises Refused if the server reports an error, and BadAnswer if the reply is
        invalid.
        """
        if reply.status != _OK:
            raise refused(reply)
        sound = np.frombuffer(bytes(reply.body), np.uint8)
        if (reply.header("Content-Type") or "").startswith("application/json"):
            raise BadAnswer(f"the reply is not audio: {bytes(reply.body[:200])!r}")
        if len(sound) < _SAMPLE_BYTES or len(sound) % _SAMPLE_BYTES:
            raise BadAnswer(f"the reply has {len(sound):,} bytes, but is not 16-bit PCM")
        self.usage = Usage(media_ns=self._duration_ns(len(sound)))
        return [sound]
