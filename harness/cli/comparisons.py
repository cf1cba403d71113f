"""The verbs that compare finished runs: compare and rerun."""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.cli.parser import Parser
from harness.cli.run_options import RUN_FOLDER, add_trust, published
from harness.core.console import say, show
from harness.errors import ConfigError, refuse
from harness.results.pages.words import letter_of

if TYPE_CHECKING:
    from harness.core.config.run_config import RunConfig
    from harness.results.compare.limits import Limit

_ROUNDS = 5
"""Number of runs per configuration if the configurations alternate. With five runs per side, the interval extends 1.5
standard deviations to either side.
"""

_MOST_ROUNDS = 1000


def compare(arguments: list[str]) -> int:
    parser = Parser(
        "compare",
        "Compare finished runs: how each number changed, and whether the change is more than noise. A side is a run's "
        "folder, or several runs of one configuration: the folder of --repeats, a,b,c, or a pattern. Every other side "
        "is compared with the first.",
        "SIDE SIDE... [options]",
    )
    parser.text(
        "sides",
        "SIDE",
        "a run, or runs of one configuration, e.g. results/a 'results/b-*'",
        nargs="+",
    )
    _add_gate(parser)
    parser.text(
        "--price",
        "PRICES",
        "hourly price of each side's machine, all in one currency, e.g. 1.20/h,0.85/h",
    )
    parser.flag("--json", "print JSON instead of a table")
    options = parser.parse_args(arguments)
    if len(options.sides) < 2:
        raise ConfigError("compare needs two sides: name a second run")
    prices = _prices(options.price, len(options.sides))
    return _compared(options.sides, _gate(options), prices, as_json=options.json)


def _prices(text: str | None, sides: int) -> list[float | None]:
    from harness.results.compare.report import parse_prices

    try:
        return [None] * sides if text is None else [*parse_prices(text, sides)]
    except ValueError as e:
        raise ConfigError(f"--price: {e}") from None


def _add_gate(parser: Parser) -> None:
    parser.text(
        "--fail-on",
        "LIMIT",
        "exit with status 6 if a number gets worse by more than the limit, e.g. p99:+5% or throughput:-3%; with "
        "`undecided`, exit with status 6 if noise hides whether another limit is broken or, without other limits, if the "
        "comparison is undecided (repeatable)",
        action="append",
        default=[],
    )
    parser.text(
        "--noise",
        "PERCENT",
        "difference between runs of one configuration that counts as noise (default: measured from the runs, "
        "which needs several per side)",
    )
    parser.flag(
        "--optimised",
        "treat the other sides as changed or optimised versions of the first: model file, precision and largest "
        "batch may differ; each side needs an accuracy, whose change is reported as the price, unless every --fail-on "
        "limits a number other than the accuracy",
    )


class _Gate(NamedTuple):
    """The limits in --fail-on, and the noise below which a change is ignored."""

    limits: "Sequence[Limit]"
    noise: float | None
    """Changes up to this share, such as 0.05, count as noise. None means that the noise is measured."""
    optimised: bool


def _gate(options: argparse.Namespace) -> _Gate:
    from harness.results.compare.limits import parse_limit

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
    refuse(problems)
    return _Gate(limits, noise, options.optimised)


def _compared(
    sides: Sequence[str],
    gate: _Gate,
    prices: Sequence[float | None],
    *,
    as_json: bool,
    keep: Callable[[Sequence[str], Sequence[str]], None] | None = None,
) -> int:
    """Prints how each side differs from the first side. Returns the program's exit status.

    keep: a function that is called with the printed table and each comparison's verdict.
    """
    from harness.results.compare import limits as compare_limits
    from harness.results.compare import report as compare_report
    from harness.results.compare.compare import compare as compare_two
    from harness.results.compare.finished import sides_of
    from harness.results.run_files import reading_run

    first, *others = sides_of(sides, prices)
    comparisons = []
    for other in others:
        with reading_run(", ".join(sides)):
            chosen = [limit.name for limit in gate.limits]
            comparison = compare_two(first, other, gate.noise, chosen, optimised=gate.optimised)
        comparisons.append((comparison, compare_limits.judge(comparison, gate.limits)))
    if as_json:
        show(json.dumps([compare_report.to_json(*one) for one in comparisons], indent=2))
    else:
        tables = [
            "\n".join(compare_report.lines(*one, letter_of(number)))
            for number, one in enumerate(comparisons, start=1)
        ]
        show("\n\n".join(tables))
        if keep is not None:
            verdicts = [
                compare_report.verdict(one, letter_of(number))
                for number, (one, _) in enumerate(comparisons, start=1)
            ]
            keep(tables, verdicts)
    return compare_limits.exit_status(comparisons)


