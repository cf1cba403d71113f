"""Shows nested settings and readings as rows of texts. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.core.units import NS_PER_S, show_bytes, show_ns, show_percent

_UNITS: Mapping[str, Callable[[float], str]] = {
    "_bytes": show_bytes,
    "_ns": show_ns,
    "_s": lambda seconds: show_ns(seconds * NS_PER_S),
}
"""Maps the end of a name to the function that writes the value with its unit. The name then loses this end."""

_FLAGS = frozenset(("smt_active", "turbo"))
"""Names whose values 0 and 1 mean no and yes."""


def flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns (setting, value) pairs as texts. The name of a nested setting begins with the outer key."""
    rows = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{key} ")
        elif value not in (None, "", []):
            rows.append(_row(f"{prefix}{key}", value))
    return rows


def _row(name: str, value: Any) -> tuple[str, str]:
    if name.rpartition(" ")[2] in _FLAGS:
        return name, {"0": "no", "1": "yes"}.get(_text(value), _text(value))
    for end, show in _UNITS.items():
        if name.endswith(end) and _are_numbers(value):
            return name.removesuffix(end), _text(value, show)
    if "share" in name and isinstance(value, float):
        return name, show_percent(value, 1)
    return name, _text(value)


def _are_numbers(value: Any) -> bool:
    return all(
        isinstance(one, int | float) and not isinstance(one, bool)
        for one in (value if isinstance(value, list) else [value])
    )


def _text(value: Any, show: Callable[[float], str] | None = None) -> str:
    """Returns a value or a list of values in words. show: writes a number with its unit."""
    if isinstance(value, Mapping):
        known = ((key, one) for key, one in value.items() if one is not None)
        return ", ".join(f"{key} {_text(one)}".rstrip() for key, one in known)
    if isinstance(value, list):
        return ", ".join(text for one in value if (text := _text(one, show)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if show is not None:
        return show(value)
    if isinstance(value, float):  # six digits, without a power of ten
        rounded = value if value.is_integer() else float(f"{value:.6g}")
        return np.format_float_positional(rounded, trim="-")
    return "" if value is None else str(value)
