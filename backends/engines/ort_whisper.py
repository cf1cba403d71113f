"""Transcribes with ONNX Runtime GenAI, from a folder with genai_config.json and the encoder and decoder of a Whisper
model.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime_genai as genai

from harness.backends.parts.engines import genai_config
from harness.backends.parts.engines.speech_engine import MOST_SAMPLES, SpeechEngine
from harness.backends.parts.http_json.sound import wav_of
from harness.backends.parts.onnx_weights import weight_types
from harness.errors import ConfigError
from harness.types import Array, Backend

_KIND = "whisper"


class OrtWhisperBackend(SpeechEngine):
    """One Whisper model on ONNX Runtime GenAI. Each answer uses a generator with a separate cache, so that answers can
    join and leave at any step.

    The package reads audio from a file, so the harness passes a 16-bit PCM WAV file. The conversion is lossless for
    LibriSpeech's samples.
    """

    name = "ort-whisper"
    title = "ONNX Runtime GenAI"
    formats = ("genai-whisper",)

    def _open(self) -> None:
        content = genai_config.read(self._path)
        model = content["model"]
        if model.get("type") != _KIND:
            raise ConfigError(
                f"{self._path}: its model is of type {model.get('type')!r}, not {_KIND!r}: use --backend ort-genai"
            )
        self._parts = [
            path
            for part in ("encoder", "decoder")
            if (path := genai_config.part(self._path, content, part)) is not None
        ]
        config = genai.Config(str(self._path))
        config.clear_providers()
        session = {"intra_op_num_threads": self._setup.threads, "inter_op_num_threads": 1}
        own = {"session_options": session}
        config.overlay(json.dumps({"model": {"encoder": own, "decoder": own}}))
        self._model = genai.Model(config)
        self._processor = self._model.create_multimodal_processor()
        self._tokenizer = genai.Tokenizer(self._model)
        self._prompt, self._prompt_tokens = self._asked()
        try:
            self._features(np.zeros(1, np.float32))
        except RuntimeError as e:
            raise ConfigError(
                f"{self._path}: its audio_processor_config.json is missing or defines no audio features: build the model again"
            ) from e
        end = model.get("eos_token_id")
        self.end = tuple(end) if isinstance(end, list) else (int(end),)
        self._answers: dict[int, Any] = {}

    def _asked(self) -> tuple[str, int]:
        """Returns the decoder's prompt and its token count. Raises a ConfigError if any word of the prompt is not a
        single token.
        """
        language = self._about.language
        words = ["startoftranscript", *([language, "transcribe"] if language else []), "notimestamps"]  # fmt: skip
        prompt = "".join(f"<|{word}|>" for word in words)
        count = len(self._tokenizer.encode(prompt))
        if count != len(words):
            raise ConfigError(
                f"{self._path}: {prompt} has {count} tokens, not {len(words)}: set `transcription.language` in "
                "the manifest to a language of the model, or remove it if the model has only one language"
            )
        return prompt, count

    def __exit__(self, *exc: object) -> None:
        del self._answers, self._tokenizer, self._processor, self._model

    def listen(self, key: int, sound: Array, most: int) -> None:
        params = genai.GeneratorParams(self._model)
        params.set_search_options(
            max_length=self._prompt_tokens + most, do_sample=False, num_beams=1, batch_size=1
        )
        generator = genai.Generator(self._model, params)
        generator.set_inputs(self._features(sound))
        self._answers[key] = generator

    def _features(self, sound: Array) -> Any:
        """Returns the inputs of the generator. Pads a short recording with silence, as Whisper does, because the
        package would pad the features instead.
        """
        whole = np.zeros(MOST_SAMPLES, np.float32)
        whole[: len(sound)] = sound
        audios = genai.Audios.open_bytes(wav_of(whole))
        return self._processor([self._prompt], audios=audios)

    def step(self) -> Sequence[tuple[int, int]]:
        return [(key, _next_token(generator)) for key, generator in self._answers.items()]

    def leave(self, key: int) -> None:
        del self._answers[key]

    def text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(np.array(tokens, np.int32)) if tokens else ""
        return text

    def describe(self) -> Mapping[str, object]:
        kinds = [kind for part in self._parts for kind in weight_types(part)]
        return genai_config.described(self._model, genai.__version__, kinds, self._setup.threads)


def _next_token(generator: Any) -> int:
    generator.generate_next_token()
    return int(generator.get_next_tokens()[0])


_: type[Backend] = OrtWhisperBackend
