"""Reads the scenario, model and plan of a run in progress, for the top of the run's page. The run's folder is not
trusted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from harness.browse import studies
from harness.browse.index import Entry
from harness.browse.live.tiles import opening_tiles
from harness.browse.studies import read
from harness.core.files import reading
from harness.core.units import NS_PER_S, counted, parse_duration_ns, show_wait
from harness.errors import HarnessError
from harness.loadgen.scenario import scenario_named
from harness.results import run_folder
from harness.results.answer import question_of
from harness.results.pages.heading import workload
from harness.results.pages.tiles import Tile
from harness.results.records import FINDINGS
from harness.run.supervisor.metrics.course import Snapshot


class Heading(NamedTuple):
    """Texts from the folder, not escaped."""

    title: str = ""
    """Model, dataset, scenario and backend; for a study, its verb and what it measures. Empty if unknown."""
    question: str = ""
    plan: str = ""
    """Planned length and SLO; empty if unknown."""
    so_far: str = ""
    """The result of a study so far; empty for a run."""
    judged: Sequence[str] = ()
    """Words of the badges of a study."""
    tiles: str = ""
    """The result of a study so far as tiles, as HTML; replaces `so_far`."""
    opening: Sequence[Tile] = ()
    """The tiles of a run before its first query."""


def heading(root: Path, entry: Entry | None, state: Snapshot | None = None) -> Heading:
    """Returns the heading for the page of a run or study. entry: its folder; for None, the heading is empty.

    state: the run's state, which contains the bound and the rate that the harness chose; None before the first query.
    """
    if entry is not None and entry.study is not None:
        about = studies.summary(root, entry)
        return Heading(
            f"{entry.study.capitalize()} · {about.workload}",
            studies.QUESTIONS.get(entry.study, ""),
            so_far=about.outcome,
            judged=about.judged.words,
            tiles=studies.tiles_so_far(root, entry),
        )
    if entry is None or entry.row is None:
        return Heading()
    title = " · ".join(workload(entry.row))
    with suppress(OSError, HarnessError), reading(entry.path):
        # The run writes FINDINGS before it loads the model.
        options = read(root, f"{entry.path}/{FINDINGS}")["asked"]
        known = _with_chosen(options, state)
        # The harness chooses a bound and a rate when it has loaded the model. The question must not change then.
        has_load = any(known.get(name) for name in ("target_qps", "concurrency", "streams"))
        is_asked = not _is_scheduled(known) or bool(known.get("slo") and has_load)
        is_known = is_asked or (state is not None and bool(state.phase))
        question = question_of(known) if is_known else ""
        opening = [] if known.get("mode") == "accuracy" else opening_tiles(known)
        return Heading(title, question, ", ".join(_plan(options, state)), opening=opening)
    return Heading(title)


class Step(NamedTuple):
    text: str = ""
    """Number of a study's current run, and the time left. Not escaped; empty if the study did not write it."""
    share: float | None = None
    """Share of the study's time that has passed; None if its end is unknown."""
    has_ended: bool = False
    """Whether the current run has ended."""


def step(root: Path, path: str) -> Step:
    with suppress(OSError, HarnessError), reading(path):
        noted = read(root, f"{path}/{run_folder.PROGRESS}")
        text, ends_s = str(noted["text"]), noted["ends_s"]
        if ends_s is None:
            return Step(text, has_ended=text.endswith(run_folder.RUN_ENDED))
        left_s, begun_s = max(1.0, ends_s - time()), noted.get("begun_s")
        share = None
        if isinstance(begun_s, int | float) and begun_s < ends_s:
            share = max(0.0, 1 - left_s / (ends_s - begun_s))
        return Step(f"{text} {show_wait(left_s)} left in all", share)
    return Step()


def _with_chosen(options: Mapping[str, Any], state: Snapshot | None) -> Mapping[str, Any]:
    """Adds the bound and the rate that the harness chose to the options that the user set."""
    if state is None:
        return options
    chosen: dict[str, Any] = {}
    for percentile, bound_s in state.totals.bounds_s[:1]:
        chosen["slo"] = f"{percentile}={round(bound_s * NS_PER_S)}ns"
    if _is_scheduled(options) and not options.get("concurrency"):
        chosen["target_qps"] = state.offered
    return {**chosen, **{name: value for name, value in options.items() if value is not None}}


def _is_scheduled(options: Mapping[str, Any]) -> bool:
    return scenario_named(options["scenario"]).scheduled


def _plan(options: Mapping[str, Any], state: Snapshot | None) -> Iterator[str]:
    """Yields the planned length and the SLO. A run in progress has a number of queries instead of a duration.

    options: the run's options by key, as in config.yaml.
    """
    scenario = scenario_named(options["scenario"])
    if options.get("mode") != "accuracy":
        if state is not None and state.planned and state.phase == "performance":
            unit = "sample" if scenario.all_at_once or scenario.by_query else "query"
            yield counted(int(state.planned), unit, "queries" if unit == "query" else None)
        elif (queries := options.get("queries")) is not None:
            unit = "sample" if scenario.all_at_once else "query"
            yield counted(queries, unit, "queries" if unit == "query" else None)
        elif (duration := options.get("duration")) is not None:
            yield f"about {show_wait(parse_duration_ns(duration) / NS_PER_S)}"
    if slos := options.get("slo"):
        yield f"SLO {slos if isinstance(slos, str) else ' '.join(slos)}"
