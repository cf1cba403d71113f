"""Makes schedules for --arrivals: constant, steps, ramp, gamma, and LoadGen's schedule.

The rate may change with time, and the gaps between queries may be random. By the time-rescaling theorem, the rate and
the gaps can be handled separately. First, each query gets a number, which is the sum of random gaps with mean
1. The query arrives when the integral of the rate over time reaches this number.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np

from harness.core.config.parse import bounded, parse_positive_duration_ns, parse_rate
from harness.core.config.schema import MAX_SEED
from harness.core.units import NS_PER_S, counted, write_duration
from harness.errors import ConfigError
from harness.loadgen.arrival_kinds import KINDS
from harness.loadgen.arrivals import MOST_ARRIVALS
from harness.loadgen.schedule import server_schedule_ns
from harness.loadgen.versions import PINNED_VERSION, ROUNDS
from harness.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Parameters of a schedule, as the user wrote them."""

    kind: str
    """One of KINDS."""
    rates: tuple[float, ...]
    """Rates in queries/s."""
    duration_ns: int
    cv: float | None
    """Coefficient of variation of the gaps (standard deviation / mean); only for gamma."""
    seed: int
    """A 64-bit number."""

    def problems(self) -> Iterable[str]:
        _, fewest, most = KINDS[self.kind]
        if not fewest <= len(self.rates) <= most:
            allowed = str(fewest) if fewest == most else f"{fewest} or more"
            yield f"--rate has {counted(len(self.rates), 'rate')}, but {self.kind} needs {allowed}"
        if self.kind == "gamma" and self.cv is None:
            yield "gamma needs --cv"
        if self.kind != "gamma" and self.cv is not None:
            yield f"--cv applies to gamma only: drop it for {self.kind}"
        expected = self.duration_ns / NS_PER_S * sum(self.rates) / len(self.rates)
        if expected > MOST_ARRIVALS:
            yield (
                f"about {expected:,.0f} arrivals would be generated, but at most {MOST_ARRIVALS:,} are allowed: "
                "lower --rate or --duration"
            )

    def after_ns(self) -> Array:
        """Returns (n,) int64 arrival times in ns, ascending; n >= 1. The first time is 0, and the last time is less
        than duration_ns.
        """
        if problems := list(self.problems()):
            raise ConfigError("\n".join(problems))
        if self.kind == "loadgen":
            count = max(1, ceil(self.duration_ns / NS_PER_S * self.rates[0]))
            return server_schedule_ns(count, self.rates[0], self.seed)
        seconds = self.duration_ns / NS_PER_S
        starts, rates = self._pieces(seconds)
        expected = np.concatenate([[0.0], np.cumsum(np.diff(starts) * rates.mean(axis=1))])
        after_s = _inverse(starts, rates, expected, self._numbers(float(expected[-1])))
        after_ns: Array = np.rint(after_s * NS_PER_S).astype(np.int64)
        return after_ns

    def _pieces(self, seconds: float) -> tuple[Array, Array]:
        """Divides the duration into pieces in which the rate changes linearly.

        Returns (pieces + 1,) times in s at the ends of pieces, and (pieces, 2) rates at both ends of each piece.
        """
        if self.kind == "ramp":
            return np.array([0.0, seconds]), np.array([self.rates])
        starts = np.linspace(0.0, seconds, len(self.rates) + 1)
        return starts, np.array([(rate, rate) for rate in self.rates])

    def _numbers(self, expected: float) -> Array:
        """Returns ascending sums of gaps with mean 1. The first sum is 0, and the last sum is below `expected`."""
        if self.kind == "constant":
            return np.arange(max(1, ceil(expected - 1e-9)), dtype=float)
        random = np.random.RandomState([self.seed & 0xFFFFFFFF, self.seed >> 32])
        variance = (self.cv if self.cv is not None else 1.0) ** 2
        numbers = np.zeros(1)
        while numbers[-1] < expected:
            count = ceil(expected - numbers[-1] + 4 * sqrt(expected * variance)) + 16
            gaps = random.gamma(1 / variance, variance, count)
            numbers = np.concatenate([numbers, numbers[-1] + np.cumsum(gaps)])
        return numbers[numbers < max(expected, np.finfo(float).tiny)]

    def title(self) -> str:
        rates = ",".join(f"{rate:.10g}" for rate in self.rates)
        cv = f" --cv {self.cv:g}" if self.cv is not None else ""
        drawn = "" if self.kind == "constant" else f" --seed {self.seed}"
        return (
            f"{self.kind} --rate {rates}{cv} --duration {write_duration(self.duration_ns)}{drawn}"
        )


def _inverse(starts: Array, rates: Array, expected: Array, numbers: Array) -> Array:
    """Returns the times in s at which the integral of the rate reaches each of `numbers`.

    expected: the value of the integral at each time in `starts`.
    """
    piece = np.clip(np.searchsorted(expected, numbers, "right") - 1, 0, len(rates) - 1)
    first, last = rates[piece, 0], rates[piece, 1]
    slope = (last - first) / (starts[piece + 1] - starts[piece])
    left = numbers - expected[piece]
    # The formula solves left = first * t + slope * t^2 / 2 for t, in a form that allows slope 0.
    after_s: Array = starts[piece] + 2 * left / (first + np.sqrt(first**2 + 2 * slope * left))
    return after_s


def lines(after_ns: Array, title: str) -> Iterable[str]:
    """Yields the lines of a file that --arrivals accepts."""
    yield f"# {title}: {counted(len(after_ns), 'arrival')}, seconds after the first"
    for ns in after_ns.tolist():
        yield f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}"


def parse_rates(text: str) -> tuple[float, ...]:
    """Parses rates in queries/s such as '100,200.5', without thousands separators."""
    return tuple(parse_rate(part) for part in text.split(","))


def parse_cv(text: str) -> float:
    try:
        cv = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0.01 <= cv <= 100:
        raise ValueError(f"{text} must be between 0.01 and 100")
    return cv


OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "rate": parse_rates,
    "duration": parse_positive_duration_ns,
    "cv": parse_cv,
    "seed": bounded(0, MAX_SEED),
}


def from_words(kind: str, words: Mapping[str, str | None]) -> Profile:
    """Parses the command line. The default seed is the seed of the round. Raises a ConfigError that lists every
    problem.

    words: maps the names in OPTIONS to their text, or to None if the option is absent.
    """
    values: dict[str, Any] = {"cv": None, "seed": ROUNDS[PINNED_VERSION].seeds.schedule}
    problems = []
    for name, parse in OPTIONS.items():
        text = words[name]
        try:
            values |= {name: parse(text)} if text is not None else {}
        except ValueError as e:
            problems.append(f"--{name}: {e}")
    if problems:
        raise ConfigError("\n".join(problems))
    rates, duration_ns = values.pop("rate"), values.pop("duration")
    profile = Profile(kind=kind, rates=rates, duration_ns=duration_ns, **values)
    problems += profile.problems()
    if kind == "constant" and words["seed"] is not None:
        problems.append("--seed applies to random gaps only: drop it for constant")
    if problems:
        raise ConfigError("\n".join(problems))
    return profile
