"""Reads untrusted numbers, such as numbers from a JSON file."""

_MOST = 1e300
"""Numbers with a larger magnitude are refused. The limit leaves room to multiply a number by a count or a unit without
overflow.
"""

_MOST_WHOLE = 1 << 64


def number(value: object) -> float | None:
    """Returns the value as a finite number, or None if the value is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MOST else None


def whole(value: object) -> int | None:
    """Returns the value as a whole number of at most 64 bits, or None if the value is not such a number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < _MOST_WHOLE else None
