"""Compares a run's answers. Equal prompts should get equal answers, and different prompts different answers."""

from collections.abc import Mapping, Sequence

from harness.types import Array

_BEGIN_BYTES = 24
"""Only this many bytes of each answer, or 6 token IDs, are compared. Later tokens may differ, because the batch size
can change them even at temperature 0.
"""

_LONG_BYTES = 128
"""An answer of at least this size, or 32 token IDs, is unlikely to repeat by chance. A shorter answer may be a class,
which many prompts share.
"""


class Repeats:
    """Keeps the beginning of each prompt's first answer, and digests of the prompt's last answer and reply."""

    def __init__(self) -> None:
        self._begins: dict[int, bytes] = {}
        self._answers: dict[int, int] = {}
        self._replies: dict[int, str] = {}
        self._last_reply = ""
        self._repeated = self._varied = self._named = self._named_again = 0
        self._followed = self._followed_by_same = 0

    def add(
        self, indices: Sequence[int], answers: Sequence[Array], reply_ids: Sequence[str]
    ) -> None:
        """Adds answers. indices: dataset index of each prompt. reply_ids: the server's ID of each reply, or ''."""
        begins = self._begins
        for index, answer in zip(indices, answers, strict=True):
            whole = answer.tobytes()
            begin = whole[:_BEGIN_BYTES]
            first = begins.setdefault(index, begin)
            if first is not begin:
                self._repeated += 1
                self._varied += first != begin
            if len(whole) >= _LONG_BYTES:
                self._answers[index] = hash(whole)
        if any(reply_ids):
            self._add_replies(indices, reply_ids)

    def _add_replies(self, indices: Sequence[int], reply_ids: Sequence[str]) -> None:
        replies, last = self._replies, self._last_reply
        for index, reply_id in zip(indices, reply_ids, strict=True):
            if not reply_id:
                continue
            earlier = replies.get(index)
            if earlier is not None:
                self._named += 1
                self._named_again += earlier == reply_id
            replies[index] = reply_id
            if last:
                self._followed += 1
                self._followed_by_same += last == reply_id
            last = reply_id
        self._last_reply = last

    def summary(self) -> dict[str, int]:
        """Returns the answer counts for the key `tokens` of the `ended` message."""
        return {
            "repeated_answers": self._repeated,
            "varied_answers": self._varied,
            "named_replies": self._followed,
            "same_names": self._followed_by_same,
            "named_repeats": self._named,
            "same_names_of_prompt": self._named_again,
        }

    def alike(self, prompts: Mapping[int, int]) -> Mapping[str, int]:
        """Counts the distinct prompts with a long answer, and the prompts among them that share an answer.

        prompts: maps dataset indices to prompt hashes.
        """
        by_answer: dict[int, set[int]] = {}
        for index, answer in self._answers.items():
            if prompt := prompts.get(index):
                by_answer.setdefault(answer, set()).add(prompt)
        sizes = [len(same) for same in by_answer.values()]
        return {"long_answered": sum(sizes), "alike_prompts": sum(n for n in sizes if n > 1)}
