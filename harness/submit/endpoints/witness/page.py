"""Shows what the witness found, in one line per point."""

from collections.abc import Iterator
from pathlib import Path

from harness.core.units import show_ns
from harness.errors import ConfigError
from harness.results.pages.tables import Cell, Column, aligned
from harness.submit.endpoints import runs
from harness.submit.endpoints.client.config import Template
from harness.submit.endpoints.points import Curve, Point
from harness.submit.endpoints.request import Request
from harness.submit.endpoints.witness.known import known
from harness.submit.endpoints.witness.report import Witnessed, witness


def judge(
    request: Request,
    template: Template,
    curve: Curve,
    work: Path,
    only: str | None,
    *,
    trust: bool = False,
) -> tuple[list[str], bool]:
    """Judges the finished points. Returns the lines, and whether `pack` will accept every judged point.

    trust: whether the tokenizer's code may run.
    """
    names = [point.name for point in curve.points]
    if only is not None and only not in names:
        raise ConfigError(f"--only {only}: choose from {', '.join(names)}")
    size, beforehand = template.samples(request), known(request, template)
    found: list[tuple[Point, Witnessed]] = []
    waiting: list[str] = []
    for point in curve.points:
        attempt = runs.newest(work, point.name)
        if only not in (None, point.name):
            continue
        if attempt is None or runs.state_of(attempt)[0] != runs.DONE:
            waiting.append(point.name)
            continue
        outcome = witness(
            work, attempt, point.concurrency, size, request.tokenizer, beforehand, trust=trust
        )
        found.append((point, outcome))
    lines = list(_lines(found))
    if waiting:
        lines.append(f"not judged, because they have no finished run: {', '.join(waiting)}")
    return lines, bool(found) and all(one.passed for _, one in found)


def _lines(found: list[tuple[Point, Witnessed]]) -> Iterator[str]:
    columns = [Column("point"), Column("numbers"), Column("equal"), Column("tokens/s")]
    columns += [
        Column("tokens/s per user"),
        Column("TPOT p90"),
        Column("window"),
        Column("own verdict"),
    ]
    yield from aligned(columns, [_cells(point, one) for point, one in found])
    for point, one in found:
        for row in one.disagreements:
            yield (
                f"{point.name}: {row.name} is {_shown(row.published)} in result_summary.json, but "
                f"{_shown(row.recomputed)} according to the events"
            )
        if one.tokens_absent:
            yield f"{point.name}: tokens were not recomputed: {one.tokens_absent}"
        for doubt in one.doubts:
            yield f"{point.name}: {doubt.code}: {doubt.text}"


def _shown(value: float | None) -> str:
    return "missing" if value is None else f"{value:,.10g}"


def _cells(point: Point, one: Witnessed) -> list[Cell]:
    rates = [one.metrics.get(name) for name in ("system_tps", "tps_per_user")]
    tokens, per_user = ("-" if rate is None else f"{rate:,.1f}" for rate in rates)
    tpot = "-" if not rates[1] else show_ns(1e9 / rates[1])
    own = str(one.own.get("verdict", "-"))
    equal = sum(row.agrees for row in one.rows)
    return [
        point.name,
        len(one.rows),
        equal,
        tokens,
        per_user,
        tpot,
        str(one.steady["status"]),
        own,
    ]
