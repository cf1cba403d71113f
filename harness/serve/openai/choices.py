"""Tracks one answer in a reply while the model generates its tokens: the text, and the stop string that ends it."""

from harness.models.generation.engine import Answering
from harness.models.generation.prompts import Prompts
from harness.serve.openai.asked import Asked


class Choice:
    """One answer to one prompt."""

    __slots__ = (
        *("_asked", "_begin", "_prompts", "_sent", "_text"),
        *("finish_reason", "index", "one", "stop_reason", "tokens_sent"),
        *("_thought_sent", "draft", "thought"),
    )

    def __init__(self, asked: Asked, index: int, prompts: Prompts) -> None:
        """index: position of this answer among the answers to the request."""
        prompt = asked.prompts[index // asked.copies]
        self.index = index
        self.one = Answering(
            prompt,
            asked.most,
            ignores_end=asked.ignores_end and not asked.reasons,
            least=0 if asked.reasons else asked.least,
            stops=asked.stop_tokens,
        )
        self.draft: Answering | None = None
        """The complete draft of an answer with reasoning; None until the draft is complete, when `one` becomes the
        answer.
        """
        self.thought = ""
        """The draft's text so far."""
        self._thought_sent = 0
        self.finish_reason: str | None = None
        """Reason why the answer ended, or None until `take` has read the last token."""
        self.stop_reason: str | int | None = None
        """The stop string or the token in `stop_token_ids` that ended the answer."""
        self.tokens_sent = 0
        self._asked, self._prompts = asked, prompts
        self._begin = prompts.text(prompt) if asked.echoes else ""
        self._text = ""
        self._sent = 0  # number of characters of `_begin` + `_text` that were sent

    def take(self) -> None:
        """Reads the token that the last step generated. Ends the answer when a stop string is complete, as vLLM does."""
        if self.is_drafting:
            self._take_draft()
            return
        self._take()
        self.finish_reason = self.one.finish_reason or None

    @property
    def is_drafting(self) -> bool:
        """Whether `one` is still the draft of an answer with reasoning."""
        return self._asked.reasons and self.draft is None

    @property
    def tokens(self) -> list[int]:
        """All tokens so far: the draft's tokens, followed by the answer's tokens."""
        return [*self.draft.tokens, *self.one.tokens] if self.draft is not None else self.one.tokens

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens in the draft so far."""
        if self.draft is not None:
            return len(self.draft.tokens)
        return len(self.one.tokens) if self.is_drafting else 0

    def _take_draft(self) -> None:
        """Reads a token of the draft.

        When the draft is complete, `one` becomes the answer, which may use the remaining tokens.
        """
        one, asked = self.one, self._asked
        self.thought += self._prompts.text(one.tokens[-1:])
        left = asked.most - len(one.tokens)
        if one.finish_reason == "length" or (one.finish_reason and left < 1):
            self.finish_reason = "length"
        elif one.finish_reason:
            self.draft = one
            self.one = Answering(
                one.prompt,
                left,
                ignores_end=asked.ignores_end,
                least=asked.least,
                stops=asked.stop_tokens,
            )

    def next_thought(self) -> str:
        """Returns the unsent part of the draft's text."""
        begin, self._thought_sent = self._thought_sent, len(self.thought)
        return self.thought[begin:]

    def _take(self) -> None:
        one, asked = self.one, self._asked
        token = one.tokens[-1]
        if one.finish_reason == "stop" and token in asked.stop_tokens:
            self.stop_reason = token
            if not asked.keeps_stop:
                return
        before, self._text = len(self._text), self._text + self._prompts.text([token])
        if len(one.tokens) <= asked.least:
            return
        for stop in asked.stops:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self._text = self._text[: at + len(stop) * asked.keeps_stop]
                self.stop_reason = stop
                one.finish_reason = "stop"
                one.is_wanted = False
                return

    @property
    def text(self) -> str:
        """The complete text, which begins with the prompt if the request sets `echo`."""
        return self._begin + self._text

    def next_text(self) -> str:
        """Returns the unsent text, except for an end that may be the beginning of a stop string."""
        held = 0 if self.finish_reason else self._asked.held_characters
        end = len(self._begin) + max(0, len(self._text) - held)
        begin, self._sent = self._sent, max(self._sent, end)
        return self.text[begin : self._sent]
