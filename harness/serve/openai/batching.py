"""Generates all answers together: continuous batching, one token of each a step."""

from collections.abc import Iterator, Sequence
from time import time_ns

from harness.errors import type_and_text
from harness.models.generation.engine import Answering, Generator
from harness.serve.loop import Part
from harness.serve.openai.replies import Answer


class Batching:
    """The answers in work. `step` is the `Work` of a loop."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._answers: dict[Answering, Answer] = {}
        self.first_failure = ""
        """What the backend raised first."""

    def add(self, answer: Answer) -> None:
        """It joins at the next step with room. Raises a ValueError for a prompt that the model does not take."""
        self._generator.add(answer.one)
        self._answers[answer.one] = answer

    def step(self) -> Sequence[Part] | None:
        """The parts of replies that one step gives; None where nothing is in work."""
        self._drop_unwanted()
        if self._generator.is_idle:
            return None
        begun_ns = time_ns()
        try:
            answered = self._generator.step()
        except Exception as e:  # noqa: BLE001 - the frameworks' own exceptions share no base class
            self.first_failure = self.first_failure or type_and_text(e)
            self._generator.drop_all()
            dropped, self._answers = [*self._answers.values()], {}
            return [Part(answer, answer.failure(e), is_last=True) for answer in dropped]
        return [*self._parts(answered, begun_ns)]

    def _drop_unwanted(self) -> None:
        """Forgets the answers whose clients have gone."""
        for one, answer in [*self._answers.items()]:
            if not answer.is_awaited:
                one.is_wanted = False
                del self._answers[one]

    def _parts(self, answered: Sequence[Answering], begun_ns: int) -> Iterator[Part]:
        for one in answered:
            answer = self._answers[one]
            if len(one.tokens) == 1:
                answer.begun_ns = begun_ns
            part = answer.part()
            if one.finish_reason:
                del self._answers[one]
            if part is not None:
                yield Part(answer, part, is_last=bool(one.finish_reason))
