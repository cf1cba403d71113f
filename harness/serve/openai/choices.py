"""Follows one answer of a reply while its tokens are generated: its text, and the stop string that ends it."""

from harness.models.generation.engine import Answering
from harness.models.generation.prompts import Prompts
from harness.serve.openai.asked import Asked


class Choice:
    """One answer to one prompt."""

    __slots__ = (
        *("_asked", "_begin", "_prompts", "_sent", "_text"),
        *("finish_reason", "index", "one", "stop_reason", "tokens_sent"),
    )

    def __init__(self, asked: Asked, index: int, prompts: Prompts) -> None:
        """index: position of the answer among the answers of the request."""
        prompt = asked.prompts[index // asked.copies]
        self.index = index
        self.one = Answering(
            prompt,
            asked.most,
            ignores_end=asked.ignores_end,
            least=asked.least,
            stops=asked.stop_tokens,
        )
        self.finish_reason: str | None = None
        """None until the last token was taken."""
        self.stop_reason: str | int | None = None
        """The stop string, or the token of `stop_token_ids`, that ended the answer."""
        self.tokens_sent = 0
        self._asked, self._prompts = asked, prompts
        self._begin = prompts.text(prompt) if asked.echoes else ""
        self._text = ""
        self._sent = 0  # characters of `_begin` and `_text` together

    def take(self) -> None:
        """Reads the token of the last step. Ends the answer once a stop string is complete, as vLLM does."""
        self._take()
        self.finish_reason = self.one.finish_reason or None

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
        """The whole text; with `echo`, it begins with the prompt."""
        return self._begin + self._text

    def next_text(self) -> str:
        """Returns the unsent text, without an end that may be the beginning of a stop string."""
        held = 0 if self.finish_reason else self._asked.held_characters
        end = len(self._begin) + max(0, len(self._text) - held)
        begin, self._sent = self._sent, max(self._sent, end)
        return self.text[begin : self._sent]
