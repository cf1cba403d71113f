"""Finds the start of the answer in a stream in which the model first writes its reasoning. This module has no side
effects.
"""

_CLOSING = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
"""Maps the mark that opens the reasoning to the mark that closes it. The marks are used if the server does not separate
the reasoning from the answer.
"""

_LONGEST = max(map(len, _CLOSING.values()))


def has_mark(content: str) -> bool:
    """Returns whether a complete answer may contain a mark of reasoning."""
    return "think" in content or "THINK" in content


class AnswerStart:
    """Receives the texts of one stream, one after another.

    A chat template can open the reasoning in the prompt, so that the stream contains only the closing mark. The answer
    then counts as started twice: at the beginning of the stream and after the closing mark.
    """

    def __init__(self) -> None:
        self.times = 0
        """Number of times that the answer has started."""
        self.is_answer = False
        """True if the latest text belongs to the answer."""
        self.has_reasoning = False
        self._closing = ""
        self._text = ""
        """Text that must still be searched for a mark: first the undecided beginning, later the end of the latest text,
        because a mark may be split between chunks.
        """

    def take(self, reasoning: str, content: str) -> None:
        """reasoning, content: texts of one chunk under the server's two keys; content may contain marks."""
        self.has_reasoning = self.has_reasoning or bool(reasoning)
        if not content or (self.is_answer and self.has_reasoning):
            return
        self._text += content
        if self.is_answer:
            self._look_for_lone_mark()
        elif self._closing:
            self._look_for_end()
        else:
            self._look_at_begin()

    def _look_at_begin(self) -> None:
        self._text = self._text.lstrip()
        for opening, closing in _CLOSING.items():
            if self._text.startswith(opening):
                self.has_reasoning, self._closing = True, closing
                self._look_for_end()
                return
            if opening.startswith(self._text):
                return  # undecided: white space, or possibly the start of a mark
        self._begin()
        self._look_for_lone_mark()

    def _look_for_end(self) -> None:
        _, mark, rest = self._text.partition(self._closing)
        if not mark:
            self._text = self._text[-_LONGEST:]
        elif rest.strip():
            self._begin()

    def _begin(self) -> None:
        self.times += 1
        self.is_answer = True

    def _look_for_lone_mark(self) -> None:
        for closing in _CLOSING.values() if "/" in self._text else ():
            if closing in self._text and not self.has_reasoning:
                self.has_reasoning, self._closing, self.is_answer = True, closing, False
                self._look_for_end()
                return
        self._text = self._text[-_LONGEST:]
