"""The verbs that look at finished runs: compare, rerun, runs, report; and arrivals."""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.console import say, show
from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.analysis.compare_report import Limit


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def compare(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness compare",
        description="What changed between finished runs, and whether that is more than noise. A "
        "side is a folder, or several runs of one configuration: a,b,c or a pattern. Each side is "
        "compared with the first one.",
    )
    parser.add_argument("sides", nargs="+", metavar="SIDE", help="e.g. results/a 'results/b-*'")
    _add_gate(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if len(options.sides) < 2:
        raise ConfigError("compare needs two sides: name another run")
    limits, noise = _gate(options)
    return _compared(options.sides, limits, noise, as_json=options.json)


def _add_gate(parser: Parser) -> None:
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit 6 where a number got worse by more, e.g. p99:+5%% or throughput:-3%% (repeatable)",
    )
    parser.add_argument(
        "--noise",
        metavar="PERCENT",
        help="how far runs of one configuration lie apart (default: measured from several runs a "
        "side; else assumed)",
    )


def _gate(options: argparse.Namespace) -> "tuple[list[Limit], float | None]":
    from harness.analysis.compare_report import parse_limit

    problems, limits, noise = [], [], None
    for text in options.fail_on:
        try:
            limits.append(parse_limit(text))
        except ValueError as e:
            problems.append(f"--fail-on: {e}")
    if options.noise is not None:
        try:
            noise = float(options.noise.strip().removesuffix("%")) / 100
        except ValueError:
            noise = -1.0
        if not 0 <= noise <= 100:
            problems.append(f"--noise {options.noise}: write a percentage from 0 up, e.g. 5%")
    if problems:
        raise ConfigError("\n".join(problems))
    return limits, noise


def _compared(
    sides: Sequence[str], limits: "Sequence[Limit]", noise: float | None, *, as_json: bool
) -> int:
    from harness.analysis import compare_report
    from harness.analysis.compare import compare as compared
    from harness.analysis.finished import side

    first, *others = [side(text) for text in sides]
    found = []
    for other in others:
        comparison = compared(first, other, noise)
        found.append((comparison, compare_report.judge(comparison, limits)))
    if as_json:
        show(json.dumps([compare_report.to_json(*one) for one in found], indent=2))
    else:
        show("\n\n".join("\n".join(compare_report.lines(*one)) for one in found))
    return compare_report.exit_status(found)


