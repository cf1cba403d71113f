"""The verbs `runs` and `browse`, which list, export, plot or serve the runs in a results folder."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness.cli.parser import Parser
from harness.core.config.options import user_path
from harness.core.console import say, show
from harness.errors import ConfigError, PluginUnavailable, refuse

SHOWN_RUNS = 20
"""Number of rows in a table if --limit is not set. An export contains all runs."""

MOST_RUNS = 2**63 - 1
"""The largest LIMIT that SQLite accepts."""

_PAGES = {
    "history": "the numbers of each workload over time",
    "pareto": "the runs that no other run beats in every respect",
}
"""Maps each type of page to a description of what it contains."""


def runs(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    filters = _filters(options)
    results = user_path(options.results)
    import sqlite3

    from harness.results import database
    from harness.results.pages import run_table

    as_table = options.format in (None, "table") and not options.pages
    limit = options.limit or (SHOWN_RUNS if as_table else None)
    try:
        rows = database.newest_first(results, limit, **filters)
    except sqlite3.Error as e:
        is_locked = "locked" in str(e)
        hint = (
            "another process writes there: try again"
            if is_locked
            else "remove it, and the next run makes a new one"
        )
        raise ConfigError(f"{database.path_in(results)} cannot be read ({e}): {hint}") from None
    if options.format in ("csv", "json"):
        show(database.export(rows, options.format))
    elif rows and options.pages:
        _draw(rows, results, options.pages, standalone=options.standalone)
    elif rows:
        show("\n".join(run_table.run_lines(rows)))
    elif filters:
        say(f"no such run in {results}: `runs` without a filter lists all")
    else:
        say(f"no runs in {results}: make one, or pass --results DIR")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "runs",
        "List, export or plot the runs made here, newest first. MODEL, NAME and HOST may be patterns, e.g. r*.",
        "[options]",
    )
    parser.text("--results", "DIR", "folder of the runs (default results)", default="results")
    parser.text("--model", "MODEL", "only runs of this model")
    parser.text("--backend", "NAME", "only runs on this backend")
    parser.text("--scenario", "NAME", "only runs in this scenario")
    parser.text(
        "--host",
        "HOST",
        "only runs on one machine: this host's name, or the ID in environment.json",
    )
    parser.text("--since", "DATE", "only runs that began at this time or later, e.g. 2026-11-21")
    parser.text("--verdict", "VERDICT", "only runs with this verdict: valid or invalid")
    parser.text("--format", "FORMAT", "print a table (default), csv or json")
    parser.text(
        "--limit", "N", f"at most N runs (default: {SHOWN_RUNS} in a table, else all)", type=int
    )
    for name, about in _PAGES.items():
        parser.text(
            f"--{name}",
            "PAGE",
            f"plot {about}, in an HTML file",
            dest="pages",
            action="append",
            default=[],
            type=partial(_page, name),
        )
    parser.flag("--standalone", "embed the plotting script in the pages")
    return parser


def _page(name: str, text: str) -> tuple[str, str]:
    return name, text


def _draw(
    rows: Sequence[Mapping[str, Any]],
    results: Path,
    pages: Sequence[tuple[str, str]],
    *,
    standalone: bool,
) -> None:
    from harness.results.pages.page import write
    from harness.results.pages.runs.history import history
    from harness.results.pages.runs.pareto import pareto
    from harness.results.pages.runs.rows import reports_in

    for name, text in pages:
        page = user_path(text)
        articles = (history if name == "history" else pareto)(rows, reports_in(results, page))
        if articles:
            script_in = None if standalone else page.parent
            show(str(write(articles, f"{name}: {results}", page, script_in=script_in)))
        else:
            say(f"--{name} {page}: none of these runs is VALID, so there is nothing to draw")


def _filters(options: argparse.Namespace) -> dict[str, str]:
    """Maps columns to patterns, for database.newest_first. Raises a single ConfigError that lists every problem."""
    from harness.core.config.parse import parse_scenario
    from harness.core.shown import private

    columns = ("model", "backend", "scenario", "host", "since", "verdict")
    filters = {n: getattr(options, n) for n in columns if getattr(options, n) is not None}
    problems = []
    if filters.get("host") in private.hosts():
        filters["host"] = str(private.host_id())
    if "scenario" in filters:
        try:
            filters["scenario"] = parse_scenario(filters["scenario"])
        except ValueError as e:
            problems.append(f"--scenario: {e}")
    if "since" in filters:
        try:
            filters["since"] = _as_utc(filters["since"])
        except (ValueError, OverflowError):
            problems.append(f"--since {filters['since']}: write a date, e.g. 2026-11-21")
    if "verdict" in filters:
        filters["verdict"] = filters["verdict"].upper()
        if filters["verdict"] not in ("VALID", "INVALID"):
            problems.append(f"--verdict {options.verdict}: write valid or invalid")
    problems += _output_problems(options)
    refuse(problems)
    return filters


def _output_problems(options: argparse.Namespace) -> Iterator[str]:
    if options.format not in (None, "table", "csv", "json"):
        yield f"--format {options.format}: choose from table, csv, json"
    elif options.format and options.pages:
        yield f"--format {options.format} prints the runs, but a page draws them: drop one"
    pages = [user_path(text) for _, text in options.pages]
    for page in dict.fromkeys(page for page in pages if pages.count(page) > 1):
        yield f"{page} is named for two pages: name a different file for one"
    if options.standalone and not options.pages:
        yield "--standalone needs a page: add --history PAGE or --pareto PAGE"
    if options.limit is not None and not 1 <= options.limit <= MOST_RUNS:
        yield f"--limit {options.limit}: it must be between 1 and {MOST_RUNS:,}"


def _as_utc(text: str) -> str:
    """Returns the time in the format that the database uses. A time without a time zone is taken as UTC, like the times
    in folder names.
    """
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")


def browse(arguments: list[str]) -> int:
    parser = Parser(
        "browse",
        "Serve a folder of results as local web pages: filter and sort runs, compare them, see histories, searches "
        "and machines, and watch a run in progress. The pages do not change the folder.",
        "[FOLDER] [options]",
    )
    parser.text(
        "folder", "FOLDER", "folder of results (default results)", nargs="?", default="results"
    )
    parser.text(
        "--host",
        "HOST",
        "address to listen on (default 127.0.0.1); any other address needs the token in the printed URL",
        default="127.0.0.1",
    )
    parser.text(
        "--port",
        "N",
        "port (default 9470, or a free port if 9470 is in use; 0: a free port)",
        type=int,
    )
    options = parser.parse_args(arguments)
    if options.port is not None and not 0 <= options.port <= 65_535:
        raise ConfigError(f"--port {options.port}: it must be between 0 and 65,535")
    try:
        from harness.browse.app import serve
    except ModuleNotFoundError as e:
        if e.name and e.name.startswith("harness"):
            raise
        from harness.core.extras import how_to_install

        hint = how_to_install("browse")
        raise PluginUnavailable(f"browse needs the module {e.name!r}: {hint}") from None
    return serve(user_path(options.folder), options.host, options.port)
