"""The verbs for submissions: submit plan, run, pack and check."""

import argparse
import io
import json
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.cli.parser import Parser, add_options
from harness.cli.run_options import add_trust
from harness.core.config import code
from harness.core.config.options import flag_name, option_key, user_path, visible_fields
from harness.core.config.run_config import RunConfig, config_from
from harness.core.console import messages_to, say, show
from harness.core.units import counted
from harness.errors import ConfigError, RunInvalid, refuse
from harness.submit.plan.options import ALL, REFUSED
from harness.submit.rules.tree.round_names import DEFAULT, known_rounds
from harness.submit.rules.tree.tree import is_folder

if TYPE_CHECKING:
    from harness.submit.rules.findings import Finding
    from harness.submit.rules.validate import Checked

WORK = "submission"
_OFFICIAL = "a checkout of mlcommons/inference; its scripts also verify and check the tree"
_QUIET = "print no progress and no notices"


_REQUEST: Mapping[str, tuple[str, str]] = {
    "division": ("NAME", "closed, open or network (servers on other machines, given with --url)"),
    "submitter": ("NAME", "folder name of the submitter"),
    "system": ("NAME", "folder name of the system"),
    "category": ("NAMES", "edge, datacenter, or datacenter,edge"),
    "benchmark": (
        "NAME",
        "benchmark of the round, e.g. resnet; `plan --benchmark all` lists the benchmarks that fit on this machine",
    ),
    "folder": ("NAME", "open division: name of the model (default: the benchmark's name)"),
    "scenarios": (
        "NAMES",
        "scenarios, e.g. SingleStream,Offline (default: all that the category requires)",
    ),
    "accuracy_data": (
        "FILE",
        "--data-dir of the accuracy runs, only for gpt-oss-120b, which has a separate data set for them",
    ),
    "peak": (
        "DIR",
        "folder of a finished `peak` search, which sets Server's rate; or pass --target-qps, --slo or --user-conf",
    ),
    "round": ("NAME", f"{', '.join(known_rounds())} (default {DEFAULT})"),
}
"""Maps each request option to its metavar and help. WORK/request.yaml stores these options together with the options
for the runs.
"""


_OF_ALL = {"benchmark", "division", "category", "round"}
"""Options that `plan --benchmark all` accepts."""

_RUN_HELPS = {
    "duration": "with --rehearsal: approximate duration of performance runs (default 600 s)",
    "slo": "latency bound for the search for Server's rate, e.g. p99=15ms; in a short rehearsal, the "
    "latency bound of the runs",
    "target_qps": "Server's arrival rate in queries/s",
    "user_conf": "LoadGen's user.conf",
    "meter": "ptdaemon=POWER_DEV,director=HOST,ntp=HOST: measure power in the performance runs",
}
"""Help texts for run options whose meaning differs in these verbs."""


def _request_parser(
    verb: str,
    about: str,
    own: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    *,
    many: Collection[str] = (),
    trust: bool = False,
) -> Parser:
    parser = Parser(
        f"submit {verb}",
        f"{about} WORK/request.yaml keeps the options, so that later calls need only --work.",
        "[--work DIR] [options]",
    )
    group = parser.add_argument_group("submission")
    group.add_argument(
        "--work",
        default=WORK,
        metavar="DIR",
        help=f"folder of the request and its runs (default {WORK})",
    )
    for name, (metavar, text) in {**own, **_REQUEST}.items():
        action = "append" if name in many else "store"
        group.add_argument(flag_name(name), metavar=metavar, help=text, action=action)
    group.add_argument(
        "--rehearsal",
        action="store_true",
        default=None,
        help="allow any model, any data and short runs (--duration); the result cannot be submitted",
    )
    if trust:
        add_trust(parser, "allow this code, named in WORK/request.yaml, to run")
    parser.flag("--quiet", _QUIET)
    add_options(parser, RunConfig)
    parser.set_helps({**dict.fromkeys(REFUSED), **_RUN_HELPS})
    return parser


def _trusted_request(options: argparse.Namespace) -> Any:
    """Returns the request, for verbs that execute code that the request names. If an earlier call named the code, the
    user must name it again.
    """
    from harness.submit.plan.request import FILE

    request, work = _request(options), user_path(options.work)
    stored = {k: v for k, v in request.options.items() if getattr(options, k) is None}
    problems: list[str] = []
    values = config_from(stored, FILE, problems)
    refuse([*problems, *code.untrusted(str(work / FILE), values, options.trust or ())])
    if not options.quiet:
        say(code.announcement(str(work / FILE), values))
    return request


