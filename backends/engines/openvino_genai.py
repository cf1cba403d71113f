"""Generates with OpenVINO GenAI, from a folder of Optimum Intel's export."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import openvino
import openvino_genai

from harness.backends.parts.engines.token_engine import TokenEngine
from harness.backends.parts.framework import Choices
from harness.core import signal_stack
from harness.core.number_types import number_type, precision
from harness.errors import ConfigError
from harness.types import Backend

_CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}
"""Precision -> OpenVINO's name of the CPU's ability."""

_FILE = "openvino_model.xml"


class OpenVinoGenaiBackend(TokenEngine):
    """One pipeline with continuous batching and paged attention.

    precision: the number type of the computation.
    cache: the number type of keys and values. OpenVINO's own default is u8, which changes answers.
    """

    name = "openvino-genai"
    title = "OpenVINO GenAI"
    formats = ("openvino-genai",)
    options: ClassVar[Choices] = {
        "precision": ("f32", "bf16", "f16"),
        "cache": ("f32", "bf16", "f16", "u8"),
    }

    def _open(self) -> None:
        path = self._path / _FILE
        if not path.is_file():
            raise ConfigError(
                f"{self._path}: it has no {_FILE}: name the folder that `optimum-cli export openvino` wrote"
            )
        core = openvino.Core()
        self._check_precision(core)
        self._weights = [
            (tuple(node.get_output_shape(0)), node.get_element_type().get_type_name())
            for node in core.read_model(path).get_ops()
            if node.get_type_name() == "Constant"
        ]
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = self._setup.max_batch
        scheduler.max_num_batched_tokens = max(
            scheduler.max_num_batched_tokens, self._decoding.context
        )
        settings = {
            "INFERENCE_PRECISION_HINT": self._option["precision"],
            "KV_CACHE_PRECISION": self._option["cache"],
            "INFERENCE_NUM_THREADS": self._setup.threads,
            "ENABLE_CPU_PINNING": False,  # every instance would be pinned to the same cores
        }
        with signal_stack.kept():
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(self._path), scheduler, "CPU", settings
            )
        self._handles: dict[int, Any] = {}

    def _check_precision(self, core: openvino.Core) -> None:
        requested = self._option["precision"]
        needed = _CAPABILITIES.get(requested)
        if needed and needed not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise ConfigError(
                f"--backend-option precision={requested}: this CPU has no {needed}: use precision=f32"
            )

    def __exit__(self, *exc: object) -> None:
        del self._handles, self._pipeline

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """The harness ends the answers: the engine itself ignores every end."""
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
