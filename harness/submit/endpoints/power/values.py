"""Converts a descriptor's values to watts, and replaces missing values with the rules' defaults."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.core.numbers import number
from harness.submit.endpoints.tables import power_defaults

_CORES = re.compile(r"(\d+)[\s-]*core")
_UNITS = {"value_w": 1.0, "value_kw": 1000.0}


class Watts(NamedTuple):
    watts: float
    default: str = ""
    """Section of the rules that defines this default, such as D.3; '' for a value from another source."""


def value_problem(value: object) -> str:
    """Returns the error in a mapping with a value and its source; '' if the mapping is correct."""
    if not isinstance(value, Mapping):
        return "is not a mapping with value_w, source_type and source"
    given = [key for key in (*_UNITS, "value_pj") if value.get(key) is not None]
    if len(given) != 1:
        return "needs exactly one of value_w, value_kw and value_pj"
    stated = number(value[given[0]])
    if stated is None or stated <= 0:
        return f"has {given[0]} {value[given[0]]!r}, which is not a number above 0"
    return _source_problem(value)


def _source_problem(value: Mapping[str, Any]) -> str:
    table = power_defaults()
    kind, source = value.get("source_type"), str(value.get("source") or "")
    if kind not in table["source_types"]:
        return f"has source_type {kind!r}, not one of {', '.join(table['source_types'])}"
    if kind == "mlc_default":
        known = source in table["default_sources"]
        return (
            ""
            if known
            else f"has source {source!r}, not one of D.1 to D.4, which mlc_default needs"
        )
    return "" if source.startswith(("https://", "http://")) else f"has source {source!r}, not a URL"


def watts_of(value: Mapping[str, Any]) -> Watts | None:
    """Converts a mapping with a value and its source to watts; None if the value is an energy per bit."""
    for key, factor in _UNITS.items():
        if value.get(key) is not None:
            default = value["source"] if value.get("source_type") == "mlc_default" else ""
            return Watts(value[key] * factor, default)
    return None


def cpu_default(model: object, cores: int | None) -> Watts | None:
    """Returns a processor's default power; None if neither its name nor its number of cores determines one."""
    table, text = power_defaults()["cpu"], str(model or "").lower()
    if cores is None and (match := _CORES.search(text)):
        cores = int(match[1])
    if cores is None:
        return None
    arm, x86 = table["arm"], table["x86"]
    if _has_word(text, arm["words"]):
        return Watts(arm["w"], table["source"]) if cores <= arm["most_cores"] else None
    if _has_word(text, x86["words"]):
        size = "small_w" if cores <= x86["split_cores"] else "large_w"
        return Watts(x86[size], table["source"])
    return None


def _has_word(text: str, words: list[str]) -> bool:
    return re.search(rf"\b(?:{'|'.join(words)})\b", text) is not None


def accelerator_default(model: object) -> Watts | None:
    table, name = power_defaults()["accelerators"], _plain(model)
    return next((Watts(w, table["source"]) for key, w in table["w"].items() if key in name), None)


def switch_default(model: object, cabling: object) -> Watts | None:
    """Returns the default power of a switch with this cabling; None if the rules do not define one."""
    table, name = power_defaults()["switches"], _plain(model)
    row: Mapping[Any, float] = next((by for key, by in table["w"].items() if key in name), {})
    watts = row.get(str(cabling))
    return None if watts is None else Watts(watts, table["source"])


def card_default() -> Watts:
    table = power_defaults()["network_card"]
    return Watts(table["w"], table["source"])


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name or "").lower())
