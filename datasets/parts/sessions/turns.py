"""Defines the turns of a session, which every reader returns."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.core.units import NS_PER_MS

NOTHING: Mapping[int, int] = MappingProxyType({})


class Blocks(NamedTuple):
    """A prompt that is recorded without its tokens. The tokens are generated from the IDs of the prompt's blocks."""

    scope: int
    """Scope within which the IDs are valid. Within one scope, equal IDs stand for equal tokens."""
    ids: tuple[int, ...]
    block_tokens: int
    tokens: int
    """Number of tokens in the complete prompt. Tokens after the last block belong to this prompt only."""


class Turn(NamedTuple):
    """A request in a session."""

    row: Mapping[str, Any]
    """A line in the form of the dataset `prompts`. The line has no prompt if `blocks` is set."""
    after: tuple[int, ...] = ()
    """Positions in the session of the earlier turns whose answers this turn waits for."""
    delay_ns: int = 0
    answers: Mapping[int, int] = NOTHING
    """Maps a place in `messages` to the turn whose answer belongs there, for answers that were not recorded."""
    blocks: Blocks | None = None


def number_of(row: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Returns a number, which must be at least 0. Raises a ValueError for any other value."""
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ValueError(f"{key} is {value!r:.40}, but must be a number of at least 0")
    return value


def whole_of(row: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = row.get(key, default)
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{key} is {value!r:.40}, but must be a whole number of at least 0")
    return value


def list_of(row: Mapping[str, Any], key: str) -> list[Any]:
    """Returns a list; [] if the key is missing. Raises a ValueError if the value is not a list."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is {value!r:.40}, but must be a list")
    return value


def delay_ns(row: Mapping[str, Any], key: str) -> int:
    """Returns a delay in ns that is recorded in milliseconds."""
    return round(number_of(row, key, 0) * NS_PER_MS)


def ids_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the IDs of a prompt's blocks."""
    ids = list_of(row, "hash_ids")
    if any(type(one) is not int or one < 0 for one in ids):
        raise ValueError("hash_ids must be a list of whole numbers")
    return tuple(ids)
