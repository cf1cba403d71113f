"""Finds the answers of earlier turns in the messages of later turns. Pure."""

import hashlib
from collections.abc import Mapping, Sequence

from harness.datasets.parts.sessions.turns import Turn


def linked(turns: Sequence[Turn], encoded: Sequence[Sequence[bytes]]) -> list[Mapping[int, int]]:
    """Returns for each turn the places in its messages at which an answer of an earlier turn appears.

    encoded: the messages of each turn; () for a turn without messages. A message of the model is the answer of the turn
    that has all messages before it as its prompt, if the later turn waits for this answer.
    """
    asked: dict[bytes, int] = {}  # digest of the messages of a turn -> the turn
    ancestors: list[int] = []  # bit n: the turn waits for turn n, directly or not
    found: list[Mapping[int, int]] = []
    for number, (turn, messages) in enumerate(zip(turns, encoded, strict=True)):
        waited = 0
        for one in turn.after:
            waited |= ancestors[one] | 1 << one
        ancestors.append(waited)
        answers = dict(turn.answers)
        digest = hashlib.sha256()
        rows = turn.row.get("messages", ())
        for place, message in enumerate(messages):
            source = asked.get(digest.digest()) if rows[place].get("role") == "assistant" else None
            if source is not None and waited >> source & 1:
                answers.setdefault(place, source)
            digest.update(b"%d:" % len(message))
            digest.update(message)
        if messages:
            asked.setdefault(digest.digest(), number)
        found.append(answers)
    return found
