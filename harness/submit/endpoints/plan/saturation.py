"""Finds C_max without a latency bound: the largest concurrency that still increases tokens/s."""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.core.files import read_json, write_json
from harness.core.numbers import whole
from harness.core.units import show_percent
from harness.errors import ConfigError
from harness.submit.endpoints.client.config import Template
from harness.submit.endpoints.plan.child import refuse_unmeasured, run_harness
from harness.submit.endpoints.plan.own import Own, prepare, read_rates
from harness.submit.endpoints.request import Request
from harness.submit.endpoints.tables import limits

FILE = "saturation.json"
EACH_S = 20.0
GROWS = 1.05
"""The curve counts as still growing if tokens/s increase by at least this factor when the concurrency doubles. If the
concurrency grows by the square root of 2, the square root of this factor is enough.
"""

MOST = 1 << 17
_NO_BOUND = "p99=1h"

Rate = Callable[[int], float | None]
"""Maps a concurrency to tokens/s; None if the server does not respond at this concurrency."""


class Saturation(NamedTuple):
    c_max: int
    rates: Mapping[int, float | None]
    """Tokens/s at every measured concurrency."""

    def lines(self) -> Iterator[str]:
        shown = [
            f"{at:,}: {'requests fail' if rate is None else f'{rate:,.0f} tokens/s'}"
            for at, rate in sorted(self.rates.items())
        ]
        yield f"requests in flight: {', '.join(shown)}"
        yield (
            f"above {self.c_max:,} requests, tokens/s grow by less than {show_percent(GROWS - 1)} per doubling: C_max is "
            f"{self.c_max:,}"
        )


def saturation(rate: Rate, first: int, most: int) -> Saturation | None:
    """Doubles the concurrency as long as tokens/s grow, then tries half a step down and half a step up. Returns None if
    the run at `first` fails.
    """
    rates: dict[int, float | None] = {first: rate(first)}

    def grows(low: int, high: int, least: float) -> bool:
        for at in (low, high):
            if at not in rates:
                rates[at] = rate(at)
        below, above = rates[low], rates[high]
        return below is not None and above is not None and above >= least * below

    if rates[first] is None:
        return None
    at = first
    while at * 2 <= most and grows(at, at * 2, GROWS):
        at *= 2
    lower, upper = round(at / math.sqrt(2)), round(at * math.sqrt(2))
    if at > first and not grows(lower, at, math.sqrt(GROWS)) and rates[lower] is not None:
        at = lower
    elif upper <= most and grows(at, upper, math.sqrt(GROWS)):
        at = upper
    return Saturation(at, rates)


def known_saturation(folder: Path) -> int | None:
    """Returns the result of a finished search; None if no search has finished."""
    path = folder / FILE
    if not path.is_file():
        return None
    found = whole(read_json(path).get("c_max"))
    if found is None:
        raise ConfigError(f"c_max in {path} is not a whole number: remove the file, and plan again")
    return found


def find_saturation(
    request: Request,
    template: Template,
    work: Path,
    folder: Path,
    look: Callable[[int, float], None],
) -> Saturation:
    """Measures until tokens/s stop growing, and keeps finished runs. Raises a ConfigError if the server does not
    respond.

    look: called with a concurrency and the seconds since the start of its run.
    """
    own = prepare(request, template, work)
    folder.mkdir(parents=True, exist_ok=True)

    def rate(concurrency: int) -> float | None:
        return _measured(own, folder, concurrency, lambda s: look(concurrency, s))

    first = limits()["least_c_max"]
    found = saturation(rate, first, MOST)
    if found is None:
        raise ConfigError(
            f"requests fail with {first} requests in flight: see {folder / f'r{first}.log'}, or pass --c-max"
        )
    rates = {str(at): value for at, value in found.rates.items()}
    write_json(folder / FILE, {"c_max": found.c_max, "tokens_per_s": rates})
    return found


def _measured(
    own: Own, folder: Path, concurrency: int, look: Callable[[float], None]
) -> float | None:
    out = folder / f"r{concurrency}"
    found = read_rates(out)
    if found is None:
        for old in (out, out.with_name(f"{out.name}.partial")):
            shutil.rmtree(old, ignore_errors=True)
        words = [*own.words, "--concurrency", str(concurrency), "--duration", f"{EACH_S:g}s"]
        words += ["--slo", _NO_BOUND, "--mode", "performance", "--out", str(out)]
        log = folder / f"{out.name}.log"
        refuse_unmeasured(
            out.name, run_harness([*words, "--no-metrics", "--no-report"], log, look), log
        )
        found = read_rates(out)
    if found is None or "requests-failed" in found.codes:
        return None
    return found.tokens_per_s
