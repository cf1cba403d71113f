"""Lists a plan's points with their passes, queries, hours and states, and the requirements that the plan does not meet."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.results.pages.tables import Cell, Column, aligned
from harness.submit.endpoints import runs
from harness.submit.endpoints.client.config import Template, client_config, passes
from harness.submit.endpoints.plan import own
from harness.submit.endpoints.points import Curve, Point
from harness.submit.endpoints.regions import MARGIN, REQUIRED, ULTRA_LOW, WORDS
from harness.submit.endpoints.request import DEDICATED, ELECTED, Request
from harness.submit.endpoints.tables import drafters, limits
from harness.submit.plan.matrix import show_s

START_S = 10.0
"""Time that the client needs to start and to end, in s; added to each point's expected time."""

_LONG_S = 6 * 3600.0
_MOST_SEED = (1 << 63) - 1
"""Largest seed that servers with signed 64-bit seeds, such as vLLM, accept."""


class Row(NamedTuple):
    point: Point
    passes: int
    queries: int
    rate_per_s: float | None
    """Answers/s from a run of the client or from a rehearsal; None if neither exists."""
    expected_s: float | None
    state: str
    why: str
    asked: Mapping[str, Any]
    """The client's configuration for the point."""


def rows(request: Request, template: Template, curve: Curve, work: Path) -> list[Row]:
    samples = template.samples(request)
    return [_row(request, template, point, samples, work) for point in curve.points]


