"""Reads sessions in the harness's format. Each line is a session with `turns`, or a single turn as in the dataset
`prompts`.
"""

from collections.abc import Mapping
from typing import Any

from harness.datasets.parts.prompts.keys import KEYS
from harness.datasets.parts.sessions.turns import Turn, delay_ns

_TURN_KEYS = ("id", "after", "delay_ms")

MOST_DELAY_MS = 3_600_000
"""Maximum delay, which is one hour."""


def session(content: Mapping[str, Any]) -> list[Turn]:
    rows = content.get("turns")
    if not isinstance(rows, list) or not rows:
        raise ValueError("a session needs `turns`, a list of at least one turn")
    positions: dict[str, int] = {}
    turns: list[Turn] = []
    for position, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise ValueError("it is not a JSON object")
            _check_keys(row)
            turns.append(Turn(row, _after(row, position, positions), _delay_ns(row)))
            name = str(row.get("id", position))
            if name in positions:
                raise ValueError(f"the id {name!r:.40} appears twice")
        except ValueError as e:
            raise ValueError(f"turn {position + 1}: {e}") from None
        positions[name] = position
    return turns


def _check_keys(row: Mapping[str, Any]) -> None:
    """Raises a ValueError for a key that a turn cannot have, because a misspelt `delay_ms`, for example, would change
    the load.
    """
    if unknown := [key for key in row if key not in (*_TURN_KEYS, *KEYS)]:
        raise ValueError(
            f"the key {unknown[0]!r:.40} is unknown: a turn has {', '.join(_TURN_KEYS)} and the keys of prompts; "
            "put further fields of a request into `body`"
        )


def prompt(content: Mapping[str, Any]) -> list[Turn]:
    return [Turn(content)]


def _after(row: Mapping[str, Any], position: int, positions: Mapping[str, int]) -> tuple[int, ...]:
    names: Any = row.get("after", None if position else [])
    if names is None:
        return (position - 1,)
    if not isinstance(names, list):
        raise ValueError(f"after is {names!r:.40}, but must be a list of ids")
    unknown = [name for name in names if str(name) not in positions]
    if unknown:
        raise ValueError(f"after names {unknown[0]!r:.40}, which is not an earlier turn")
    return tuple(sorted({positions[str(name)] for name in names}))


def _delay_ns(row: Mapping[str, Any]) -> int:
    delay = row.get("delay_ms", 0)
    if (
        isinstance(delay, bool)
        or not isinstance(delay, int | float)
        or not 0 <= delay <= MOST_DELAY_MS
    ):
        raise ValueError(f"delay_ms is {delay!r:.40}, but must be from 0 to {MOST_DELAY_MS:,}")
    return delay_ns(row, "delay_ms")
