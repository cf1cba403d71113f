"""Generates with OpenVINO GenAI, from a folder that Optimum Intel exported."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import openvino
import openvino_genai

from harness.backends.parts.engines import openvino_settings
from harness.backends.parts.engines.token_engine import TokenEngine
from harness.backends.parts.framework import Choices
from harness.core import signal_stack
from harness.core.number_types import number_type, precision
from harness.errors import ConfigError
from harness.types import Backend

_FILE = "openvino_model.xml"


class OpenVinoGenaiBackend(TokenEngine):
    """One pipeline with continuous batching and paged attention.

    precision: the number type of the computation.
    cache: the number type of keys and values. OpenVINO's default for the cache is u8, which changes answers.
    """

    name = "openvino-genai"
    title = "OpenVINO GenAI"
    formats = ("openvino-genai",)
    options: ClassVar[Choices] = openvino_settings.OPTIONS

    def _open(self) -> None:
        path = self._path / _FILE
        if not path.is_file():
            raise ConfigError(
                f"{self._path} does not contain {_FILE}: pass the folder that `optimum-cli export openvino` wrote"
            )
        settings = openvino_settings.settings(self._option, self._setup.threads)
        self._weights = openvino_settings.weights([path])
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = self._setup.max_batch
        scheduler.max_num_batched_tokens = max(
            scheduler.max_num_batched_tokens, self._decoding.context
        )
        with signal_stack.kept():
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(self._path), scheduler, "CPU", settings
            )
        self._handles: dict[int, Any] = {}

    def __exit__(self, *exc: object) -> None:
        del self._handles, self._pipeline

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """Ignores `ignores_end`, because the harness, not the engine, ends each answer."""
        del ignores_end
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = most
        config.do_sample = False
        config.ignore_eos = True
        tokens = openvino.Tensor(np.array([prompt], np.int64))
        self._handles[key] = self._pipeline.add_request(key, tokens, config)

    def step(self) -> Sequence[tuple[int, int]]:
        self._pipeline.step()
        found = []
        for key, handle in self._handles.items():
            if handle.can_read():
                (output,) = handle.read().values()
                found.append((key, output.generated_ids[0]))
        return found

    def leave(self, key: int) -> None:
        self._handles.pop(key).cancel()

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


_: type[Backend] = OpenVinoGenaiBackend
