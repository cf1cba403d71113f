"""Counts the answers of a served language model, for Prometheus."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from harness.models.generation.prefixes import PrefixCache
from harness.serve.openai.replies import Answer
from harness.serve.statistics import LIMITS_NS, Histogram, Requests


class Answers(Requests):
    """Counts completion requests."""

    def __init__(self, model: str, prefixes: PrefixCache | None = None) -> None:
        super().__init__(model)
        self._prefixes = prefixes
        self._prompt_tokens = self._tokens = 0
        self._first = Histogram(LIMITS_NS)
        self.left = 0
        """Number of requests whose client disconnected before the answer was complete."""

    @property
    def answered(self) -> int:
        return self._answered

    def add(self, answer: Answer, ended_ns: int) -> None:
        """Counts a complete answer. ended_ns: time at which the answer's last token was generated."""
        arrived_ns, begun_ns = answer.arrived_ns, answer.begun_ns
        self._add(ended_ns - arrived_ns, begun_ns - arrived_ns, ended_ns - begun_ns)
        self._first.add(max(0, answer.first_ns - arrived_ns))
        prompt, tokens = answer.tokens()
        self._prompt_tokens += prompt
        self._tokens += tokens

    def add_vectors(self, tokens: int, arrived_ns: int, begun_ns: int, ended_ns: int) -> None:
        """Counts a request for vectors. tokens: number of tokens in the texts of the request."""
        self._add(ended_ns - arrived_ns, begun_ns - arrived_ns, ended_ns - begun_ns)
        self._prompt_tokens += tokens

    def add_failed(self) -> None:
        """Counts a request that failed because the backend raised an error."""
        self._failed += 1
        self.refused += 1

    def _ends(self) -> Mapping[str, int]:
        return {**super()._ends(), "left": self.left}

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        text = "Time from the arrival of a request to the first token of its answer"
        yield self._times("first_token", text, self._first)
        text = "Tokens of answered prompts"
        yield self._counter("prompt_tokens", text, self._prompt_tokens)
        text = "Tokens of complete answers"
        yield self._counter("generated_tokens", text, self._tokens)
        if self._prefixes is not None:
            text = "Tokens of prompts that were looked up in the prefix cache"
            yield self._counter("prefix_cache_queries", text, self._prefixes.queried_tokens)
            text = "Tokens of prompts that were in the prefix cache"
            yield self._counter("prefix_cache_hits", text, self._prefixes.hit_tokens)
