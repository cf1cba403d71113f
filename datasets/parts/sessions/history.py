"""Finds the answers of earlier turns in the messages of later turns."""

import hashlib
from collections.abc import Mapping, Sequence

from harness.datasets.parts.sessions.turns import Turn


def linked(turns: Sequence[Turn], encoded: Sequence[Sequence[bytes]]) -> list[Mapping[int, int]]:
    """Returns, for each turn, a mapping from places in its messages to the earlier turns whose answers belong there.

    encoded: the messages of each turn; () for a turn without messages. A message from the model is the answer to the
    turn whose prompt consists of all messages before that message. The link is made only if the later turn waits for
    this answer.
    """
    asked: dict[bytes, int] = {}  # maps a digest of a turn's messages to the turn
    # per turn: bit n is set if the turn waits for turn n, directly or indirectly
    ancestors: list[int] = []
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
