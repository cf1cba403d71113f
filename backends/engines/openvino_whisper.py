"""Transcribes with OpenVINO GenAI's WhisperPipeline, from a folder that Optimum Intel exported."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import openvino_genai

from harness.backends.parts.engines import openvino_settings
from harness.backends.parts.engines.arrivals import Arrivals
from harness.backends.parts.engines.speech_engine import SpeechEngine
from harness.backends.parts.framework import Choices
from harness.core import signal_stack
from harness.core.number_types import number_type, precision
from harness.errors import ConfigError
from harness.types import Array, Backend

_MODELS = ("openvino_encoder_model.xml", "openvino_decoder_model.xml")
_FILES = (
    *_MODELS,
    *("openvino_detokenizer.xml", "generation_config.json", "preprocessor_config.json"),
)


class OpenVinoWhisperBackend(SpeechEngine):
    """One pipeline, which transcribes one recording at a time.

    precision: the number type of the computation.
    cache: the number type of keys and values. OpenVINO's default for the cache is u8, which changes answers.
    """

    name = "openvino-whisper"
    title = "OpenVINO GenAI"
    formats = ("openvino-whisper",)
    options: ClassVar[Choices] = openvino_settings.OPTIONS

    def _open(self) -> None:
        for name in _FILES:
            if not (self._path / name).is_file():
                raise ConfigError(
                    f"{self._path} does not contain {name}: name the folder that `optimum-cli export openvino` wrote, with "
                    "openvino-tokenizers installed"
                )
        settings = openvino_settings.settings(self._option, self._setup.threads)
        self._weights = openvino_settings.weights(self._path / name for name in _MODELS)
        with signal_stack.kept():
            self._pipeline = openvino_genai.WhisperPipeline(str(self._path), "CPU", **settings)
        self._config = self._configured()
        self.end = (self._config.eos_token_id,)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._arrivals = Arrivals()

    def _configured(self) -> Any:
        """Returns the configuration for greedy decoding. Raises a ConfigError if the model lacks the language."""
        config, language = self._pipeline.get_generation_config(), self._about.language
        config.do_sample, config.num_beams = False, 1
        config.return_timestamps = False
        if config.is_multilingual != (language is not None):
            kind = "several languages" if config.is_multilingual else "one language"
            todo = "name one as" if config.is_multilingual else "remove"
            raise ConfigError(
                f"{self._path}: the model has {kind}: {todo} `transcription.language` in the manifest"
            )
        if language is None:
            return config
        if f"<|{language}|>" not in config.lang_to_id:
            known = ", ".join(sorted(key.strip("<|>") for key in config.lang_to_id))
            raise ConfigError(
                f"{self._path}: the model does not support {language!r}, the language in the manifest's `transcription`: its "
                f"generation_config.json lists {known or 'none'}"
            )
        config.language, config.task = f"<|{language}|>", "transcribe"
        return config

    def __exit__(self, *exc: object) -> None:
        self._arrivals.forget_all()
        self._pool.shutdown()
        del self._pipeline, self._tokenizer

    def listen(self, key: int, sound: Array, most: int) -> None:
        self._arrivals.expect(key)
        self._pool.submit(self._transcribe, key, sound, most)

    def _transcribe(self, key: int, sound: Array, most: int) -> None:
        """Queues the tokens of an answer as they arrive, followed by the end of the answer."""
        streamer = _Streamer(lambda token: self._arrivals.put(key, token))
        try:
            if self._arrivals.expects(key):
                self._config.max_new_tokens = most
                self._pipeline.generate(sound.tolist(), self._config, streamer)
        except Exception as e:  # noqa: BLE001 - the step that waits for the tokens raises it
            self._arrivals.put(key, e)
        self._arrivals.put(key, self.end[0])

    def step(self) -> Sequence[tuple[int, int]]:
        return self._arrivals.step()

    def leave(self, key: int) -> None:
        self._arrivals.forget(key)

    def text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode([*tokens])
        return text

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": f"openvino-genai {openvino_genai.__version__}",
            "device": "cpu",
            "precision": precision(
                self._weights, ["float32"], number_type(self._option["precision"])
            ),
            "cache": number_type(self._option["cache"]),
            "threads": self._setup.threads,
            "math_library": "oneDNN",
        }


class _Streamer(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Passes on each token until the answer is no longer needed."""

    def __init__(self, put: Callable[[int], bool]) -> None:
        super().__init__()
        self._put = put

    def write(self, token: int | Sequence[int]) -> Any:
        found = [token] if isinstance(token, int) else token
        wanted = [self._put(each) for each in found]
        status = openvino_genai.StreamingStatus
        return status.RUNNING if all(wanted) else status.CANCEL

    def end(self) -> None:
        """Does nothing, because `_transcribe` marks the end of an answer."""


_: type[Backend] = OpenVinoWhisperBackend
