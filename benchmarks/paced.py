"""A served language model whose tokens appear at fixed times, so that neither its speed nor the processor limits a
client.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from harness.backends.ort import OrtBackend
from harness.models.generation.engine import Answering, Generator
from harness.models.manifest.lookup import load_model
from harness.types import Array, BackendSetup, Batch

_TURN_S = 0.0005
"""Longest wait within a step; it is short, because `serve` looks for new requests only between two steps."""

CYCLE, _STEP = 13, 5
SPREAD = 0.1
"""Answers are faster or slower than the mean by up to this share, so that the answers do not end together. Each speed
occurs once in any `CYCLE` consecutive answers, and p90 coincides with one of the speeds instead of lying between two.
"""


class Paced:
    """The embedded language model as a token engine, which computes each prompt once and sends its tokens at fixed
    times.

    Options: first_ms=100, the time to the first token; gap_ms=20, the mean time between two tokens. All gaps of an
    answer are equal. The gaps of consecutive answers differ and follow a cycle, so that all clients get the same mix.
    """

    formats = ("onnx",)

    def __init__(self, setup: BackendSetup) -> None:
        self._first_s = float(setup.options.get("first_ms", "100")) / 1e3
        self._gap_s = float(setup.options.get("gap_ms", "20")) / 1e3
        self._model = OrtBackend(replace(setup, options={}))
        self._name = setup.model_name
        self._stack = ExitStack()
        self._known: dict[tuple[object, ...], list[int]] = {}
        self._begun = 0
        self._active: dict[int, deque[tuple[float, int]]] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._model)
        about = load_model(self._name).generation
        assert about is not None
        self._generator = Generator(self._model.infer, self._model.signature(), about, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        del self._generator
        self._stack.close()

    def infer(self, batch: Batch) -> Array:
        raise NotImplementedError  # the harness calls only `step` on a token engine

    def describe(self) -> Mapping[str, object]:
        return {**self._model.describe(), "paced": True}

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        tokens = self._answer(prompt, most, ignores_end=ignores_end)
        share = self._begun * _STEP % CYCLE / (CYCLE - 1)
        self._begun += 1
        gap_s = self._gap_s * (1 - SPREAD + 2 * SPREAD * share)
        first_s = time.monotonic() + self._first_s
        self._active[key] = deque((first_s + i * gap_s, token) for i, token in enumerate(tokens))

    def _answer(self, prompt: Sequence[int], most: int, *, ignores_end: bool) -> list[int]:
        known = (tuple(prompt), most, ignores_end)
        if known not in self._known:
            one = Answering(prompt, most, ignores_end=ignores_end)
            self._generator.add(one)
            while not self._generator.is_idle:
                self._generator.step()
            self._known[known] = one.tokens
        return self._known[known]

    def step(self) -> Sequence[tuple[int, int]]:
        """Returns the tokens that are due. If none are due, waits briefly first."""
        due_s = min(tokens[0][0] for tokens in self._active.values())
        left_s = due_s - time.monotonic()
        if left_s > 0:
            time.sleep(min(left_s, _TURN_S))
        now_s = time.monotonic()
        ready = [(key, tokens) for key, tokens in self._active.items() if tokens[0][0] <= now_s]
        return [(key, tokens.popleft()[1]) for key, tokens in ready]

    def leave(self, key: int) -> None:
        del self._active[key]