def rerun(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness rerun",
        description="The configuration of a finished run once more, here, and the two compared.",
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder, e.g. results/latest")
    parser.add_argument("--out", metavar="DIR", help="default: beside RUN, called RUN-rerun")
    _add_gate(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress and no notices")
    options = parser.parse_args(arguments)
    limits, noise = _gate(options)
    from dataclasses import replace

    from harness.analysis.finished import read
    from harness.config import from_plain
    from harness.run import execute

    before = Path(options.run).resolve()  # `latest` will point elsewhere
    plain = read(before).config
    out = Path(options.out) if options.out else _free(before)
    config = replace(from_plain(plain, str(before / "config.yaml")), out=out)
    status = execute(config, quiet=options.quiet)
    if not out.is_dir():
        return status  # it was stopped or died, and said so
    show("")
    return _compared([str(before), str(out)], limits, noise, as_json=False)


def _free(before: Path) -> Path:
    """The first of RUN-rerun, RUN-rerun-2, ... that is not there."""
    for number in range(1, 100):
        suffix = "-rerun" if number == 1 else f"-rerun-{number}"
        out = before.with_name(before.name + suffix)
        if not out.exists() and not out.with_name(out.name + ".partial").exists():
            return out
    raise ConfigError(f"{before}-rerun and 99 more exist: pass --out")


def report(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness report",
        description="A page with plots of a finished run, or of several on one page, from files.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder")
    parser.add_argument("--out", metavar="FILE", help="default: report.html in the run's folder")
    parser.add_argument("--standalone", action="store_true", help="one file, with the script in it")
    options = parser.parse_args(arguments)
    from harness.analysis.report import write

    folders = [Path(run) for run in options.runs]
    out = Path(options.out) if options.out else None
    show(str(write(folders, out, standalone=options.standalone)))
    return 0


def arrivals(arguments: list[str]) -> int:
    from harness import profiles

    parser = Parser(
        prog="python -m harness arrivals",
        description="Write a schedule for --scenario server --arrivals FILE. KIND is one of: "
        + "; ".join(f"{kind}: {about}" for kind, about in profiles.KINDS.items()),
    )
    parser.add_argument("kind", choices=tuple(profiles.KINDS), metavar="KIND")
    parser.add_argument(
        "--rate", required=True, metavar="QPS[,QPS...]", help="queries/s, without separators"
    )
    parser.add_argument("--duration", default="10s", metavar="TIME", help="default 10s")
    parser.add_argument("--cv", metavar="CV", help="gamma: standard deviation / mean of the gaps")
    parser.add_argument("--seed", metavar="N", help="default: the MLPerf round's")
    parser.add_argument("--out", required=True, metavar="FILE", help="must not exist yet")
    options = parser.parse_args(arguments)
    words = {name: getattr(options, name) for name in profiles.OPTIONS}
    profile, out = profiles.from_words(options.kind, words), Path(options.out)
    after_ns = profile.after_ns()
    try:
        with out.open("x", encoding="ascii") as file:
            file.writelines(f"{line}\n" for line in profiles.lines(after_ns, profile.title()))
    except FileExistsError:
        raise ConfigError(f"{out} exists: nothing is overwritten; pass another --out") from None
    except OSError as e:
        raise ConfigError(f"{out} cannot be written: {e.strerror}: pass another --out") from e
    show(f"{out}: {len(after_ns):,} arrivals in {after_ns[-1] / 1e9:,.3f} s")
    return 0


SHOWN_RUNS = 20
"""In a table; exports have all."""


def runs(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness runs",
        description="The runs made here, newest first. MODEL, NAME and HOST may be patterns (r*).",
    )
    parser.add_argument("--results", default="results", metavar="DIR", help="default: results")
    parser.add_argument("--model", metavar="MODEL", help="only of this model")
    parser.add_argument("--backend", metavar="NAME", help="only on this backend")
    parser.add_argument("--scenario", metavar="NAME", help="only in this scenario")
    parser.add_argument("--host", metavar="HOST", help="only on this machine")
    parser.add_argument("--since", metavar="DATE", help="only begun then or later, e.g. 2026-11-21")
    parser.add_argument("--verdict", metavar="VERDICT", help="valid or invalid")
    parser.add_argument(
        "--format", default="table", metavar="FORMAT", help="table (default), csv or json"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help=f"default: {SHOWN_RUNS} in a table, else all"
    )
    options = parser.parse_args(arguments)
    chosen = _chosen(options)
    import sqlite3

    from harness import database, table

    results = Path(options.results)
    limit = options.limit or (SHOWN_RUNS if options.format == "table" else None)
    try:
        rows = database.newest_first(results, limit, **chosen)
    except sqlite3.Error as e:
        raise ConfigError(_unreadable(database.path_in(results), str(e))) from None
    if options.format != "table":
        show(database.export(rows, options.format))
    elif rows:
        show("\n".join(table.run_lines(rows)))
    elif chosen:
        say(f"no such run in {options.results}: `runs` without a filter lists all")
    else:
        say(f"no runs in {options.results}: make one, or pass --results DIR")
    return 0


def _unreadable(path: Path, told: str) -> str:
    hint = "remove it, runs make a new one"
    if "locked" in told:
        hint = "another process writes there: try again"
    return f"{path} cannot be read: {told}" + ("" if "update" in told else f": {hint}")


def _chosen(options: argparse.Namespace) -> dict[str, str]:
    """What database.newest_first is to filter by; every problem at once."""
    from harness.parse import parse_scenario

    names = ("model", "backend", "scenario", "host", "since", "verdict")
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    problems = []
    if "scenario" in given:
        try:
            given["scenario"] = parse_scenario(given["scenario"])
        except ValueError as e:
            problems.append(f"--scenario: {e}")
    if "since" in given:
        try:
            given["since"] = _as_utc(given["since"])
        except ValueError:
            problems.append(f"--since {given['since']}: write a date, e.g. 2026-11-21")
    if "verdict" in given:
        given["verdict"] = given["verdict"].upper()
        if given["verdict"] not in ("VALID", "INVALID"):
            problems.append(f"--verdict {options.verdict}: write valid or invalid")
    if options.format not in ("table", "csv", "json"):
        problems.append(f"--format {options.format}: choose from table, csv, json")
    if options.limit is not None and options.limit < 1:
        problems.append(f"--limit {options.limit}: it must be at least 1")
    if problems:
        raise ConfigError("\n".join(problems))
    return given


def _as_utc(text: str) -> str:
    """As the database has it; a time without a zone is UTC, as in the folders' names."""
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")
