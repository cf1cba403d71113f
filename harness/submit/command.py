"""`python -m harness submit check`: the words of the command line."""

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from harness.console import show
from harness.errors import ConfigError, RunInvalid
from harness.submit.rounds import DEFAULT, known_rounds, load_round
from harness.verbs import Parser

ABOUT = """\
usage: python -m harness submit VERB ...

  check   what the rules forbid in a submission folder, and what MLCommons' checkers say

each has its own --help; docs/submit.md walks through them
"""


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


def _add_round(parser: Parser) -> None:
    about = f"{', '.join(known_rounds())} (default {DEFAULT})"
    parser.add_argument("--round", default=DEFAULT, metavar="NAME", help=about)


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
    from harness.submit import official as theirs
    from harness.submit.validate import validate

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
    return Path(text).expanduser()


def _told(results: int, findings: int, counted: int) -> str:
    tail = f", {findings - counted} of them because it is a rehearsal" if counted < findings else ""
    return f"{results} results, {findings} findings{tail}"


VERBS: Mapping[str, Callable[[Sequence[str]], int]] = {"check": check}
