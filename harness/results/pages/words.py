"""Shows names from code and values of settings in words that readers of pages understand."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from string import ascii_uppercase
from typing import Any

from harness.core.units import NS_PER_S, show_bytes, show_ns, show_percent


def letter_of(place: int) -> str:
    """Returns the letter of a side or configuration, or its number after the last letter. place: counted from 0."""
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)


_WORDS = {
    **{word: word.upper() for word in ("cpu", "gpu", "id", "itl", "kv", "os", "qsl", "rss", "smt")},
    **{word: word.upper() for word in ("tpot", "ttft", "url")},
    "io": "I/O",
    "loadgen": "LoadGen",
    "mhz": "MHz",
    "python": "Python",
    "sha256": "SHA-256",
}
"""Maps a part of a name to its usual spelling."""

_SHOWN: Mapping[str, Callable[[float], str]] = {
    "bytes": show_bytes,
    "ns": show_ns,
    "s": lambda seconds: show_ns(seconds * NS_PER_S),
}
"""Maps a unit at the end of a name to the function that formats a value with this unit."""

_FLAGS = frozenset(("smt_active", "turbo"))
"""Names for which the values 0 and 1 mean no and yes."""

_JOINT = re.compile(r"_|\.(?=[a-z])")


def words(name: str) -> str:
    """Returns a name from code as words, without the unit at its end: 'issue_delay.p50' -> 'issue delay p50'. Does not
    change words that contain capitals, such as environment variables.
    """
    return " ".join(filter(None, map(_spelled, name.split(" "))))


def _spelled(word: str) -> str:
    if word != word.lower():
        return word
    parts = _JOINT.split(word)
    if unit_of(word):
        parts.pop()
    return " ".join(_WORDS.get(part, part) for part in parts)


def unit_of(name: str) -> str:
    """Returns the unit at the end of a name; '' if the name has no unit or is a rate, such as output_per_s."""
    rest, joint, last = name.rpartition("_")
    return last if joint and last in _SHOWN and not rest.endswith("_per") else ""


def settings(
    content: Mapping[str, Any], prefix: str = "", *, are_shares: bool = False
) -> Iterator[tuple[str, str]]:
    """Yields (setting, value) pairs for readers. A nested setting's name begins with the outer key.

    are_shares: whether the name around the settings says that the values are shares.
    """
    for key, value in content.items():
        if isinstance(value, Mapping):
            shares = key.endswith("shares")
            yield from settings(value, f"{prefix}{words(key)} ", are_shares=shares)
        elif are_shares and isinstance(value, int | float):
            yield f"{prefix}{words(key)}", show_percent(value, 1)
        elif value not in (None, "", []):
            yield f"{prefix}{words(key)}", _text(key, value)


GENERAL = "General"
"""Group of the settings whose name is a single word."""


def groups(content: Mapping[str, Any]) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Returns the (setting, value) pairs of each group. The first word of a nested setting's name is its group."""
    found: dict[str, list[tuple[str, str]]] = {}
    for key, value in content.items():
        name = words(key)
        head = f"{name[:1].upper()}{name[1:]}" if isinstance(value, Mapping) else GENERAL
        for setting, text in settings({key: value}):
            inner = setting.removeprefix(f"{name} ") if head != GENERAL else setting
            found.setdefault(head, []).append((inner, text))
    return found


def _text(key: str, value: object) -> str:
    """Returns a value in words. key: the setting's name, which determines the unit."""
    if isinstance(value, Mapping):
        known = ((name, one) for name, one in value.items() if one is not None)
        return ", ".join(f"{words(name)} {_text(name, one)}".rstrip() for name, one in known)
    if isinstance(value, list):
        joint = "; " if any(isinstance(one, Mapping) for one in value) else ", "
        return joint.join(_text(key, one) for one in value if one != {})
    if isinstance(value, bool) or key in _FLAGS:
        return {"True": "yes", "1": "yes", "1.0": "yes"}.get(str(value), "no")
    if isinstance(value, int | float):
        return _number(key, value)
    return str(value)


def _number(key: str, value: int | float) -> str:
    if unit := unit_of(key):
        return _SHOWN[unit](value)
    if "share" in key and isinstance(value, float):
        return show_percent(value, 1)
    return str(value) if isinstance(value, int) else plain(value)


def plain(value: float) -> str:
    """Formats a number with up to six significant digits and without an exponent."""
    return f"{Decimal(f'{value:.6g}'):f}"
