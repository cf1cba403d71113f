"""Generates complete answers with a backend that computes one step of a language model."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from harness.errors import ConfigError
from harness.models.generation.engine import LOGITS, Answering, Generator
from harness.models.generation.prompts import Prompts
from harness.models.generation.token_engine import AnyGenerator, EngineGenerator
from harness.models.generation.unfit_prompt import UnfitPrompt
from harness.models.manifest.schema import Generation
from harness.types import (
    Array,
    Backend,
    BackendSetup,
    Batch,
    Decoding,
    GeneratesTokens,
    HasOutputs,
    HasSignature,
    Outputs,
)


class TokenBackend(ABC):
    """Answers batches of samples token by token. All samples of a batch are processed at the same time."""

    def __init__(self, step: Backend, sequences: int) -> None:
        """step: a backend that computes one step, or an engine. sequences: the maximum number of samples that are
        processed at once.
        """
        self._step = step
        self.max_batch = sequences
        """The maximum number of samples that are processed at once."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.generator = self._generator(stack.enter_context(self._step))
            self._stack = stack.pop_all()
        return self

    @abstractmethod
    def _generator(self, step: Backend) -> AnyGenerator:
        """step: a backend whose context has been entered."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # This breaks a reference cycle, because the generator holds a method of the backend.
        del self.generator
        self._stack.__exit__(kind, error, trace)

    def infer(self, batch: Batch) -> Outputs:
        try:
            answering = self.begin(batch)
            while not self.generator.is_idle:
                self.generator.step()
        except BaseException:
            self.generator.drop_all()
            raise
        return [self.answer(one) for one in answering]

    def begin(self, batch: Batch) -> list[Answering]:
        """Passes the samples to the generator. Raises ValueError if a sample cannot be answered."""
        (rows,) = batch.inputs.values()
        answering = self._read(rows)
        for one in answering:
            self.generator.add(one)
        return answering

    @abstractmethod
    def _read(self, rows: Array) -> list[Answering]:
        """Returns the samples of a batch. rows: the array for the model's only input."""

    @abstractmethod
    def answer(self, one: Answering) -> Array:
        """Returns the complete answer to a sample."""

    def describe(self) -> Mapping[str, object]:
        return {**self._step.describe(), "generation": "greedy", "sequences": self.max_batch}


class GeneratingBackend(TokenBackend):
    """Generates answers to batches of prompts. The prompts have the format of the dataset `prompts`.

    An answer is a list of int32 token ids. The last id is an end token.
    """

    def __init__(
        self, cls: Callable[[BackendSetup], Backend], about: Generation, setup: BackendSetup
    ) -> None:
        """cls: the class of a token engine, or of a backend that computes one step."""
        self._about = about
        decoding = Decoding(about.context, about.vocabulary, about.end)
        super().__init__(cls(replace(setup, inputs=(), decoding=decoding)), setup.max_batch)
        self._prompts = Prompts(about)

    def _generator(self, step: Backend) -> AnyGenerator:
        return generator(step, self._about, self.max_batch)

    def answer(self, one: Answering) -> Array:
        """Returns the tokens of the answer: (tokens,) int32."""
        return np.array(one.tokens, np.int32)

    def begin(self, batch: Batch) -> list[Answering]:
        """Raises ConfigError if a prompt does not suit the manifest."""
        try:
            return super().begin(batch)
        except UnfitPrompt as e:
            raise ConfigError(f"{e}: {e.remedy}") from e

    def _read(self, rows: Array) -> list[Answering]:
        return [self._asked(json.loads(prompt)) for prompt in rows.reshape(-1)]

    def _asked(self, request: Mapping[str, object]) -> Answering:
        if "fields" in request:
            raise ConfigError(
                "in this process, a model decodes greedily, but a prompt sets other fields of its request: drop these fields, "
                "or use --backend openai"
            )
        most = self._prompts.most(request.get("max_tokens"))
        return Answering(self._prompts.tokens(request), most)

    def rehearse(self, prompts: int) -> None:
        """Answers one-token prompts, and lets each answer fill the context."""
        for _ in range(prompts):
            self.generator.add(Answering([0], self._about.context, ignores_end=True))
        while not self.generator.is_idle:
            self.generator.step()


def generator(step: Backend, about: Generation, sequences: int) -> AnyGenerator:
    """step: a backend whose context has been entered. sequences: the maximum number of sequences that are processed at
    once.
    """
    if isinstance(step, GeneratesTokens):
        return EngineGenerator(step, about, sequences)
    if not isinstance(step, HasSignature):
        raise ConfigError(
            "the manifest has `generation`, but the backend does not report its file's inputs: use a different backend"
        )
    names = step.outputs() if isinstance(step, HasOutputs) else ()
    if names and LOGITS not in names:
        raise ConfigError(
            f"`generation` needs a model with the output {LOGITS}; the file has {', '.join(names)}"
        )
    return Generator(step.infer, step.signature(), about, sequences)