def rerun(arguments: list[str]) -> int:
    parser = Parser(
        "rerun",
        "Run the configuration of a finished run again on this machine, and compare the two runs. With several "
        "runs, run their configurations again in turns, and compare the new runs.",
        "RUN... [options]",
    )
    parser.text("runs", "RUN", RUN_FOLDER, nargs="+")
    parser.text(
        "--repeats",
        "N",
        f"runs of each configuration, in turns (default {_ROUNDS} for several RUNs, 1 for one)",
    )
    parser.text(
        "--out",
        "DIR",
        "result folder (default RUN-rerun, or RUN-turns for several runs; for a run in a study, next to the study)",
    )
    add_trust(parser, "allow this code, named in the run's configuration, to run")
    _add_gate(parser)
    parser.flag("--quiet", "print no progress and no notices")
    options = parser.parse_args(arguments)
    gate = _gate(options)
    rounds = _rounds(options.repeats, len(options.runs))
    # Links are resolved now, because the next run changes `latest`.
    runs = [Path(run).resolve() for run in options.runs]
    configs = [_config_again(path, text) for path, text in zip(runs, options.runs, strict=True)]
    _announce(options.runs, configs, options.trust or (), quiet=options.quiet)
    if rounds > 1 or len(runs) > 1:
        return _in_turns(runs, configs, rounds, options, gate)
    from dataclasses import replace

    from harness.cluster.job import execute

    out = Path(options.out) if options.out else _new_folder(runs[0], "rerun")
    status = execute(replace(configs[0], out=out), quiet=options.quiet)
    if not out.is_dir():
        return status  # because the run stopped or died, and its message already says so
    show("")
    return _compared([str(runs[0]), str(out)], gate, [None, None], as_json=False)


def _rounds(text: str | None, runs: int) -> int:
    if text is None:
        return 1 if runs == 1 else _ROUNDS
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_ROUNDS):
        raise ConfigError(f"--repeats {text}: write a number of runs from 1 to {_MOST_ROUNDS:,}")
    return int(text)


def _config_again(run: Path, named: str) -> "RunConfig":
    from harness.core.config.run_config import from_plain
    from harness.results.compare.finished import read
    from harness.results.resolved import without_folder

    config = from_plain(read(run).config, str(run / "config.yaml"))
    if bare := without_folder(config):
        raise ConfigError(published(named, bare))
    return config


def _announce(
    runs: Sequence[str], configs: "Sequence[RunConfig]", trusted: Sequence[str], *, quiet: bool
) -> None:
    """Refuses code that the user has not named, and announces the code that will run."""
    from harness.core.config import code

    named = {run: code.values_of(config) for run, config in zip(runs, configs, strict=True)}
    refuse([line for run, values in named.items() for line in code.untrusted(run, values, trusted)])
    for run, values in named.items():
        if not quiet:
            say(code.announcement(run, values))


def _in_turns(
    runs: Sequence[Path],
    configs: "Sequence[RunConfig]",
    rounds: int,
    options: argparse.Namespace,
    gate: _Gate,
) -> int:
    """Makes new runs with alternating configurations, and compares them.

    If there is only one configuration, compares its new runs with its finished run.
    """
    from harness.cluster.job import measure
    from harness.search.turns import keep, run_in_turns

    out = Path(options.out) if options.out else _new_folder(runs[0], "turns")
    status, made = run_in_turns(configs, rounds, out, measure, quiet=options.quiet)
    if not all(made):
        return status
    sides = [",".join(map(str, side)) for side in made]
    if len(sides) == 1:
        sides.insert(0, str(runs[0]))
    judged = _compared(
        sides, gate, [None] * len(sides), as_json=False, keep=partial(keep, out, options.runs)
    )
    return max(status, judged)


def _new_folder(run: Path, word: str) -> Path:
    """Returns a path that does not exist yet, next to the run and named after the run and `word`.

    If the run belongs to a study, the path is next to the study, because the study's seal covers all files inside it.
    """
    from harness.core.files import free_name
    from harness.results.run_folder import is_study
    from harness.results.seal.digests import SEAL

    around = [one for one in run.parents if is_study(one) or (one / SEAL).is_file()]
    if not around:
        return free_name(run.with_name(f"{run.name}-{word}"))
    return free_name(around[-1].with_name(f"{around[-1].name}-{run.name}-{word}"))
