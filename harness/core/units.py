"""Reads and writes numbers with units: durations, rates and sizes."""

import re
from collections.abc import Sequence
from fractions import Fraction

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

LONGEST_NS = 366 * 24 * 3600 * NS_PER_S
"""Maximum duration, one leap year, which fits into LoadGen's 64-bit time in ns."""

NS_PER_UNIT = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
BYTES_PER_UNIT = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_MOST_DIGITS = 9
_LARGEST_FIRST = ("h", "min", "s", "ms", "us", "ns")


def parse_duration_ns(text: str) -> int:
    """Parses '15ms' to 15_000_000. Refuses a number without a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|min|h)", text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration: write it with its unit, e.g. 500us, 15ms, 2s"
        )
    ns = round(Fraction(match[1]) * NS_PER_UNIT[match[2]])
    if ns > LONGEST_NS:
        raise ValueError(f"{text[:40]!r} is longer than a year")
    return ns


def write_duration(ns: int) -> str:
    """Returns the shortest exact text that `parse_duration_ns` reads back as `ns`."""
    for unit in _LARGEST_FIRST:
        if ns % NS_PER_UNIT[unit] == 0 and (ns or unit == "s"):
            return f"{ns // NS_PER_UNIT[unit]}{unit}"
    raise ValueError(f"{ns!r} ns is not a whole number")


def show_duration(ns: int) -> str:
    """Formats a time as the user wrote it: '50 ms'."""
    return re.sub(r"(?<=\d)(?=[a-z])", " ", write_duration(ns))


def show_ns(ns: float) -> str:
    """Formats a time with three significant digits and a suitable unit: '1.23 ms' for 1234567."""
    units = (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US))
    return _scaled(ns, units) or f"{ns:.0f} ns"


def show_wait(seconds: float) -> str:
    """Formats a remaining time of at least 1 s: '35 s', '22 min', '3 h 05 min'."""
    if seconds < 99.5:
        return f"{max(1.0, seconds):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def show_rate(per_s: float) -> str:
    """Formats a rate with thousands separators or, below 100, with three significant digits: '12,345', '3.21'."""
    return f"{per_s:,.0f}" if abs(per_s) >= 100 else _three_digits(per_s)


def show_percent(share: float, digits: int = 0, *, signed: bool = False) -> str:
    """Formats a share with a space before the percent sign, as in the SI: '12 %' for 0.123."""
    return f"{share * 100:{'+' if signed else ''},.{digits}f} %"


def show_share(share: float, digits: int = 1) -> str:
    """Formats a share from 0 to 1 with enough digits to distinguish it from 0 % and 100 %: '99.96 %' for 0.99955."""
    while digits < _MOST_DIGITS and 0 < share < 1 and _is_whole(share, digits):
        digits += 1
    return show_percent(share, digits)


def _is_whole(share: float, digits: int) -> bool:
    return round(share * 100, digits) in (0, 100)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Formats a number and a noun: '1 run', '2,000 runs'. plural: required if the plural is not the noun plus s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def show_bytes(count: float) -> str:
    """Formats bytes in decimal units with three significant digits: '317 MB' for 317e6."""
    return _scaled(count, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))) or f"{count:.0f} B"


def parse_bytes(text: str) -> int:
    """Parses '1.5GB' to 1_500_000_000, in the decimal units that `show_bytes` uses. Refuses a number without a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(B|kB|MB|GB)", text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a size: write it with its unit, e.g. 800kB, 200MB, 1.5GB"
        )
    return round(Fraction(match[1]) * BYTES_PER_UNIT[match[2]])


def show_si(value: float, unit: str) -> str:
    """Formats a value with three significant digits and a suitable unit prefix: '1.23 mJ' for (0.00123, 'J')."""
    prefixes = (("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("u", 1e-6))
    units = [(f"{prefix}{unit}", size) for prefix, size in prefixes]
    return _scaled(value, units) or f"{_three_digits(value / 1e-9)} n{unit}"


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Formats the value in the largest suitable unit; returns "" if every unit is too large."""
    for unit, size in units:
        if abs(value) >= 0.9995 * size:
            return f"{_three_digits(value / size)} {unit}"
    return ""


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if 0 < magnitude < 0.0995:
        return f"{value:.3g}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
