"""Compares the runs of two clients on one server, and computes ratios with intervals, verdicts, and the rows that a
benchmark prints.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paced import CYCLE
from benchmarks.pairs import Estimate
from benchmarks.report import RESULTS, machine

BAR = 0.01
"""Differences above this share are *beyond*."""

NUMBERS = ("TTFT", "TPOT", "system_tps", "tps_per_user")
"""The means of TTFT and TPOT, and the two rates that MLCommons publishes."""

RESAMPLES = 2000


class Seen(NamedTuple):
    """One run of one client. Times are (n,) arrays in ns, with one entry per request in issue order."""

    ttft_ns: np.ndarray[Any, Any]
    tpot_ns: np.ndarray[Any, Any]
    latency_ns: np.ndarray[Any, Any]
    system_tps: float
    lag_ns: float
    """Median time between an answer and the next request."""
    server_ns: float
    """Mean TTFT according to the server's own clock."""
    others: float
    """Share of the machine's CPU time that other processes used."""

    def numbers(self, drawn: np.ndarray[Any, Any] | None = None) -> Mapping[str, float]:
        """Returns the four numbers for all requests, or only for the drawn requests.

        The rate of the drawn requests follows from their mean latency, because at a fixed concurrency the rate is
        inversely proportional to the mean latency.
        """
        pick = slice(None) if drawn is None else drawn
        ttft, tpot, latency = (a[pick] for a in (self.ttft_ns, self.tpot_ns, self.latency_ns))
        return {
            "TTFT": float(ttft.mean()),
            "TPOT": float(tpot.mean()),
            "system_tps": self.system_tps * float(self.latency_ns.mean() / latency.mean()),
            "tps_per_user": 1e9 / float(np.percentile(tpot, 90, method="lower")),
        }


def ratios(runs: Mapping[str, Sequence[Seen]]) -> Mapping[str, Estimate]:
    """Returns our value divided by the other client's value for each number, with a bootstrap interval over the passes
    of every run.
    """
    generator = np.random.default_rng(0)

    def drawn(one: Seen) -> Mapping[str, float]:
        passes = np.arange(len(one.ttft_ns)).reshape(-1, CYCLE)
        return one.numbers(passes[generator.integers(0, len(passes), len(passes))].ravel())

    draws = [
        _ratio({side: [drawn(one) for one in many] for side, many in runs.items()})
        for _ in range(RESAMPLES)
    ]
    value = _ratio({side: [one.numbers() for one in many] for side, many in runs.items()})
    found = {}
    for name in NUMBERS:
        low, high = np.percentile([draw[name] for draw in draws], [2.5, 97.5])
        found[name] = Estimate(value[name], float(low), float(high))
    return found


def _ratio(numbers: Mapping[str, Sequence[Mapping[str, float]]]) -> Mapping[str, float]:
    """Returns the geometric mean over all pairs of runs."""
    pairs = list(zip(numbers["ours"], numbers["theirs"], strict=True))
    return {
        name: math.exp(sum(math.log(a[name] / b[name]) for a, b in pairs) / len(pairs))
        for name in NUMBERS
    }


def same_side(runs: Mapping[str, Sequence[Seen]]) -> float:
    """Returns the largest relative difference between two runs of the same client, which is the noise of a run."""
    found = [[one.numbers() for one in many] for many in runs.values()]
    return max(abs(a[name] / b[name] - 1) for a, b in found for name in NUMBERS)


def judged(found: Estimate) -> str:
    """Returns `within`, `beyond`, or `open` if the interval contains the bar."""
    if found.low >= 1 - BAR and found.high <= 1 + BAR:
        return "within"
    return "beyond" if found.high < 1 - BAR or found.low > 1 + BAR else "open"


def line(
    concurrency: int, runs: Mapping[str, Sequence[Seen]], found: Mapping[str, Estimate]
) -> str:
    """Returns a point's row: the ratios, and the times that explain the ratios."""
    shown = [f"{name} {e.value:.4f} [{e.low:.4f}, {e.high:.4f}]" for name, e in found.items()]
    mean = {side: [sum(v) / len(many) for v in zip(*map(_times, many), strict=True)] for side, many in runs.items()}  # fmt: skip
    words = ("TTFT", "TPOT", "lag", "after")
    times = [
        f"{word} {a / 1e6:.3f} and {b / 1e6:.3f} ms"
        for word, a, b in zip(words, mean["ours"], mean["theirs"], strict=True)
    ]
    others = max(one.others for many in runs.values() for one in many)
    noise = f"two runs of a client differ by ≤ {same_side(runs):.2%}, others' CPU ≤ {others:.0%}"
    return f"{concurrency:>3} in flight: {', '.join(shown)}; ours and theirs: {', '.join(times)}; {noise}"


def _times(one: Seen) -> tuple[float, ...]:
    numbers = one.numbers()
    return numbers["TTFT"], numbers["TPOT"], one.lag_ns, numbers["TTFT"] - one.server_ns


def summary(found: Mapping[int, Mapping[str, Estimate]]) -> str:
    verdicts = {
        f"{name} at {concurrency}": judged(estimate)
        for concurrency, row in found.items()
        for name, estimate in row.items()
    }
    parts = [f"{sum(v == 'within' for v in verdicts.values())} of {len(verdicts)} within {BAR:.0%}"]
    for word, text in (("beyond", "beyond"), ("open", "not decidable here")):
        names = [name for name, verdict in verdicts.items() if verdict == word]
        parts += [f"{text}: {', '.join(names)}"] if names else []
    return "; ".join(parts)


def save(points: Sequence[Mapping[str, Any]], seconds: float) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {
        "name": "endpoints-clients",
        "bar": BAR,
        "seconds": seconds,
        "points": points,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / "endpoints-clients.json").write_text(text, encoding="utf-8")


def row_of(
    concurrency: int, runs: Mapping[str, Sequence[Seen]], found: Mapping[str, Estimate]
) -> Mapping[str, Any]:
    """Returns a point as it is saved: the ratios, and the numbers of each run."""
    return {
        "concurrency": concurrency,
        "ratios": {name: {**asdict(e), "verdict": judged(e)} for name, e in found.items()},
        "runs": {
            side: [
                {
                    **one.numbers(),
                    "lag_ns": one.lag_ns,
                    "server_ttft_ns": one.server_ns,
                    "others_cpu_share": round(one.others, 4),
                }
                for one in many
            ]
            for side, many in runs.items()
        },
    }
