"""What `peak`, `sweep`, `tune`, `profile` and --repeats take beside a run's own options: the same schema (options.py)."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.core.config.options import option
from harness.core.config.parse import (
    MOST_RUNS,
    bounded,
    parse_path,
    parse_positive_duration_ns,
    parse_rate,
    positive,
)
from harness.core.units import NS_PER_S

DEFAULT_POINTS = 11
MOST_SHARE = 10.0

TUNE_DURATION_NS = 1_500_000_000
"""Duration of each run of `tune` where --duration is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatOptions:
    repeats: int | None = option(
        "so many runs, each in a fresh process with the next arrival seed, and what they spread",
        parse=positive(MOST_RUNS),
        metavar="N",
        group="the load",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakOptions:
    probe_ns: int = option(
        "about how long a probe takes; --duration is that of the runs that confirm (default 3s)",
        name="probe",
        parse=parse_positive_duration_ns,
        default=3 * NS_PER_S,
        metavar="TIME",
        group="the search",
    )
    write_user_conf: Path | None = option(
        "server: the rate found, as a file for --mlperf --user-conf",
        parse=parse_path,
        metavar="FILE",
        group="the search",
    )


class Rates(NamedTuple):
    """values: queries/s, or shares of the peak, ascending."""

    values: tuple[float, ...]
    are_shares: bool


def parse_rates(text: str) -> Rates:
    """'10%..110%' (in eleven steps), '100..2000', '10%..110%/21', '50%,80%,95%', '100,200,400'."""
    begin, dots, rest = text.strip().partition("..")
    if dots:
        end, slash, count = rest.partition("/")
        (first, shares), (last, also) = _parse_one(begin), _parse_one(end)
        points = positive(MOST_RUNS)(count) if slash else DEFAULT_POINTS
        if shares != also:
            raise ValueError(f"{text!r}: both ends are rates, or both are percentages")
        if not first < last or points < 2:
            raise ValueError(f"{text!r}: write it ascending, with at least two points")
        step = (last - first) / (points - 1)
        return Rates(tuple(_round(first + i * step) for i in range(points)), shares)
    parts = [_parse_one(part) for part in text.split(",")]
    kinds = {shares for _, shares in parts}
    if len(kinds) > 1:
        raise ValueError(f"{text!r}: all are rates, or all are percentages")
    return Rates(tuple(sorted({_round(value) for value, _ in parts})), kinds.pop())


def _parse_one(text: str) -> tuple[float, bool]:
    """'80%' -> (0.8, True); '100' -> (100.0, False)."""
    plain = text.strip()
    if not plain.endswith("%"):
        return parse_rate(plain), False
    try:
        share = float(plain[:-1]) / 100
    except ValueError:
        raise ValueError(f"{text!r} is no percentage: write e.g. 10%..110%") from None
    if not 0 < share <= MOST_SHARE:
        raise ValueError(f"{text} must be more than 0 % and at most {MOST_SHARE:.0%}")
    return share, True


def _round(value: float) -> float:
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    rate: Rates = option(
        "offered rates: 10%..110% of the peak (the default, in 11 steps; A..B/N in N), or queries/s",
        parse=parse_rates,
        default=parse_rates("10%..110%"),
        metavar="RATES",
        group="the sweep",
    )
    peak: float | None = option(
        "queries/s that are 100 % (default: searched for, as `peak` does)",
        parse=parse_rate,
        metavar="QPS",
        group="the sweep",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    rounds: int = option(
        "how often LoadGen judges each plan that is left (default 5)",
        parse=bounded(3, MOST_RUNS),
        default=5,
        metavar="N",
        group="the search",
    )
    finalists: int = option(
        "so many plans are judged by LoadGen, the one without tuning among them (default 3)",
        parse=bounded(2, MOST_RUNS),
        default=3,
        metavar="N",
        group="the search",
    )
