"""Declares the options that `peak`, `sweep`, `tune`, `overhead` and --repeats add to a run's options."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.core.config.options import option
from harness.core.config.parse import (
    MOST_RUNS,
    bounded,
    parse_key_value,
    parse_name,
    parse_path,
    parse_positive_duration_ns,
    parse_rate,
    positive,
)
from harness.core.units import NS_PER_S, show_percent

DEFAULT_POINTS = 11
"""Number of points in a range of rates that does not specify /N."""

MOST_SHARE = 10.0
"""A sweep refuses rates above this multiple of the peak."""

LEAST_PAIRS = 3
DEFAULT_PAIRS = 6
"""Number of pairs of runs in `overhead`; six pairs make three ABBA sequences."""

OVERHEAD_DURATION_NS = 2_000_000_000
"""Duration of each run in `overhead` if --duration is not set."""

RUNTIMES_DURATION_NS = 1_000_000_000
"""Duration of each run in a sweep over backends if --duration is not set."""

TUNE_DURATION_NS = 1_500_000_000
"""Duration of each run in `tune` if --duration is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatOptions:
    repeats: int | None = option(
        "repeat the run N times, each time in a new process with the next arrival seed, and report the spread",
        parse=bounded(2, MOST_RUNS),
        metavar="N",
        group="repeats",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakOptions:
    probe_ns: int = option(
        "approximate duration of a short run (default 3s); --duration applies to the full runs",
        name="probe",
        parse=parse_positive_duration_ns,
        default=3 * NS_PER_S,
        metavar="TIME",
        group="search",
    )
    write_user_conf: Path | None = option(
        "server: write the rate to a new file, for `run --mlperf --user-conf FILE`",
        parse=parse_path,
        metavar="FILE",
        group="search",
    )


class Rates(NamedTuple):
    """The rates in a sweep."""

    values: tuple[float, ...]
    """Rates in queries/s, or as shares of the peak; ascending."""

    are_shares: bool


def parse_rates(text: str) -> Rates:
    """Parses '10%..110%' (eleven points), '100..2000', '10%..110%/21', '50%,80%,95%', '100,200,400'."""
    begin, dots, rest = text.strip().partition("..")
    if dots:
        end, slash, count = rest.partition("/")
        (first, is_share), (last, is_last_share) = _parse_one(begin), _parse_one(end)
        points = positive(MOST_RUNS)(count) if slash else DEFAULT_POINTS
        if is_share != is_last_share:
            raise ValueError(f"{text!r}: write two rates or two percentages")
        if not first < last or points < 2:
            raise ValueError(f"{text!r}: write it in ascending order, with at least two points")
        step = (last - first) / (points - 1)
        return Rates(tuple(_round(first + i * step) for i in range(points)), is_share)
    parts = [_parse_one(part) for part in text.split(",")]
    kinds = {is_share for _, is_share in parts}
    if len(kinds) > 1:
        raise ValueError(f"{text!r}: write only rates or only percentages")
    return Rates(tuple(sorted({_round(value) for value, _ in parts})), kinds.pop())


def _parse_one(text: str) -> tuple[float, bool]:
    """Parses '80%' to (0.8, True), and '100' to (100.0, False)."""
    plain = text.strip()
    if not plain.endswith("%"):
        return parse_rate(plain), False
    try:
        share = float(plain[:-1]) / 100
    except ValueError:
        raise ValueError(f"{text!r} is not a percentage: write e.g. 10%..110%") from None
    if not 0 < share <= MOST_SHARE:
        raise ValueError(f"{text} must be more than 0 % and at most {show_percent(MOST_SHARE)}")
    return share, True


def _round(value: float) -> float:
    return float(f"{value:.6g}")


COLD, WARM = "cold", "warm"
"""States of a server's prompt cache before a run: empty, or filled with the run's prompts."""


def parse_caches(text: str) -> tuple[str, ...]:
    """Parses '0%,50%,90%', 'cold,warm' or both into the order in which the states are measured. Each warm run follows a
    cold run.
    """
    words = dict.fromkeys(word.strip() for word in text.split(","))
    states = [word for word in (COLD, WARM) if word in words]
    if states == [WARM]:
        raise ValueError(f"{text!r}: a warm run repeats the cold run: write cold,warm")
    shares = sorted({_parse_common(word) for word in words if word not in (COLD, WARM)})
    return (*states, *(f"{share * 100:g}%" for share in shares))


def cache_share(cache: str) -> float | None:
    """Returns the share of a prompt that all prompts have in common; None for `cold` and `warm`."""
    return None if cache in (COLD, WARM) else _parse_common(cache)


def _parse_common(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"{text!r} is not cold, warm or a share from 0% to below 100%")
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    rate: Rates = option(
        "rates to offer, in queries/s or in % of the peak: a list (100,200), or a range of 11 points (100..2000) or N points (100..2000/N) (default 10%..110%)",
        parse=parse_rates,
        default=parse_rates("10%..110%"),
        metavar="RATES",
        group="sweep over rates",
    )
    peak: float | None = option(
        "rate that counts as 100 %, in queries/s (default for percentages: search for this rate as `peak` does)",
        parse=parse_rate,
        metavar="QPS",
        group="sweep over rates",
    )
    cache: tuple[str, ...] = option(
        "language models on a server: at each rate, make a run with an empty prompt cache and a run with a full "
        "prompt cache (cold,warm), or a run for each share of a prompt that is common to all prompts (0%,50%,90%)",
        parse=parse_caches,
        default=(),
        metavar="STATES",
        group="sweep over rates",
    )


MOST_WORKERS = 64


def parse_workers(text: str) -> tuple[int, ...]:
    """Parses '1,2,4' to (1, 2, 4), ascending."""
    return tuple(sorted({positive(MOST_WORKERS)(part.strip()) for part in text.split(",")}))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersOptions:
    workers: tuple[int, ...] = option(
        "with --models: numbers of workers to measure, each with as many queries in flight as workers (default "
        "1,2,3,4)",
        parse=parse_workers,
        default=(1, 2, 3, 4),
        metavar="NUMBERS",
        group="sweep over workers",
    )
    pairs: int = option(
        "with --models: how often to load a model both with and without the cache, where every request is a cache miss "
        "(default 20)",
        parse=bounded(2, MOST_RUNS),
        default=20,
        metavar="N",
        group="sweep over workers",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimesOptions:
    rounds: int = option(
        f"maximum number of rounds in a comparison of backends, 2 to {MOST_RUNS:,}, each with one run of every backend that can "
        "still be the fastest (default 10)",
        parse=bounded(2, MOST_RUNS),
        default=10,
        metavar="N",
        group="sweep over backends",
    )
    time_limit_ns: int | None = option(
        "time limit for all runs, e.g. 5min, but at least two rounds are made (default: 1min, and 10s for each row of "
        "the table)",
        name="time_limit",
        parse=parse_positive_duration_ns,
        metavar="TIME",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    rounds: int = option(
        f"maximum number of rounds, 3 to {MOST_RUNS:,}, each with one LoadGen run per finalist; the search "
        "ends earlier if more rounds cannot change the result (default 10)",
        parse=bounded(3, MOST_RUNS),
        default=10,
        metavar="N",
        group="search",
    )
    finalists: int = option(
        f"number of candidates to judge in LoadGen runs, 2 to {MOST_RUNS:,}, including the default (default 3)",
        parse=bounded(2, MOST_RUNS),
        default=3,
        metavar="N",
        group="search",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOptions:
    pairs: int = option(
        f"number of pairs, each with a run in process and a run on the server, {LEAST_PAIRS} to {MOST_RUNS:,} "
        f"(default {DEFAULT_PAIRS}: ABBA three times)",
        parse=bounded(LEAST_PAIRS, MOST_RUNS),
        default=DEFAULT_PAIRS,
        metavar="N",
        group="overhead",
    )
    no_throughput: bool = option(
        "do not compare the throughput, which takes one run per side", flag=True
    )
    local_backend: str = option(
        "framework that runs the model in process (default ort)",
        parse=parse_name,
        default="ort",
        group="in process",
    )
    threads: int | None = option(
        "threads of the model in process (default: as many as the server reports, else one per core)",
        parse=positive(1024),
        metavar="N",
    )
    local_option: tuple[tuple[str, str], ...] = option(
        "option of the in-process backend (repeatable); --backend-option is for the server",
        parse=parse_key_value,
        many=True,
        metavar="KEY=VALUE",
    )


OVERHEAD_OF_A_RUN = (
    *("backend", "backend_option", "connections", "request_timeout_ns", "header"),
    *("insecure", "no_resend", "yes_load_this_host"),
    *(
        "dataset",
        "dataset_option",
        "data_dir",
        "hook",
        "input_shape",
        "input_range",
        "lengths",
        "performance_count",
        "seed",
    ),
    *("duration_ns", "max_batch", "out", "sign"),
)
"""Fields of RunOptions that `overhead` accepts, in the order of the help text."""
