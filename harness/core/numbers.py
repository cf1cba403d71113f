"""Reads untrusted numbers, e.g. from a JSON file."""

_MOST = 1e300
"""Larger magnitudes are refused. The limit leaves room for a multiplication by a count or a unit."""

_MOST_WHOLE = 1 << 64


def number(value: object) -> float | None:
    """Returns a finite number, or None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MOST else None


def whole(value: object) -> int | None:
    """Returns a whole number of at most 64 bits, or None for other values."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < _MOST_WHOLE else None
