"""Compares the hot paths of two checkouts of the harness in alternating runs.

python benchmarks/commits.py OLD_CHECKOUT [--rows NAME,...] [--pairs N]

OLD_CHECKOUT is a folder with another commit (`git worktree add`). Each row runs the same command in both folders, in
the order A B B A, and compares the measured process's CPU time per query, or the latency. A row is worse if the
interval of the ratio new / old lies above both 1 and the A/A interval.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import command, pairs
from benchmarks.pairs import Estimate, ratio

_PERFORMANCE = ("--mode", "performance", "--no-report")


class Measurement(NamedTuple):
    """A row of the comparison: a command, and the number in its result that is compared."""

    words: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], float]


def cpu_us(result: Mapping[str, Any]) -> float:
    """Returns the measured process's CPU time per query (in Offline, per sample), in us."""
    return float(result["measured_process"]["cpu_s_per_query"]) * 1e6


def p50_us(result: Mapping[str, Any]) -> float:
    return float(result["latency_ns"]["p50"]) / 1e3


def _words(*scenario: str, backend: str = "ort") -> tuple[str, ...]:
    return ("--scenario", *scenario, "--backend", backend, *_PERFORMANCE)


_STREAM = ("single-stream", "--queries", "100000")
ROWS: Mapping[str, Measurement] = {
    "stream-null-p50": Measurement(_words(*_STREAM, backend="null"), p50_us),
    "stream-null-cpu": Measurement(_words(*_STREAM, backend="null"), cpu_us),
    "stream-digits-p50": Measurement(_words("single-stream", "--queries", "20000"), p50_us),
    "server-null-cpu": Measurement(
        _words("server", "--target-qps", "20000", "--queries", "60000", backend="null"), cpu_us
    ),
    "server-digits-cpu": Measurement(
        _words("server", "--target-qps", "5000", "--queries", "15000"), cpu_us
    ),
    "offline-digits-cpu": Measurement(_words("offline", "--queries", "60000"), cpu_us),
}


def measure(checkout: Path, row: Measurement) -> float:
    return row.value(command.harness(*row.words, checkout=checkout).result)


def _line(name: str, found: Estimate, same: Estimate) -> str:
    worse = found.low > max(1.0, same.high)
    return (
        f"{name:<20}{found.value:>7.3f} [{found.low:.3f}, {found.high:.3f}]  A/A "
        f"{same.value:.3f} [{same.low:.3f}, {same.high:.3f}]  {'worse' if worse else 'not worse'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout of another commit")
    parser.add_argument("--rows", default=",".join(ROWS), metavar="NAME,...")
    parser.add_argument("--pairs", type=int, default=pairs.MIN_PAIRS, metavar="N")
    options = parser.parse_args()
    for name in options.rows.split(","):
        new, old = (
            partial(measure, at, ROWS[name]) for at in (command.ROOT, options.old.resolve())
        )
        seen = pairs.alternate(new, old, options.pairs)
        print(_line(name, pairs.compared(seen, ratio), pairs.same(seen, ratio)), flush=True)


if __name__ == "__main__":
    main()
