"""Generates all active answers at the same time by continuous batching, one token per answer in each step."""

from collections.abc import Iterator, Sequence
from time import time_ns

from harness.errors import type_and_text
from harness.models.generation.engine import Answering
from harness.models.generation.token_engine import AnyGenerator
from harness.serve.loop import Part
from harness.serve.openai.choices import Choice
from harness.serve.openai.replies import Answer
from harness.serve.openai.statistics import Answers


class Batching:
    """Generates the active answers; a loop calls `step` as its `Work`."""

    def __init__(self, generator: AnyGenerator, statistics: Answers) -> None:
        """statistics: counts each request when the request ends."""
        self._generator, self._statistics = generator, statistics
        self._working: dict[Answering, tuple[Answer, Choice]] = {}
        self.first_failure = ""
        """The first error that the backend raised."""

    def add(self, answer: Answer) -> None:
        """Adds an answer.

        The answer's choices join the batch as soon as the batch has room. Raises ValueError if the model cannot process
        a prompt.
        """
        for choice in answer.choices:
            self._generator.room(choice.one.prompt)
        for choice in answer.choices:
            self._generator.add(choice.one)
            self._working[choice.one] = (answer, choice)

    def step(self) -> Sequence[Part] | None:
        """Generates one token per active answer. Returns the parts of the replies, or None if no answer is active."""
        self._drop_unwanted()
        if self._generator.is_idle:
            return None
        begun_ns = time_ns()
        try:
            answered = self._generator.step()
        except Exception as e:  # noqa: BLE001 - the exceptions of the frameworks have no common base class
            self.first_failure = self.first_failure or type_and_text(e)
            self._generator.drop_all()
            dropped, self._working = dict.fromkeys(a for a, _ in self._working.values()), {}
            for _ in dropped:
                self._statistics.add_failed()
            return [Part(answer, answer.failure(e), is_last=True) for answer in dropped]
        return [*self._parts(answered, begun_ns)]

    def _drop_unwanted(self) -> None:
        """Drops answers whose clients have disconnected."""
        left = {one: answer for one, (answer, _) in self._working.items() if not answer.is_awaited}
        for one in left:
            one.is_wanted = False
            del self._working[one]
        self._statistics.left += len({*left.values()})

    def _parts(self, answered: Sequence[Answering], begun_ns: int) -> Iterator[Part]:
        now_ns = time_ns()
        for one in answered:
            answer, choice = self._working[one]
            if not answer.begun_ns:
                answer.begun_ns, answer.first_ns = begun_ns, now_ns
            choice.take()
            if choice.one is not one:  # `take` has replaced the complete draft with the answer
                del self._working[one]
                self._generator.add(choice.one)
                self._working[choice.one] = (answer, choice)
            part = answer.part(choice)
            if choice.finish_reason:
                del self._working[choice.one]
                if answer.is_complete:
                    self._statistics.add(answer, now_ns)
            if part is not None:
                yield Part(answer, part, is_last=answer.is_complete)
