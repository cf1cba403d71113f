"""Declares the options of `machine`."""

import re
from dataclasses import dataclass
from pathlib import Path

from harness.core.config.options import option
from harness.core.config.parse import parse_name, parse_positive_duration_ns
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.explain import option_kinds as kinds
from harness.explain.option_kinds import number, path
from harness.machine.characterise.database import DEFAULT

_WHAT, _HOW, _RESULTS = "points", "time", "results"
POINT_NS, REPEATS = 250 * NS_PER_MS, 5
WITHIN_NS = 240 * NS_PER_S


def parse_regex(text: str) -> str:
    """Checks that a regular expression compiles, and returns it as written."""
    try:
        re.compile(text)
    except re.error as e:
        raise ValueError(f"{text!r} is not a regular expression: {e}") from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    filter: str | None = option(
        "measure only the points whose names match, e.g. 'gemm/.*/int8' or '^memory-copy'",
        parse=parse_regex,
        metavar="REGEX",
        group=_WHAT,
    )
    benchmark: tuple[str, ...] = option(
        "additional benchmark that is not in `list`: module:Class or file.py:Class (repeatable)",
        parse=parse_name,
        many=True,
        group=_WHAT,
    )
    list: bool = option("print the names of the points and measure nothing", flag=True, group=_WHAT)
    missing: bool = option(
        "measure only the points that the database lacks for these versions and settings; read the others from it",
        flag=True,
        group=_WHAT,
    )
    point_ns: int = option(
        "minimum time per point, over all its repetitions (default 250ms)",
        name="point_time",
        parse=parse_positive_duration_ns,
        default=POINT_NS,
        metavar="TIME",
        group=_HOW,
    )
    repeats: int = number(
        "maximum number of repetitions per point; the spread is computed from them",
        _HOW,
        REPEATS,
        1000,
    )
    within_ns: int = option(
        "time limit for all points together; points not started by then are skipped and listed (default 4min)",
        name="within",
        parse=parse_positive_duration_ns,
        default=WITHIN_NS,
        metavar="TIME",
        group=_HOW,
    )
    thorough: bool = option(
        "repeat every point as often as planned, and skip none", flag=True, group=_HOW
    )
    database: Path = path(
        f"database of the points of every machine (default {DEFAULT})",
        "FILE",
        _RESULTS,
        default=DEFAULT,
    )
    out: Path | None = kinds.out("machine-CPU-KEY", _RESULTS)
    source: Path | None = kinds.source(_RESULTS)
    json: bool = kinds.as_json(_RESULTS, "print machine.json, with rates and spreads")
    quiet: bool = kinds.quiet(_RESULTS)