def _row(request: Request, template: Template, point: Point, samples: int, work: Path) -> Row:
    rate = _rate(work, point)
    count = passes(point, samples, rate)
    queries = count * samples
    if request.is_agentic:  # the template of an agentic request sets the length
        queries = template.trajectories() or samples
        count = max(1, queries // samples)
    report = runs.next_attempt(work, point.name).report
    asked = client_config(request, template, point, queries, report)
    attempt = runs.newest(work, point.name)
    if (
        attempt is not None and not request.is_agentic
    ):  # the passes of a finished run stay the same even if a newer rate exists
        asked, queries = _kept(asked, attempt, point, samples)
        count = queries // samples
    state, why = runs.state(work, point.name, asked)
    expected_s = None
    # The rate says nothing about a trajectory, which consists of many answers and waits for its tools.
    if rate and not request.is_agentic:
        scored = request.of_round.accuracy_samples if request.of_round else samples
        expected_s = START_S + (queries + scored * point.is_accuracy) / rate
    return Row(point, count, queries, rate, expected_s, state, why, asked)


def _kept(
    asked: dict[str, Any], attempt: runs.Attempt, point: Point, samples: int
) -> tuple[dict[str, Any], int]:
    """Returns the configuration and the number of queries that the client issues with it. If the newest attempt makes
    enough whole passes, returns that attempt's number of queries.
    """
    runtime = asked["settings"]["runtime"]
    queries = int(runtime.get("n_samples_to_issue", samples))
    made = _made(attempt)
    least = 1 if point.offline == DEDICATED else limits()["least_passes"]
    if made is None or made % samples or made < least * samples:
        return asked, queries
    runtime["n_samples_to_issue"] = made
    return asked, made


def _made(attempt: runs.Attempt) -> int | None:
    path = attempt.folder / runs.RUN
    if not path.is_file():
        return None
    asked = attempt.run().get("asked")
    settings = asked.get("settings") if isinstance(asked, Mapping) else None
    runtime = settings.get("runtime") if isinstance(settings, Mapping) else None
    made = runtime.get("n_samples_to_issue") if isinstance(runtime, Mapping) else None
    return made if isinstance(made, int) else None


def _rate(work: Path, point: Point) -> float | None:
    found = own.read_rates(own.point_folder(work, point.name))
    return found.answers_per_s if found is not None else None


def lines(request: Request, curve: Curve, found: Sequence[Row]) -> Iterator[str]:
    """Yields the regions, one line per point, the seeds, and the total time."""
    bands = curve.regions.bands
    names = [ULTRA_LOW, *REQUIRED[1:], MARGIN]
    shown = [f"{WORDS[n]} {curve.regions.ultra_low if n == ULTRA_LOW else bands[n]}" for n in names]
    yield f"C_max       {curve.c_max}"
    yield f"regions     {', '.join(shown)}"
    seeds = request.seeds
    yield f"seeds       set {seeds.id} of {seeds.cohort}, for cohort {request.cohort}"
    yield f"offline     {_offline(request, curve)}"
    yield ""
    columns = [Column("point"), Column("region"), Column("accuracy"), Column("state")]
    columns += [
        Column("passes", "count"),
        Column("queries", "count"),
        Column("window"),
        Column("time"),
    ]
    yield from aligned([*columns, Column("why")], [_cells(row) for row in found])
    left = [row for row in found if row.state != runs.DONE]
    known_s = sum(row.expected_s or 0.0 for row in left)
    unknown = sum(row.expected_s is None for row in left)
    more = (
        f" and {unknown} of unknown length: `endpoints rehearse` measures them" if unknown else ""
    )
    yield f"{len(left)} of {len(found)} points remain, about {show_s(known_s)}{more}"


def _offline(request: Request, curve: Curve) -> str:
    if request.offline_kind == ELECTED:
        return f"elected: the point at C_max, r{curve.c_max}"
    if request.offline_kind == DEDICATED:
        return f"dedicated: {curve.points[-1].name}, all samples at once"
    return "none: the benchmark is agentic"


def _cells(row: Row) -> Sequence[Cell]:
    point = row.point
    region = WORDS.get(point.region, "Offline") + (
        " and Offline" if point.offline == ELECTED else ""
    )
    time = "?" if row.expected_s is None else show_s(row.expected_s)
    accuracy = "yes" if point.is_accuracy else "-"
    window = f"{point.least_s:.0f} s"
    return point.name, region, accuracy, row.state, row.passes, row.queries, window, time, row.why


def notes(
    request: Request, template: Template, curve: Curve, found: Sequence[Row]
) -> Iterator[str]:
    """Yields the requirements that are not met, and the decisions that only a person can make."""
    yield from _of_curve(request, curve)
    for row in found:
        if row.expected_s is not None and row.expected_s > _LONG_S:
            least = row.passes == limits()["least_passes"]
            why = (
                f", because the rules require at least {row.passes} passes of the data set"
                if least
                else ""
            )
            yield f"{row.point.name} takes {show_s(row.expected_s)}{why}"
    if all(row.rate_per_s is None for row in found):
        yield (
            "no rate is known, so every point has the minimum number of passes: run `endpoints rehearse` before "
            "`endpoints run`"
        )
    if request.seeds.seeds["model_seed"] > _MOST_SEED:
        yield (
            "the seed set's model_seed is above 2^63 - 1, so servers with signed seeds, such as vLLM, refuse it as a "
            "request's `seed`: ask MLCommons how to send it"
        )
    if not request.tokenizer:
        yield "without --tokenizer the client looks for the tokenizer by the model's name, and `witness` counts no tokens"
    if not drafters(request.model):
        yield f"speculative decoding is not possible: {request.model} has no approved drafter"
    if request.division == "serviced":
        yield "in the serviced division, MLCommons runs the client: these runs are a rehearsal"
    if request.rehearsal:
        yield "this is a rehearsal: MLCommons' checker refuses its model's name and its durations"
    yield from template.problems(request)


def _of_curve(request: Request, curve: Curve) -> Iterator[str]:
    if curve.c_max < limits()["least_c_max"]:
        yield f"a C_max of {curve.c_max} needs the approval of MLCommons' working group"
    if request.offline_kind == DEDICATED and curve.points[-1].concurrency < curve.c_max:
        yield (
            f"the dedicated Offline point has {curve.points[-1].concurrency:,} requests, fewer than C_max {curve.c_max:,}: "
            f"ask MLCommons, or pass --offline {ELECTED}"
        )