def _option_keys() -> set[str]:
    """Returns the names that a run's options have in parsed arguments."""
    return {option_key(field) for field in visible_fields(RunConfig)}


def _request(options: argparse.Namespace) -> Any:
    """Returns the request in WORK, after storing the command line's options in it."""
    from harness.submit.plan.request import FILE
    from harness.submit.plan.request_file import kept_request

    values, work = vars(options), user_path(options.work)
    if options.benchmark == ALL:
        raise ConfigError(
            f"--benchmark {ALL} is only for `submit plan`, which lists the benchmarks that fit on this machine: name one of them"
        )
    runs = {k: values[k] for k in _option_keys() if values[k] is not None}
    own = {k: values[k] for k in (*_REQUEST, "rehearsal") if values[k] is not None}
    if not runs and not own and not (work / FILE).exists():
        raise ConfigError(
            f"{work} has no {FILE}: pass --division, --submitter, --system, --category, "
            "--benchmark and the options of a run; see --help"
        )
    with messages_to(io.StringIO()) if options.quiet else nullcontext():
        return kept_request(work, own, runs)


def plan(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "plan",
        "List the runs that a submission needs, their state, and how long the missing runs take.",
    )
    options = parser.parse_args(arguments)
    from harness.submit.plan import matrix

    if options.benchmark == ALL:
        return _plan_all(options)
    request, work = _request(options), user_path(options.work)
    rows = matrix.plan(request, work)
    search = matrix.search(request, work)
    show("\n".join(matrix.lines([search, *rows] if search else rows)))
    if not options.quiet:
        say("\n".join([*matrix.problems(request, rows), *matrix.notes(request)]))
    return 0


def _plan_all(options: argparse.Namespace) -> int:
    """Prints which of the category's benchmarks this machine can run within a day. Does not write any files."""
    from harness.submit.plan import feasible
    from harness.submit.rules.tree.rounds import load_round

    given = {
        name
        for name in (*_option_keys(), *_REQUEST, "rehearsal")
        if getattr(options, name) is not None
    }
    if unused := sorted(given - _OF_ALL):
        raise ConfigError(
            f"--benchmark {ALL} compares the round's benchmarks with this machine, and makes no runs: leave out "
            f"{', '.join(flag_name(name) for name in unused)}"
        )
    rules = load_round(options.round or DEFAULT)
    machine = feasible.this_machine(user_path(options.work).absolute())
    division, category = options.division or "closed", options.category or ""
    rows = feasible.feasible(rules, division, category, machine)
    show("\n".join(feasible.lines(rows, machine)))
    return 0


def run(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "run",
        "Make the missing, stale and failed runs. After an interruption, the same command continues.",
        {"only": ("SCENARIO", "make the runs of this scenario only")},
        trust=True,
    )
    options = parser.parse_args(arguments)
    from harness.submit.plan.execute import execute

    request = _trusted_request(options)
    return execute(request, user_path(options.work), options.only, quiet=options.quiet)


def pack(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "pack",
        "Write the submission folder from the finished runs, and check it.",
        {
            "describe": (
                "FILE",
                "facts about the system: a YAML file, or MLCommons' system_desc.json (repeatable)",
            ),
            "official": ("DIR", _OFFICIAL),
            "to": ("DIR", "folder to write (default WORK/tree)"),
        },
        many=("describe",),
        trust=True,
    )
    options = parser.parse_args(arguments)
    from harness.submit.pack.describe import read_answers_file
    from harness.submit.pack.pack import pack as write_tree
    from harness.submit.plan.matrix import plan as planned_runs
    from harness.submit.rules.official import tools_of

    work = user_path(options.work)
    request, official = _trusted_request(options), _path(options.official)
    if official is not None:
        tools_of(official)  # this call refuses a wrong checkout before anything is written
    answers: dict[str, Any] = {}
    for file in options.describe or ():
        answers |= read_answers_file(user_path(file), request.rules)
    to = _path(options.to) or work / "tree"
    rows = planned_runs(request, work)
    packed = write_tree(request, rows, answers, to, official, quiet=options.quiet)
    status = _check(
        packed.tree,
        request.round,
        official=official,
        raw=packed.raw,
        rehearsal=request.rehearsal,
        quiet=options.quiet,
    )
    if status and not request.rehearsal:
        say(
            f"{packed.tree} was not renamed, because the check has findings: correct them, remove "
            f"{packed.tree} and {packed.raw}, and pack again"
        )
        return status
    try:
        packed.tree.rename(to)
    except OSError as e:
        for path in packed:
            # The tree is removed, because an incomplete tree would block the next attempt.
            shutil.rmtree(path, ignore_errors=True)
        hint = "free some space or correct its permissions, and pack again"
        raise ConfigError(f"{to} cannot be written ({e.strerror}): {hint}") from e
    show(str(to))
    return status


