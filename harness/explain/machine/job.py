"""Runs the verb `machine`: measures points, saves each group, prints tables, draws the page."""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core import registry
from harness.core.console import say, show
from harness.core.shown.private import hidden
from harness.core.units import NS_PER_S, counted, show_wait
from harness.errors import ConfigError, RunInvalid
from harness.explain.machine import compare, page, record, tables
from harness.explain.machine.options import MachineOptions
from harness.explain.report import Report
from harness.machine import cores
from harness.machine.characterise import hygiene, session
from harness.machine.characterise.database import Database, Key
from harness.machine.characterise.hygiene import Fact
from harness.machine.characterise.session import Planned
from harness.machine.characterise.timing import Plan
from harness.machine.characterise.versions import versions_of
from harness.results import run_folder
from harness.results.pages import tables as text_tables
from harness.run.progress import Pace, Progress
from harness.run.study import show_result

REPORT = Report(
    "machine", "machine.json", record.SCHEMA, tables.text, page.write, to_json=record.to_json
)

LOG = "libraries.log"
"""Log of the libraries' output."""


def machine(options: MachineOptions) -> int:
    """Returns the exit status."""
    if options.source is not None:
        REPORT.show_again(options.source, as_json=options.json)
        return 0
    points = _chosen(options)
    if options.list:
        show("\n".join(_listed(points)))
        return 0
    plan = Plan(options.repeats, options.point_ns, options.thorough)
    within_s = math.inf if options.thorough else options.within_ns / NS_PER_S
    content = record.new(plan)
    database = Database(options.database)
    keys = {one.name: _key(one, content, plan) for one in points}
    if options.missing:
        content["points"] |= database.read(keys)
    left = [one for one in points if one.name not in content["points"]]
    words = content["machine"]["cpu"], content["fingerprint"][:8]
    with REPORT.measuring(options.out, *words) as new:
        _measure(left, plan, within_s, new.path, content, database, keys, quiet=options.quiet)
    REPORT.show(content, new.final, as_json=options.json)
    is_empty = all("missing" in point for point in content["points"].values())
    return RunInvalid.exit_status if is_empty else 0


def _chosen(options: MachineOptions) -> list[Planned]:
    """Returns the points that match --filter. Raises ConfigError if no point matches."""
    names = [*(name for name, _ in registry.rows("benchmark")), *options.benchmark]
    points = list(session.planned(names, cores.available().threads))
    if options.filter is None:
        return points
    chosen = [one for one in points if re.search(options.filter, one.name)]
    if not chosen:
        raise ConfigError(
            f"--filter {options.filter!r} matches none of the {len(points)} points: choose from the names that --list "
            "prints, which include GPU points only if there is a GPU"
        )
    return chosen


def _listed(points: Sequence[Planned]) -> Iterator[str]:
    for benchmark in dict.fromkeys(one.benchmark for one in points):
        names = [one.name for one in points if one.benchmark == benchmark]
        yield f"{registry.short_name(benchmark)}: {counted(len(names), 'point')}"
        yield from (f"  {name}" for name in names)


def _key(one: Planned, content: Mapping[str, Any], plan: Plan) -> Key:
    settings = " ".join(f"{name}={value}" for name, value in plan._asdict().items())
    return Key(content["fingerprint"], versions_of(one.library), settings)


def _measure(
    points: Sequence[Planned],
    plan: Plan,
    within_s: float,
    folder: Path,
    content: dict[str, Any],
    database: Database,
    keys: Mapping[str, Key],
    *,
    quiet: bool,
) -> None:
    """Adds each result to the content, machine.json and the database as soon as the point is measured."""
    if not quiet:
        for warning in hygiene.warnings([Fact(**fact) for fact in content["hygiene"]]):
            say(f"doubt: {warning}")
        about_s = min(session.expected_s(points, plan), within_s)
        say(f"{counted(len(points), 'point')} to measure, about {show_wait(about_s)}")
    pace, begun_s, started_s = Pace(), time.monotonic(), time.time()
    end_s = begun_s + within_s
    with Progress(quiet=quiet) as progress:
        done = 0
        for event in session.measure(points, plan, folder / LOG, within_s):
            name = event.planned.name
            if event.result is not None:
                content["points"][name] = hidden(event.result)
                # The report is saved first, because saving to the database may fail.
                REPORT.save(content, folder)
                if "missing" not in event.result:
                    database.add([(keys[name], name, event.result)])
                pace.ended(time.monotonic() - begun_s)
                done, begun_s = done + 1, time.monotonic()
            left_s = pace.left_s([0.0] * (len(points) - done))
            if left_s is not None:
                left_s = max(0.0, min(left_s, end_s - time.monotonic()))
            progress.show(name, share=done / len(points), left_s=left_s)
            text = f"point {min(done + 1, len(points))} of {len(points)}: {name}{', about' if left_s is not None else ''}"
            run_folder.note_progress(folder, text, started_s, left_s)
    REPORT.save(content, folder)


def compare_machines(sides: Sequence[Path], *, as_json: bool) -> int:
    """Prints two or more machines side by side, using only their files."""
    shown = compare.tables([REPORT.read(side) for side in sides])
    show_result(
        lambda: {table.key: table.to_json() for table in shown},
        lambda: ["\n\n".join("\n".join(text_tables.lines(table)) for table in shown)],
        as_json=as_json,
    )
    return 0
