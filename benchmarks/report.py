"""Prints a row of the table on one line, and saves it as benchmarks/results/<name>.json."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.command import HERE, Noise
from benchmarks.pairs import (
    MIN_PAIRS,
    Estimate,
    Limit,
    Pairs,
    Verdict,
    compared,
    difference,
    estimate,
    neighbours,
    ratio,
    same,
    verdict,
)
from harness.machine.host import fingerprint

QUICK_PAIRS = 3
RESULTS = HERE / "results"
_SIGN = {"at most": "≤", "at least": "≥"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table. found and aa: in `unit`, or ratios. neutral: the ideal A/A value.

    decided: set if the verdict does not follow from `found` and `aa`.
    beside: the yardstick and other numbers, printed on the same line. runs: all measurements.
    """

    name: str
    what: str
    unit: str
    limit: Limit
    bar: float
    found: Estimate
    aa: Estimate | None = None
    neutral: float = 0.0
    decided: Verdict | None = None
    beside: Mapping[str, float | str] = field(default_factory=dict)
    runs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.decided is not None:
            return self.decided
        assert self.aa is not None
        return verdict(self.found, self.aa, self.limit, self.bar, self.neutral)

    def line(self) -> str:
        parts = [
            f"{self.name}: {_show(self.found)} {self.unit}".rstrip(),
            f"must be {_SIGN[self.limit]} {_number(self.bar)}: {self.verdict}",
        ]
        if self.aa is not None:
            parts.append(f"A/A {_show(self.aa)}")
        parts += [f"{name} {_text(value)}" for name, value in self.beside.items()]
        return "; ".join(parts)


def absolute(
    name: str,
    what: str,
    unit: str,
    bar: float,
    values: Sequence[float],
    beside: Mapping[str, Sequence[float]],
) -> Row:
    """Returns a row for values that must stay below `bar`. beside: other values from the same runs."""
    return Row(
        name=name,
        what=what,
        unit=unit,
        limit="at most",
        bar=bar,
        found=estimate(values),
        aa=neighbours(values, difference),
        beside={key: estimate(seen).value for key, seen in beside.items()},
        runs={"values": values, **beside},
    )


def ratio_of(
    name: str,
    what: str,
    limit: Limit,
    bar: float,
    seen: Pairs,
    beside: Mapping[str, float | str],
    more_runs: Mapping[str, Any] | None = None,
) -> Row:
    """Returns a row for the ratio of the harness to a yardstick, measured in pairs. more_runs: other measurements to
    keep.
    """
    return Row(
        name=name,
        what=what,
        unit="",
        limit=limit,
        bar=bar,
        found=compared(seen, ratio),
        aa=same(seen, ratio),
        neutral=1.0,
        beside=beside,
        runs={"harness": seen.a, "bare": seen.b, **(more_runs or {})},
    )


def save(row: Row, noise: Noise, *, quick: bool) -> None:
    """Saves a row. A quick run uses a separate file, so that it never replaces a full run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{row.name}{'.quick' if quick else ''}.json"
    content = {
        **asdict(row),
        "verdict": row.verdict,
        "others_cpu_shares": noise.shares,
        "runs_repeated_for_noise": noise.repeated,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def machine() -> Mapping[str, Any]:
    """Returns the facts about the machine that the numbers depend on, without host name and paths."""
    facts = fingerprint()
    kept = {key: facts[key] for key in ("machine", "system", "packages", "harness")}
    return {**kept, "machine": {k: v for k, v in kept["machine"].items() if k != "host"}}


def _show(found: Estimate) -> str:
    return f"{_number(found.value)} [{_number(found.low)}, {_number(found.high)}]"


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def command(
    rows: Mapping[str, Callable[[int, Noise], Iterable[Row]]],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None = None,
) -> int:
    """Parses --rows and --quick, then measures, prints and saves each row. Returns 4 if a row misses its bar."""
    parser.add_argument(
        "--rows",
        metavar="NAME,...",
        default=",".join(rows),
        help=f"rows to measure, from {', '.join(rows)}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_PAIRS} pairs instead of {MIN_PAIRS}: a first impression, saved as *.quick.json",
    )
    options = parser.parse_args(arguments)
    names = options.rows.split(",")
    unknown = [name for name in names if name not in rows]
    if unknown:
        parser.error(f"no row named {unknown[0]!r}: choose from {', '.join(rows)}")
    verdicts = []
    for name in names:
        noise = Noise()
        for row in rows[name](QUICK_PAIRS if options.quick else MIN_PAIRS, noise):
            print(f"{row.line()}; {noise.text()}", flush=True)
            save(row, noise, quick=options.quick)
            verdicts.append(row.verdict)
    return 4 if "missed" in verdicts else 0
