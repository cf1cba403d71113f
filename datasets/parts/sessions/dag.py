"""Reads AIPerf's DAG JSONL, in which each line is a conversation. Conversations may fork and spawn other conversations.

A turn contains only new messages; the model's earlier answers are part of the history (`context_mode`
deltas_without_responses). A session is a conversation that no other conversation starts, and all conversations that it
starts, directly or indirectly.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.units import NS_PER_MS
from harness.datasets.parts.sessions.turns import Turn, list_of, number_of, whole_of

TURN_KEYS = {"messages", "model", "max_tokens", "tools", "extra", "forks", "spawns", "delay"}
_LIVE, _RECORDED, _WHOLE = (
    "deltas_without_responses",
    "deltas_with_responses",
    "message_array_with_responses",
)
_MODES = (_LIVE, _RECORDED, _WHOLE)

_History = Sequence[Mapping[str, Any] | int]
"""Messages, and positions of turns. The answers of these turns are inserted between the messages."""


def is_conversation(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("session_id"), str):
        return False
    if row.get("orchestrator") is True:
        return True
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        return False
    known = all(isinstance(turn, dict) and turn.keys() <= TURN_KEYS for turn in turns)
    return known and any(turn.keys() & {"messages", "forks", "spawns"} for turn in turns)


def sessions(
    rows: Sequence[tuple[str, Mapping[str, Any]]], seed: int
) -> Iterator[tuple[str, list[Turn]]]:
    """Yields the sessions with their places in the file. Raises a ValueError that names the place."""
    by_id: dict[str, Mapping[str, Any]] = {}
    begun: set[str] = set()
    for place, row in rows:
        name = row.get("session_id")
        if not isinstance(name, str) or name in by_id:
            raise ValueError(
                f"{place}: session_id is {name!r:.40}, but must be a string that no other line has"
            )
        by_id[name] = row
        begun.update(_children(row, place))
    for place, row in rows:
        if row["session_id"] in begun:
            continue
        session = _Session(by_id, np.random.default_rng([seed, *str(row["session_id"]).encode()]))
        try:
            session.expand(row["session_id"], (), ())
        except ValueError as e:
            raise ValueError(f"{place}: {e}") from None
        yield place, session.turns


def _children(row: Mapping[str, Any], place: str) -> Iterator[str]:
    try:
        rounds = row.get("rounds")
        of_rounds = rounds if isinstance(rounds, list) else []
        owners = [row, *list_of(row, "turns"), *of_rounds]
        for owner in owners:
            for _, children, _ in _branches(owner):
                yield from children
        yield from _names(list_of(row, "pre_session_spawns"))
    except ValueError as e:
        raise ValueError(f"{place}: {e}") from None


def _branches(owner: Mapping[str, Any]) -> Iterator[tuple[str, list[str], Any]]:
    """Yields (kind, conversations, turn that waits for these conversations). kind: fork, background or spawn."""
    for entry in list_of(owner, "forks"):
        if isinstance(entry, dict):
            yield (
                "background" if entry.get("background") else "fork",
                _names([entry.get("child")]),
                None,
            )
        else:
            yield "fork", _names([entry]), None
    for entry in list_of(owner, "spawns"):
        if isinstance(entry, dict):
            yield "spawn", _names(list_of(entry, "children")), entry.get("join_at")
        else:
            yield "spawn", _names([entry]), None


def _names(entries: Sequence[object]) -> list[str]:
    for name in entries:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{name!r:.40} is not a session_id")
    return [str(name) for name in entries]


class _Session:
    """Collects the turns of one session, in an order in which each turn waits only for earlier turns."""

    def __init__(self, by_id: Mapping[str, Mapping[str, Any]], random: np.random.Generator) -> None:
        self._by_id, self._random = by_id, random
        self._open: list[str] = []
        self.turns: list[Turn] = []

    def expand(
        self, name: str, after: Sequence[int], history: _History, delay_ms: float = 0.0
    ) -> list[int]:
        """Adds the turns of a conversation. Returns the turns whose answers end the conversation.

        after: turns for which the first turn waits. delay_ms: time to add to the delay of the first turn.
        """
        row = self._by_id.get(name)
        if row is None:
            raise ValueError(f"this file has no conversation {name!r:.40}")
        if name in self._open:
            raise ValueError(f"conversation {name!r:.40} starts itself")
        self._open.append(name)
        try:
            if row.get("orchestrator"):
                return self._rounds(row, after, delay_ms)
            return self._conversation(row, after, history, delay_ms)
        finally:
            self._open.pop()

    def _conversation(
        self, row: Mapping[str, Any], after: Sequence[int], history: _History, delay_ms: float
    ) -> list[int]:
        mode = row.get("context_mode") or _LIVE
        if mode not in _MODES:
            raise ValueError(f"context_mode is {mode!r:.40}: it must be one of {', '.join(_MODES)}")
        for child in _names(list_of(row, "pre_session_spawns")):
            self.expand(child, after, (), delay_ms)
        turns, ends = list_of(row, "turns"), [*after]
        joins: dict[int, list[int]] = {}
        history = list(history)
        for number, turn in enumerate(turns):
            messages = [*([] if mode == _WHOLE else history), *list_of(turn, "messages")]
            waited = sorted({*ends, *joins.pop(number, [])})
            position = self._add(turn, messages, waited, number_of(turn, "delay", 0) + delay_ms)
            delay_ms, ends = 0.0, [position]
            history = [*messages, position] if mode == _LIVE else messages
            ends = self._branch(turn, number, len(turns), position, history, joins) or ends
        if not turns:
            raise ValueError("a conversation has no turns")
        return ends

    def _branch(
        self,
        turn: Mapping[str, Any],
        number: int,
        count: int,
        position: int,
        history: _History,
        joins: dict[int, list[int]],
    ) -> list[int]:
        """Adds the conversations that a turn starts. Returns the turns that end the forks, because the forks replace
        the conversation.
        """
        replaced: list[int] = []
        for kind, children, join_at in _branches(turn):
            for child in children:
                ends = self.expand(child, [position], history if kind != "spawn" else ())
                if kind == "fork":
                    replaced += ends
                if kind == "spawn":
                    at = (
                        number + 1 if join_at is None else whole_of({"join_at": join_at}, "join_at")
                    )
                    if join_at is not None and not number < at < count:
                        raise ValueError(f"join_at is {at}: it must be a later turn")
                    joins.setdefault(at, []).extend(ends)
        if replaced and number + 1 < count:
            raise ValueError("a turn after a fork is never sent: add background to the fork")
        return replaced

    def _rounds(self, row: Mapping[str, Any], after: Sequence[int], delay_ms: float) -> list[int]:
        """Adds the conversations that an orchestrator starts. The orchestrator does not send requests."""
        shared = [child for _, children, _ in _branches(row) for child in children]
        rounds = row.get("rounds")
        plans: list[tuple[list[str], Mapping[str, Any]]]
        if isinstance(rounds, list):
            plans = [(_names(list_of(one, "spawns")), one) for one in rounds]
        else:
            plans = [(shared, {})] * (1 if rounds is None else whole_of(row, "rounds"))
        if not any(children for children, _ in plans):
            raise ValueError("an orchestrator has no spawns")
        ends = [*after]
        for children, plan in plans:
            waited_ms = delay_ms + self._think_ms(row, plan)
            begun = ends
            ends = [end for child in children for end in self.expand(child, begun, (), waited_ms)]
            delay_ms = 0.0
        return ends

    def _think_ms(self, row: Mapping[str, Any], plan: Mapping[str, Any]) -> float:
        """Returns the time before a round. The time is `think_time_ms`, or a random time around `think_time_ms` if
        `think_time_sigma` is set.
        """
        own = plan.get("think_time_ms")
        median_ms = number_of(plan if own is not None else row, "think_time_ms", 0)
        if row.get("think_time_sigma") is None or not median_ms:
            return median_ms
        drawn = float(self._random.lognormal(np.log(median_ms), number_of(row, "think_time_sigma")))
        least, most = row.get("think_time_min_ms"), row.get("think_time_max_ms")
        drawn = max(drawn, number_of(row, "think_time_min_ms")) if least is not None else drawn
        return min(drawn, number_of(row, "think_time_max_ms")) if most is not None else drawn

    def _add(
        self, turn: Mapping[str, Any], messages: _History, after: Sequence[int], delay_ms: float
    ) -> int:
        fields = {k: turn[k] for k in ("model", "max_tokens", "tools") if turn.get(k) is not None}
        body = {"body": turn["extra"]} if turn.get("extra") else {}
        answers = {place: one for place, one in enumerate(messages) if isinstance(one, int)}
        filled = [_ANSWER if isinstance(one, int) else one for one in messages]
        row = {**fields, **body, "messages": filled}
        self.turns.append(Turn(row, tuple(after), round(delay_ms * NS_PER_MS), answers))
        return len(self.turns) - 1


_ANSWER: Mapping[str, Any] = {"role": "assistant", "content": ""}
"""Placeholder for an answer that the model has not given yet."""