def check(arguments: Sequence[str]) -> int:
    parser = Parser(
        "submit check",
        "Check a submission folder, from `submit pack` or another tool, against every rule of the round. The exit "
        "status is 4 if a rule is broken.",
        "TREE [options]",
    )
    parser.text("tree", "TREE", "root of the submission: the folder with closed/ or open/")
    parser.text("--round", *_REQUEST["round"], default=DEFAULT)
    parser.text("--submitter", "NAME", "check this submitter only")
    parser.text("--official", "DIR", _OFFICIAL)
    parser.text(
        "--raw", "DIR", "folder with the untruncated logs, to verify the logs and TEST01's answers"
    )
    parser.flag(
        "--rehearsal", "check a rehearsal: ignore findings about its mark and its short runs"
    )
    parser.flag("--json", "print the findings as JSON")
    parser.flag("--quiet", _QUIET)
    options = parser.parse_args(arguments)
    return _check(
        user_path(options.tree),
        options.round,
        only=options.submitter,
        official=_path(options.official),
        raw=_path(options.raw),
        rehearsal=options.rehearsal,
        as_json=options.json,
        quiet=options.quiet,
    )


def _path(text: str | None) -> Path | None:
    return user_path(text) if text else None


def _check(
    tree: Path,
    round_name: str,
    *,
    only: str | None = None,
    official: Path | None = None,
    raw: Path | None = None,
    rehearsal: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Prints the findings and the official checkers' verdicts. Returns 4 if any finding counts against the tree,
    otherwise 0.
    """
    from harness.submit.rules import official as official_checkers
    from harness.submit.rules.tree.rounds import load_round
    from harness.submit.rules.validate import validate

    if raw is not None and not is_folder(raw):
        raise ConfigError(f"--raw {raw} is not a folder: `submit pack` writes one next to the tree")
    rules = load_round(round_name)
    checked = validate(tree, rules, only, raw)
    if official is not None and not quiet:
        say(f"MLCommons' checkers in {official} now check {tree}, too")
    outcomes = official_checkers.run_checkers(official, tree, rules.name, only) if official else []
    counting = checked.counted(shortened=rehearsal)
    refused = not rehearsal and any(official_checkers.refuses(checked, o) for o in outcomes)
    if as_json:
        content = {
            "passed": not counting and not refused,
            "findings": [f.to_json() for f in counting],
            "left_out": [f.to_json() for f in checked.findings if f not in counting],
            "results": checked.results,
            "official": [o._asdict() for o in outcomes],
        }
        show(json.dumps(content, indent=2))
    else:
        lines = [line for f in counting for line in f.lines()]
        lines.append(_summary(checked, counting))
        lines += [line for o in outcomes for line in official_checkers.lines(checked, o)]
        show("\n".join(lines))
    return RunInvalid.exit_status if counting or refused else 0


def _summary(checked: "Checked", counting: "Sequence[Finding]") -> str:
    """Returns the last line, which states whether the tree passes and which findings a rehearsal may have."""
    verdict = "not passed" if counting else "passed"
    counts = f"{counted(len(checked.results), 'result')}, {counted(len(counting), 'finding')}"
    left_out = Counter(f.rule for f in checked.findings if f not in counting)
    if not left_out:
        return f"{verdict}: {counts}"
    rules = ", ".join(f"{rule} x {n}" if n > 1 else rule for rule, n in sorted(left_out.items()))
    return (
        f"{verdict}, as a rehearsal: {counts}; {left_out.total():,} more are allowed in a rehearsal, which is "
        f"short, has other data and one machine, and is marked as a rehearsal: {rules}"
    )
