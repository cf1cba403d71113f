"""Generates tokens with a token engine, such as ONNX Runtime GenAI, which is a backend that manages its own cache."""

from collections import deque
from collections.abc import Sequence

from harness.errors import ConfigError
from harness.models.generation.engine import Answering, Generator, room_of
from harness.models.generation.prefixes import PrefixCache
from harness.models.manifest.schema import Generation
from harness.types import GeneratesTokens, TranscribesSpeech


class EngineGenerator:
    """Passes prompts to a token engine and receives its tokens. The class has the same interface as `Generator`, and
    only one thread may use an instance.

    The engine decides which active sequences advance in a step. At most `most_sequences` sequences are active.
    """

    def __init__(
        self,
        engine: GeneratesTokens | TranscribesSpeech,
        about: Generation,
        most_sequences: int,
    ) -> None:
        """engine: a backend whose context has been entered."""
        self._engine = engine
        self._about = about
        self._end = frozenset(about.end)
        self._most = most_sequences
        self._waiting: deque[Answering] = deque()
        self._working: dict[int, Answering] = {}
        self._next_key = 0
        self.prefixes: PrefixCache | None = None
        """Always None, because the engine manages its own cache."""

    def keep_prefixes(self, cache: PrefixCache) -> None:
        """Raises ConfigError, because only the engine itself could cache prefixes."""
        del cache
        raise ConfigError(
            "a token engine keeps its cache itself: drop --prefix-cache, or serve with --backend ort"
        )

    @property
    def is_idle(self) -> bool:
        return not (self._working or self._waiting)

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the maximum number of tokens that the context leaves for an answer to the prompt. Raises ValueError
        if the context is too short for an answer.
        """
        return room_of(self._about, prompt)

    def add(self, one: Answering) -> None:
        """Queues the prompt, which joins the batch at the next step that has room. Raises ValueError if the engine
        cannot process the prompt.
        """
        if one.least:
            raise ValueError(
                "min_tokens needs the logits, which a token engine keeps: drop min_tokens, or use backend ort"
            )
        one.most = min(one.most, self.room(one.prompt))
        self._waiting.append(one)

    def drop_all(self) -> None:
        """Removes all sequences, for example after a step that raised an error."""
        self._waiting.clear()
        for key in [*self._working]:
            self._leave(key)

    def step(self) -> Sequence[Answering]:
        """Starts waiting sequences, waits for new tokens, and returns all sequences that got a token."""
        for key in [key for key, one in self._working.items() if not one.is_wanted]:
            self._leave(key)
        self._join()
        return (
            [self._take(key, token) for key, token in self._engine.step()] if self._working else []
        )

    def _join(self) -> None:
        while self._waiting and len(self._working) < self._most:
            one = self._waiting.popleft()
            if one.is_wanted:
                key, self._next_key = self._next_key, self._next_key + 1
                self._begin(key, one)
                self._working[key] = one

    def _begin(self, key: int, one: Answering) -> None:
        assert isinstance(self._engine, GeneratesTokens)
        self._engine.begin(key, one.prompt, one.most, ignores_end=one.ignores_end)

    def _take(self, key: int, token: int) -> Answering:
        one = self._working[key]
        one.tokens.append(token)
        if token in one.stops or (token in self._end and not one.ignores_end):
            one.finish_reason = "stop"
        elif len(one.tokens) >= one.most:
            one.finish_reason = "length"
        if one.finish_reason:
            self._leave(key)
        return one

    def _leave(self, key: int) -> None:
        del self._working[key]
        self._engine.leave(key)


AnyGenerator = Generator | EngineGenerator
