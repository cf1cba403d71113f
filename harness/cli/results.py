"""The verbs that look at finished runs: compare, rerun, report; and arrivals."""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.config.options import Parser
from harness.core.console import show
from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.results.compare.report import Limit


def compare(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness compare",
        description="What changed between finished runs, and whether that is more than noise. A "
        "side is a folder, or several runs of one configuration: a,b,c or a pattern. Each side is "
        "compared with the first one.",
    )
    parser.add_argument("sides", nargs="+", metavar="SIDE", help="e.g. results/a 'results/b-*'")
    _add_gate(parser)
    parser.add_argument(
        "--price",
        metavar="PRICES",
        help="what an hour of each side's machine costs, in any one currency, e.g. 1.20/h,0.85/h",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if len(options.sides) < 2:
        raise ConfigError("compare needs two sides: name another run")
    limits, noise = _gate(options)
    prices = _prices(options.price, len(options.sides))
    return _compared(options.sides, limits, noise, prices, as_json=options.json)


def _prices(text: str | None, sides: int) -> list[float | None]:
    from harness.results.compare.report import parse_prices

    try:
        return [None] * sides if text is None else [*parse_prices(text, sides)]
    except ValueError as e:
        raise ConfigError(f"--price: {e}") from None


def _add_gate(parser: Parser) -> None:
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit 6 where a number got worse by more, e.g. p99:+5% or throughput:-3% (repeatable)",
    )
    parser.add_argument(
        "--noise",
        metavar="PERCENT",
        help="how far runs of one configuration lie apart (default: measured from several runs a "
        "side; else assumed)",
    )


def _gate(options: argparse.Namespace) -> "tuple[list[Limit], float | None]":
    from harness.results.compare.report import parse_limit

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
    sides: Sequence[str],
    limits: "Sequence[Limit]",
    noise: float | None,
    prices: Sequence[float | None],
    *,
    as_json: bool,
) -> int:
    from harness.results.compare import report as compare_report
    from harness.results.compare.compare import compare as compared
    from harness.results.compare.finished import side
    from harness.results.compare.run_files import fitting

    first, *others = [side(text, price) for text, price in zip(sides, prices, strict=True)]
    found = []
    for other in others:
        with fitting(", ".join(sides)):
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

    from harness.core.config.run_config import from_plain
    from harness.results.compare.finished import read
    from harness.run.supervisor.job import execute

    before = Path(options.run).resolve()  # `latest` will point elsewhere
    plain = read(before).config
    out = Path(options.out) if options.out else _free(before)
    config = replace(from_plain(plain, str(before / "config.yaml")), out=out)
    status = execute(config, quiet=options.quiet)
    if not out.is_dir():
        return status  # it was stopped or died, and said so
    show("")
    return _compared([str(before), str(out)], limits, noise, [None, None], as_json=False)


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
    from harness.results.pages.report import report as made

    folders = [Path(run) for run in options.runs]
    out = Path(options.out) if options.out else None
    show(str(made(folders, out, standalone=options.standalone)))
    return 0


def arrivals(arguments: list[str]) -> int:
    from harness.loadgen.arrival_kinds import KINDS

    parser = Parser(
        prog="python -m harness arrivals",
        description="Write a schedule for --scenario server --arrivals FILE. KIND is one of: "
        + "; ".join(f"{kind}: {about}" for kind, about in KINDS.items()),
    )
    parser.add_argument(
        "kind", choices=tuple(KINDS), metavar="KIND", help=f"e.g. {next(iter(KINDS))}"
    )
    parser.add_argument(
        "--rate", required=True, metavar="QPS[,QPS...]", help="queries/s, without separators"
    )
    parser.add_argument("--duration", default="10s", metavar="TIME", help="default 10s")
    parser.add_argument("--cv", metavar="CV", help="gamma: standard deviation / mean of the gaps")
    parser.add_argument("--seed", metavar="N", help="default: the MLPerf round's")
    parser.add_argument("--out", required=True, metavar="FILE", help="must not exist yet")
    options = parser.parse_args(arguments)
    from harness.loadgen import arrival_profiles

    words = {name: getattr(options, name) for name in arrival_profiles.OPTIONS}
    profile, out = arrival_profiles.from_words(options.kind, words), Path(options.out)
    after_ns = profile.after_ns()
    try:
        _write_new(out, arrival_profiles.lines(after_ns, profile.title()))
    except FileExistsError:
        raise ConfigError(f"{out} exists: nothing is overwritten; pass another --out") from None
    except OSError as e:
        raise ConfigError(f"{out} cannot be written: {e.strerror}: pass another --out") from e
    show(f"{out}: {len(after_ns):,} arrivals in {after_ns[-1] / 1e9:,.3f} s")
    return 0


def _write_new(path: Path, lines: Iterable[str]) -> None:
    """Whole or not at all: half a schedule would be replayed as if it were one."""
    with path.open("x", encoding="ascii") as file:
        try:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
        except BaseException:
            path.unlink()
            raise
