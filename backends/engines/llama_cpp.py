"""Generates with llama.cpp, from a GGUF file, through the package xllamacpp."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any, ClassVar

import xllamacpp

from harness.backends.parts.engines.arrivals import Arrivals
from harness.backends.parts.engines.token_engine import TokenEngine
from harness.backends.parts.framework import Choices
from harness.backends.parts.native.printed import stdout_to_stderr
from harness.core.formats import gguf
from harness.core.number_types import number_type, precision
from harness.errors import PluginUnavailable
from harness.types import Backend

_CACHES = {"f32": "GGML_TYPE_F32", "f16": "GGML_TYPE_F16"}

_GREEDY = {"temperature": 0, "top_k": 1, "samplers": ["top_k"]}
_WITH_IDS = {"logprobs": 1, "post_sampling_probs": True}
"""Request fields that make llama.cpp report the id of each token. The sampler keeps only the chosen token, so no
sorting is needed.
"""


class LlamaCppBackend(TokenEngine):
    """One llama.cpp server in this process, with a slot for each sequence.

    The package cannot run a single step, so one thread per answer waits for tokens, which arrive one by one. With
    `ignores_end`, llama.cpp excludes the end token and chooses the most likely of the remaining tokens.

    cache: the number type of keys and values. llama.cpp defaults to f16.
    """

    name = "llama-cpp"
    title = "llama.cpp"
    formats = ("gguf",)
    options: ClassVar[Choices] = {"cache": tuple(_CACHES)}

    def _open(self) -> None:
        self._weights = gguf.read(self._path).weights
        sequences = self._setup.max_batch
        try:
            with stdout_to_stderr():
                self._server = xllamacpp.Server(self._params(sequences))
        except RuntimeError as e:  # its text names no cause
            raise ValueError(
                "the file is truncated, its architecture is unknown to llama.cpp, or its cache does not fit into memory: "
                "fetch it again, or lower `generation.context` in the manifest"
            ) from e
        # Two threads per sequence, because the thread of a finished or dropped answer may still be running when the
        # next answer joins.
        self._pool = ThreadPoolExecutor(2 * sequences, thread_name_prefix="llama-cpp")
        self._arrivals = Arrivals()

    def _params(self, sequences: int) -> Any:
        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_parallel = sequences
        params.n_ctx = sequences * self._decoding.context
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._setup.threads
        kind = getattr(xllamacpp.ggml_type, _CACHES[self._option["cache"]])
        params.cache_type_k = params.cache_type_v = kind
        params.cache_prompt = False  # off, because every prompt must be computed in full
        params.cache_ram_mib = 0
        params.warmup = False
        params.fit_params = False
        params.verbosity = 0
        # The server also listens on the loopback interface. A random key keeps other programs out.
        params.port, params.api_keys, params.n_threads_http = 0, [token_hex()], 1
        return params

    def __exit__(self, *exc: object) -> None:
        self._arrivals.forget_all()
        self._pool.shutdown()
        del self._server

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        request = {
            "prompt": [*prompt],
            "n_predict": most,
            "stream": True,
            "ignore_eos": ignores_end,
            "cache_prompt": False,
            **_GREEDY,
            **_WITH_IDS,
        }
        self._arrivals.expect(key)
        self._pool.submit(self._ask, key, request)

    def _ask(self, key: int, request: Mapping[str, object]) -> None:
        """Queues the tokens of an answer, followed by an exception that marks the end of the answer."""
        try:
            self._server.handle_completions(dict(request), self._taker(key))
        except Exception as e:  # noqa: BLE001 - the step that waits for the tokens raises it
            self._arrivals.put(key, e)
        self._arrivals.put(key, PluginUnavailable(
            "llama.cpp ended an answer with a token that the manifest's `end` does not list: add it"
        ))  # fmt: skip

    def _taker(self, key: int) -> Callable[[Mapping[str, Any]], bool]:
        """Returns the function that llama.cpp calls with each part of a reply. The function returns True to end the
        answer.
        """

        def take(reply: Mapping[str, Any]) -> bool:
            if "error" in reply:
                why = PluginUnavailable(f"llama.cpp refuses a prompt: {reply['error']['message']}")
                self._arrivals.put(key, why)
                return True
            for choice in reply["choices"]:
                for token in (choice.get("logprobs") or {}).get("content", ()):
                    self._arrivals.put(key, token["id"])
            return not self._arrivals.expects(key)

        return take

    def step(self) -> Sequence[tuple[int, int]]:
        return self._arrivals.step()

    def leave(self, key: int) -> None:
        self._arrivals.forget(key)

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": f"llama.cpp of xllamacpp {xllamacpp.__version__}",
            "device": "cpu",
            "precision": precision(self._weights, ["float32"]),
            "cache": number_type(self._option["cache"]),
            "threads": self._setup.threads,
            "instructions": _instructions(),
            "math_library": "ggml",
        }


def _instructions() -> str:
    """Returns the instruction sets that the package was built for and that the processor supports."""
    words = xllamacpp.get_system_info().partition("CPU :")[2].split("|")
    return " ".join(word.split("=")[0].strip() for word in words if word.strip().endswith("= 1"))


_: type[Backend] = LlamaCppBackend
