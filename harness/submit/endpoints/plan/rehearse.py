"""Rehearses every point for a few minutes with the harness's client, and warns early about official runs that will
fail.
"""

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from harness.core.console import say, show
from harness.core.signals import Stopped, stoppable
from harness.core.units import show_ns
from harness.errors import ConfigError, RunInvalid
from harness.results.pages.tables import Cell, Column, aligned
from harness.run.progress import Progress
from harness.submit.endpoints.client.config import Template
from harness.submit.endpoints.plan.alone import alone
from harness.submit.endpoints.plan.child import refuse_unmeasured, run_harness
from harness.submit.endpoints.plan.own import Own, Rates, point_folder, prepare, read_rates
from harness.submit.endpoints.points import Curve, Point
from harness.submit.endpoints.request import DEDICATED, MIN_REHEARSAL_S, Request

EACH_S = 60.0
_START_S = 10.0
_FALLS = 0.98
"""The curve counts as saturated if the throughput at a point, in tokens/s, falls below this share of the throughput at
the next lower concurrency.
"""

_CLIENT = ("client-bound", "client-busy")
"""Codes that a run reports when the client, not the server, limited the run."""

_NO_BOUND = "p99=1h"
"""An SLO that every answer meets; the rehearsal uses it if the request does not set an SLO, because only the rates
matter.
"""


class Rehearsed(NamedTuple):
    point: Point
    rates: Rates | None


def rehearse(
    request: Request, template: Template, curve: Curve, work: Path, each_s: float, *, quiet: bool
) -> int:
    """Rehearses the missing points, and prints a table and warnings. Returns 0 if every point is VALID, otherwise 4.

    Raises a ConfigError if a point cannot be measured at all, because then all other points would fail, too.
    """
    if each_s < MIN_REHEARSAL_S:
        raise ConfigError(f"--each {each_s:g}s is too short: pass at least {MIN_REHEARSAL_S:g}s")
    own = prepare(request, template, work)
    points = [p for p in curve.points if p.offline != DEDICATED]
    with alone(work), stoppable() as stopping, Progress(quiet=quiet) as progress:
        try:
            for number, point in enumerate(points, 1):
                if read_rates(point_folder(work, point.name)) is None:
                    left_s = (len(points) - number + 1) * (each_s + _START_S)
                    progress.series(f"point {number} of {len(points)}: {point.name}", left_s)
                    with stopping.allowed():
                        _run(own, point, work, each_s, progress)
        except Stopped as e:
            say("stopped: repeat `endpoints rehearse` to measure the remaining points")
            return e.exit_status
    found = [Rehearsed(p, read_rates(point_folder(work, p.name))) for p in points]
    show("\n".join(_table(found)))
    for line in warnings(found):
        say(line)
    valid = all(one.rates is not None and one.rates.verdict == "VALID" for one in found)
    return 0 if valid else RunInvalid.exit_status


def _run(own: Own, point: Point, work: Path, each_s: float, progress: Progress) -> None:
    folder = point_folder(work, point.name)
    for old in (folder, folder.with_name(f"{folder.name}.partial")):
        shutil.rmtree(old, ignore_errors=True)
    words = [*own.words, "--concurrency", str(point.concurrency), "--duration", f"{each_s:g}s"]
    words += ["--out", str(folder), "--no-metrics", "--no-report"]
    words += [word for slo in own.slo.split() or [_NO_BOUND] for word in ("--slo", slo)]
    if own.metric and point.is_accuracy:
        words += ["--mode", "both", "--metric", own.metric, "--backend-option", "answer=text"]
    log = folder.with_name(f"{folder.name}.log")
    status = run_harness(words, log, lambda s: progress.show("running", share=min(1.0, s / each_s)))
    refuse_unmeasured(point.name, status, log)
    if status:
        say(f"{point.name} ended with status {status}: see {log}")


def _table(found: Sequence[Rehearsed]) -> Iterator[str]:
    columns = [Column("point"), Column("verdict"), Column("answers/s"), Column("tokens/s")]
    columns += [Column("TTFT p90"), Column("TPOT p90"), Column("score")]
    yield from aligned(columns, [_cells(one) for one in found])


def _cells(one: Rehearsed) -> Sequence[Cell]:
    rates = one.rates
    if rates is None:
        return one.point.name, "failed", "-", "-", "-", "-", "-"
    times = [rates.ttft_ns.get("p90"), rates.tpot_ns.get("p90")]
    numbers = [rates.answers_per_s, rates.tokens_per_s, rates.score]
    answers, tokens, score = ("-" if n is None else f"{n:,.1f}" for n in numbers)
    shown = ["-" if t is None else show_ns(t) for t in times]
    return one.point.name, rates.verdict, answers, tokens, *shown, score


def warnings(found: Sequence[Rehearsed]) -> Iterator[str]:
    """Yields a warning for each point that will fail in the official run, or whose result will be worse than it could
    be.
    """
    for one in found:
        name, rates = one.point.name, one.rates
        if rates is None:
            yield f"{name} has no result, so the official run will fail, too"
            continue
        if rates.verdict != "VALID":
            yield f"{name} is {rates.verdict}: {'; '.join(rates.reasons) or 'no reason recorded'}"
        if any(code in _CLIENT for code in rates.codes):
            yield (
                f"{name}: the client limits the rate, and the official client needs more CPU time than the harness's "
                "client: use more cores"
            )
        if rates.tpot_ns.get("p90") is None:
            yield f"{name} has no TPOT, which MLCommons requires: the server must stream and report tokens"
    for lower, higher in pairwise(found):
        below, above = (one.rates.tokens_per_s if one.rates else None for one in (lower, higher))
        if below and above and above < _FALLS * below:
            yield (
                f"{higher.point.name} has fewer tokens/s than {lower.point.name}: the system is saturated, so declare a "
                "smaller C_max"
            )
