"""Generates with ONNX Runtime GenAI, from a folder with genai_config.json."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime_genai as genai

from harness.backends.parts.engines import genai_config
from harness.backends.parts.engines.token_engine import TokenEngine
from harness.backends.parts.onnx_weights import weight_types
from harness.types import Backend


class OrtGenaiBackend(TokenEngine):
    """One model on ONNX Runtime GenAI. Each answer uses a generator with a separate cache, so that answers can join and
    leave at any step.

    The package's batching engine is not used. In version 0.18, a static batch gives different answers if its prompts
    differ in length, and a dynamic batch needs a model with paged attention.
    """

    name = "ort-genai"
    title = "ONNX Runtime GenAI"
    formats = ("genai",)

    def _open(self) -> None:
        content = genai_config.read(self._path)
        self._decoder = genai_config.part(self._path, content, "decoder")
        config = genai.Config(str(self._path))
        config.clear_providers()
        session = {"intra_op_num_threads": self._setup.threads, "inter_op_num_threads": 1}
        overlay: dict[str, Any] = {"decoder": {"session_options": session}}
        if self._decoding.end:
            overlay["eos_token_id"] = [*self._decoding.end]
        config.overlay(json.dumps({"model": overlay}))
        self._model = genai.Model(config)
        self._answers: dict[int, _Answer] = {}

    def __exit__(self, *exc: object) -> None:
        del self._answers, self._model

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """Ignores `ignores_end`, because `next_token` continues after an end token that does not end the answer."""
        del ignores_end
        params = genai.GeneratorParams(self._model)
        params.set_search_options(max_length=len(prompt) + most, do_sample=False, num_beams=1)
        generator = genai.Generator(self._model, params)
        generator.append_tokens(np.array(prompt, np.int32))
        self._answers[key] = _Answer(generator)

    def step(self) -> Sequence[tuple[int, int]]:
        return [(key, answer.next_token()) for key, answer in self._answers.items()]

    def leave(self, key: int) -> None:
        del self._answers[key]

    def describe(self) -> Mapping[str, object]:
        kinds = weight_types(self._decoder) if self._decoder is not None else []
        return genai_config.described(self._model, genai.__version__, kinds, self._setup.threads)


class _Answer:
    """One answer in progress."""

    __slots__ = ("_generator", "_last")

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._last = -1

    def next_token(self) -> int:
        generator = self._generator
        if generator.is_done():
            # The generator has stopped at an end token and dropped it. The token is appended again, because the answer
            # continues after an end token.
            generator.append_tokens(np.array([self._last], np.int32))
        generator.generate_next_token()
        self._last = int(generator.get_next_tokens()[0])
        return self._last


_: type[Backend] = OrtGenaiBackend
