"""`python -m harness submit plan|run|pack|check`: the words of the command line."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.core.config.options import Parser, add_options, option_key, user_path, visible_fields
from harness.core.config.run_config import RunConfig
from harness.core.console import say, show
from harness.errors import ConfigError, RunInvalid
from harness.submit.rules.tree.round_names import DEFAULT, known_rounds
from harness.submit.rules.tree.tree import is_folder

ABOUT = """\
usage: python -m harness submit VERB ...

  plan    the runs a submission needs: what each takes, what is there, what is missing
  run     make the missing ones; again after an interruption, it goes on
  pack    the round's folder out of the runs, checked
  check   what the rules forbid in a submission folder, and what MLCommons' checkers say

each has its own --help; docs/submit.md walks through them
"""
WORK = "submission"
REQUEST = (
    "division",
    "submitter",
    "system",
    "category",
    "benchmark",
    "folder",
    "scenarios",
    "peak",
)


def submit(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        show(ABOUT.rstrip())
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(VERBS)}"
        raise ConfigError(f"submit: no verb {verb!r}: {hint}")
    return VERBS[verb](rest)


def _add_round(parser: Parser, default: str | None = DEFAULT) -> None:
    about = f"{', '.join(known_rounds())} (default {DEFAULT})"
    parser.add_argument("--round", default=default, metavar="NAME", help=about)


def _request_parser(verb: str, about: str, own: str = "") -> Parser:
    """Every verb before `check` takes the whole request; WORK keeps it, so later none is needed.

    own: the verb's own options, for the usage.
    """
    parser = Parser(
        prog=f"python -m harness submit {verb}",
        description=f"{about} What is asked for is kept in WORK/request.yaml: later --work is enough.",
        allow_abbrev=False,
        usage=f"%(prog)s {own}\n       [--work DIR] [what to submit] [options of a run]",
    )
    group = parser.add_argument_group("what to submit")
    group.add_argument(
        "--work", default=WORK, metavar="DIR", help=f"for request and runs (default {WORK})"
    )
    for name, about_it in (
        ("division", "closed or open"),
        ("submitter", "the name of the folder"),
        ("system", "the name of the folder"),
        ("category", "edge, datacenter, or datacenter,edge"),
        ("benchmark", "of the round, e.g. resnet"),
        ("folder", "open: what the model is called (default: the benchmark's name)"),
        ("scenarios", "SingleStream,Offline,... (default: those the category requires)"),
        (
            "peak",
            "Server's rate from what `peak` found: its folder (or --target-qps, --slo, --user-conf)",
        ),
    ):
        group.add_argument(f"--{name}", metavar="NAME", help=about_it)
    _add_round(parser, None)
    parser.add_argument(
        "--rehearsal",
        action="store_true",
        default=None,
        help="any data and model; short, too, with --duration; never a submission",
    )
    add_options(parser, RunConfig)
    return parser


def _request(options: argparse.Namespace) -> Any:
    """The request of WORK; the one of the command line is kept there, where there is none."""
    from harness.submit.plan.request import FILE
    from harness.submit.plan.request_file import given_request, read_request, write_request

    values, work = vars(options), user_path(options.work)
    keys = {option_key(f) for f in visible_fields(RunConfig)}
    runs = {k: v for k, v in values.items() if k in keys and v is not None}
    own = {k: values[k] for k in (*REQUEST, "round", "rehearsal") if values[k] is not None}
    if runs or own:
        write_request(work, given_request(own, runs))
    elif not (work / FILE).exists():
        raise ConfigError(
            f"{work} has no {FILE}: say what to submit: --division, --submitter, --system, "
            "--category, --benchmark and the options of a run; see --help"
        )
    return read_request(work)


def plan(arguments: Sequence[str]) -> int:
    parser = _request_parser("plan", "The runs a submission needs, and how long they take.")
    options = parser.parse_args(arguments)
    from harness.submit.plan import matrix as planning

    request, work = _request(options), user_path(options.work)
    rows = planning.plan(request, work)
    search = planning.search(request, work)
    show("\n".join(planning.lines([search, *rows] if search else rows)))
    say("\n".join(planning.problems(request, rows)))
    return 0


def run(arguments: Sequence[str]) -> int:
    about = "Makes the runs that are missing, stale or failed."
    parser = _request_parser("run", about, "[--only SCENARIO]")
    parser.add_argument("--only", metavar="SCENARIO", help="the runs of this scenario")
    options = parser.parse_args(arguments)
    from harness.submit.plan.execute import execute

    return execute(_request(options), user_path(options.work), options.only)


def pack(arguments: Sequence[str]) -> int:
    own = "[--describe FILE] [--official DIR] [--to DIR]"
    parser = _request_parser("pack", "The round's folder out of the finished runs, checked.", own)
    parser.add_argument("--describe", metavar="FILE", help="YAML with what the machine cannot tell")
    parser.add_argument(
        "--official", metavar="DIR", help="mlcommons/inference: its scripts verify and check, too"
    )
    parser.add_argument("--to", metavar="DIR", help="the folder to write (default WORK/tree)")
    options = parser.parse_args(arguments)
    from harness.submit.pack.describe import read_answers_file
    from harness.submit.pack.pack import pack as packed
    from harness.submit.plan.matrix import plan as planned
    from harness.submit.rules.official import tools_of

    work = user_path(options.work)
    request = _request(options)
    official = _folder(options.official) if options.official else None
    if official is not None:
        tools_of(official)  # before anything is written
    answers = {}
    if options.describe:
        answers = read_answers_file(_folder(options.describe), request.rules)
    to = _folder(options.to) if options.to else work / "tree"
    found = packed(request, planned(request, work), answers, to, official)
    status = _check(
        found.tree, request.round, official=official, raw=found.raw, rehearsal=request.rehearsal
    )
    if status and not request.rehearsal:
        say(
            f"{found.tree} keeps its name until nothing is found: mend what is said, remove it and "
            f"{found.raw}, and pack again"
        )
        return status
    found.tree.rename(to)
    show(str(to))
    return status


def check(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m harness submit check",
        description="Every rule of the round over a submission folder, ours or another's. Exit "
        "status 4 when something was found.",
    )
    parser.add_argument("tree", metavar="TREE", help="its root: the folder with closed/ or open/")
    _add_round(parser)
    parser.add_argument("--submitter", metavar="NAME", help="only this one")
    parser.add_argument(
        "--official", metavar="DIR", help="a checkout of mlcommons/inference: run its checkers, too"
    )
    parser.add_argument(
        "--raw", metavar="DIR", help="the untruncated logs, to recompute the hashes"
    )
    parser.add_argument(
        "--rehearsal",
        action="store_true",
        help="judge a rehearsal: its mark and what comes of being short does not count",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    return _check(
        _folder(options.tree),
        options.round,
        only=options.submitter,
        official=_folder(options.official) if options.official else None,
        raw=_folder(options.raw) if options.raw else None,
        rehearsal=options.rehearsal,
        as_json=options.json,
    )


def _check(
    tree: Path,
    round_name: str,
    *,
    only: str | None = None,
    official: Path | None = None,
    raw: Path | None = None,
    rehearsal: bool = False,
    as_json: bool = False,
) -> int:
    """Print findings and what the official checkers say; the exit status: 4 where any counts."""
    from harness.submit.rules import official as theirs
    from harness.submit.rules.tree.rounds import load_round
    from harness.submit.rules.validate import validate

    if raw is not None and not is_folder(raw):
        raise ConfigError(f"--raw {raw} is not a folder: `submit pack` leaves one beside the tree")
    rules = load_round(round_name)
    checked = validate(tree, rules, only, raw)
    outcomes = theirs.run_checkers(official, tree, rules.name, only) if official else []
    counted = checked.counted(shortened=rehearsal)
    if as_json:
        content = {
            "findings": [f.to_json() for f in checked.findings],
            "results": checked.results,
            "official": [o._asdict() for o in outcomes],
        }
        show(json.dumps(content, indent=2))
    else:
        lines = [line for f in checked.findings for line in f.lines()]
        lines.append(_told(len(checked.results), len(checked.findings), len(counted)))
        lines += [line for o in outcomes for line in theirs.lines(checked, o)]
        show("\n".join(lines))
    refused = not rehearsal and not all(o.passed for o in outcomes)
    return RunInvalid.exit_status if counted or refused else 0


def _folder(text: str) -> Path:
    return user_path(text)


def _told(results: int, findings: int, counted: int) -> str:
    tail = f", {findings - counted} of them because it is a rehearsal" if counted < findings else ""
    return f"{results} results, {findings} findings{tail}"


VERBS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "plan": plan,
    "run": run,
    "pack": pack,
    "check": check,
}
