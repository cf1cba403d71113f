"""The verbs for MLPerf Endpoints submissions: endpoints plan, rehearse, run, witness, pack and check."""

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.parser import Parser
from harness.core.config.options import user_path
from harness.core.console import say, show
from harness.core.units import NS_PER_S, counted, parse_duration_ns
from harness.errors import ConfigError, RunInvalid

if TYPE_CHECKING:
    from harness.run.progress import Progress
    from harness.submit.endpoints.client.config import Template
    from harness.submit.endpoints.points import Curve
    from harness.submit.endpoints.request import Request
    from harness.submit.endpoints.rules.official import Outcome
    from harness.submit.endpoints.rules.validate import Checked

WORK = "endpoints"
_MOST_DIGITS = 9
_QUIET = "print no progress and no notices"
_OFFICIAL = (
    "a Python environment with MLCommons' checker (endpoints-submission-cli) and mlperf-viz, which also check the "
    "tree"
)
_INSTALL = "create or complete the environment of --official with uv"

_REQUEST: Mapping[str, tuple[str, str]] = {
    "submitter": ("NAME", "folder name of the submitter"),
    "system": ("NAME", "folder name of the system"),
    "division": ("NAME", "standardized, serviced or rdi"),
    "model": ("NAME", "name of the benchmark in the rules, e.g. llama3_1-8b"),
    "cohort": ("NAME", "cohort of the publication, e.g. 2026-10-C1"),
    "seed-set": ("ID", "seed set of the cohort (default: the newest)"),
    "url": ("URL", "URL of the server, e.g. http://127.0.0.1:8000 (repeatable)"),
    "served": ("NAME", "name of the model on the server"),
    "tokenizer": ("DIR", "folder of the tokenizer that counts tokens"),
    "template": (
        "FILE",
        "the client's YAML file with data sets, sampling and scores, e.g. an example from mlcommons/endpoints",
    ),
    "prompts": (
        "FILE",
        "JSONL file of prompts for the harness's client, if the official client generates the data itself",
    ),
    "c-max": ("N", "maximum number of requests in flight (default: `plan` searches for it)"),
    "slo": (
        "SLOS",
        "bound for the C_max search, e.g. 'ttft:p99=2s tpot:p99=50ms' (default: search until tokens/s stop growing)",
    ),
    "c-min": ("N", "C_min, a point from 1 to 32 (default: the lowest point)"),
    "points": (
        "NUMBERS",
        "concurrencies, e.g. 1,4,8,16,32,48,64 (default: seven points, evenly spread)",
    ),
    "offline": ("NAME", "elected: the point at C_max; dedicated: a separate run (default elected)"),
}
"""Maps each request option to its metavar and help. WORK/request.yaml stores these options."""


class _Call(NamedTuple):
    """The request that a verb handles, and the values derived from it."""

    request: "Request"
    template: "Template"
    curve: "Curve"
    work: Path


def _request_parser(
    verb: str,
    about: str,
    own: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    many: Collection[str] = (),
) -> Parser:
    parser = Parser(
        f"endpoints {verb}",
        f"{about} WORK/request.yaml keeps the options, so that later calls need only --work.",
        "[--work DIR] [options]",
    )
    group = parser.add_argument_group("submission")
    work_help = f"folder of the request and its runs (default {WORK})"
    group.add_argument("--work", default=WORK, metavar="DIR", help=work_help)
    for name, (metavar, text) in {**own, **_REQUEST}.items():
        action = "append" if name == "url" or name in many else "store"
        group.add_argument(f"--{name}", metavar=metavar, help=text, action=action)
    text = "allow any model, any data and short points (--duration); the result cannot be submitted"
    group.add_argument("--rehearsal", action="store_true", default=None, help=text)
    text = "with --rehearsal: minimum length of a point's steady window (default: set by the rules)"
    group.add_argument("--duration", metavar="TIME", help=text)
    parser.flag("--quiet", _QUIET)
    return parser


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the request's values that the command line sets."""
    given = vars(options)
    values = {name.replace("-", "_"): given[name.replace("-", "_")] for name in _REQUEST}
    values["rehearsal"] = options.rehearsal
    values = {key: value for key, value in values.items() if value is not None}
    for key in ("c_max", "c_min"):
        if key in values:
            values[key] = _whole(f"--{key.replace('_', '-')}", values[key])
    if "points" in values:
        words = [word for word in values["points"].split(",") if word.strip()]
        values["points"] = tuple(_whole("--points", word.strip()) for word in words)
    if options.duration is not None:
        values["duration_s"] = _seconds("--duration", options.duration)
    return values


def _whole(flag: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ConfigError(f"{flag} {text}: write a whole number")
    return int(text)


def _seconds(flag: str, text: str) -> float:
    try:
        return parse_duration_ns(text) / NS_PER_S
    except ValueError as e:
        raise ConfigError(f"{flag} {text}: {e}") from None


def _request(options: argparse.Namespace) -> tuple["Request", "Template", Path]:
    """Returns the request, its template and its folder.

    Stores the request only if both its template and its points are usable.
    """
    from harness.submit.endpoints import points
    from harness.submit.endpoints.client.config import Template
    from harness.submit.endpoints.request import kept_request, write_request

    work, values = user_path(options.work), _values(options)
    request = kept_request(work, values)
    if not request.template:
        raise ConfigError(
            "--template is missing: pass the client's YAML file for the benchmark, from examples/ in mlcommons/endpoints"
        )
    template = Template(Path(request.template))
    if request.c_max:
        points.curve(request, request.c_max, template.samples(request))
    if values:
        write_request(work, request)
    return request, template, work


def _call(options: argparse.Namespace) -> _Call:
    """Returns the request together with its curve. Raises a ConfigError if C_max is not yet known."""
    from harness.submit.endpoints import points
    from harness.submit.endpoints.plan.c_max import known_c_max

    request, template, work = _request(options)
    c_max = known_c_max(request, work)
    if c_max is None:
        raise ConfigError(
            "C_max is not known: pass --c-max, or run `endpoints plan` first, which searches for it"
        )
    return _Call(request, template, points.curve(request, c_max, template.samples(request)), work)


def plan(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "plan",
        "List the points that a submission needs, with regions, passes, hours and seeds, and the requirements that "
        "cannot be met. Without --c-max, search for C_max first: under --slo, or until a higher concurrency adds no "
        "more tokens/s.",
    )
    options = parser.parse_args(arguments)
    from harness.submit.endpoints import points
    from harness.submit.endpoints.plan import table

    request, template, work = _request(options)
    c_max = _found_c_max(request, template, work, quiet=options.quiet)
    curve = points.curve(request, c_max, template.samples(request))
    rows = table.rows(request, template, curve, work)
    show("\n".join(table.lines(request, curve, rows)))
    if not options.quiet:
        say("\n".join(table.notes(request, template, curve, rows)))
    return 0


def _found_c_max(request: "Request", template: "Template", work: Path, *, quiet: bool) -> int:
    """Returns C_max. If C_max is unknown, searches for C_max with the bound in --slo or, without --slo, for the
    saturation.
    """
    from harness.core.signals import stoppable
    from harness.run.progress import Progress
    from harness.submit.endpoints.plan import c_max
    from harness.submit.endpoints.plan.alone import alone

    known = c_max.known_c_max(request, work)
    if known is not None:
        return known
    if not request.url:
        raise ConfigError("C_max is not known: pass --c-max N, or --url to search for it")
    with (
        alone(work),
        stoppable() as stopping,
        Progress(quiet=quiet) as progress,
        stopping.allowed(),
    ):
        if request.slo:
            progress.series("search for C_max", None)
            return c_max.find_c_max(request, template, work, lambda _: progress.show("running"))
        return _saturated(request, template, work, progress, quiet=quiet)


def _saturated(
    request: "Request", template: "Template", work: Path, progress: "Progress", *, quiet: bool
) -> int:
    from harness.submit.endpoints.plan import c_max, saturation

    progress.series("search for C_max", None)

    def look(concurrency: int, took_s: float) -> None:
        share = min(1.0, took_s / saturation.EACH_S)
        progress.show("running", share=share, details=[f"{concurrency} in flight"])

    found = saturation.find_saturation(request, template, work, work / c_max.FOLDER, look)
    if not quiet:
        say("\n".join(found.lines()))
    return found.c_max


def rehearse(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "rehearse",
        "Measure every point with the harness's own client, and report early which points will fail. `plan` uses the "
        "measured rates for its passes and hours.",
        {"each": ("TIME", "length of each point (default 60s)")},
    )
    options = parser.parse_args(arguments)
    from harness.submit.endpoints.plan.rehearse import EACH_S
    from harness.submit.endpoints.plan.rehearse import rehearse as make

    call = _call(options)
    each_s = EACH_S if options.each is None else _seconds("--each", options.each)
    return make(call.request, call.template, call.curve, call.work, each_s, quiet=options.quiet)


def run(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "run",
        "Measure the missing, stale and failed points with the official client. After an interruption, the same "
        "command continues.",
        {
            "client": (
                "DIR",
                "a checkout of mlcommons/endpoints; the first call copies and installs it with uv",
            ),
            "only": ("POINT", "measure this point only, e.g. r16"),
        },
    )
    options = parser.parse_args(arguments)
    from harness.submit.endpoints.plan.execute import execute

    call = _call(options)
    client = user_path(options.client) if options.client else None
    return execute(
        call.request,
        call.template,
        call.curve,
        call.work,
        client,
        options.only,
        quiet=options.quiet,
    )


def witness(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "witness",
        "Recompute the numbers of every finished point from the client's events, and look for signs of wrong numbers.",
        {"only": ("POINT", "judge this point only, e.g. r16")},
    )
    parser.flag("--trust-tokenizer", "run the code in the tokenizer's folder, as the client does")
    options = parser.parse_args(arguments)
    from harness.submit.endpoints.witness.page import judge

    call = _call(options)
    lines, passed = judge(
        call.request,
        call.template,
        call.curve,
        call.work,
        options.only,
        trust=options.trust_tokenizer,
    )
    show("\n".join(lines))
    return 0 if passed else RunInvalid.exit_status


def pack(arguments: Sequence[str]) -> int:
    parser = _request_parser(
        "pack",
        "Write the submission tree from the finished and witnessed points, and check it.",
        {
            "describe": (
                "FILE",
                "facts about the system: YAML, or mlperf-sysinfo's system_desc.json (repeatable)",
            ),
            "to": ("DIR", "folder to write (default WORK/tree)"),
            "official": ("DIR", _OFFICIAL),
        },
        many=("describe",),
    )
    parser.flag("--install", _INSTALL)
    options = parser.parse_args(arguments)
    from harness.submit.endpoints.pack.description import read_description
    from harness.submit.endpoints.pack.pack import describe_hint
    from harness.submit.endpoints.pack.pack import pack as write_tree

    call = _call(options)
    official = _official(options)
    if not options.describe and not call.request.rehearsal:
        show(describe_hint())
        raise ConfigError("--describe is missing: fill in the file above")
    described = read_description([user_path(f) for f in options.describe or ()], call.request)
    to = user_path(options.to) if options.to else call.work / "tree"
    partial = to.with_name(f"{to.name}.partial")
    if to.exists():
        raise ConfigError(f"{to} already exists: pass a different --to, or remove it")
    shutil.rmtree(partial, ignore_errors=True)
    write_tree(call.request, call.template, call.curve, described, call.work, partial)
    status = _check(partial, official, rehearsal=call.request.rehearsal)
    if status and not call.request.rehearsal:
        say(
            f"{partial} was not renamed, because the check has findings: correct them, and pack again"
        )
        return status
    partial.rename(to)
    show(str(to))
    return status


def check(arguments: Sequence[str]) -> int:
    parser = Parser(
        "endpoints check",
        "Check a tree, from `endpoints pack` or another tool, against every rule of MLPerf Endpoints. The exit status "
        "is 4 if a rule is broken.",
        "TREE [options]",
    )
    parser.text("tree", "TREE", "folder of an organisation or of a submission")
    parser.text("--official", "DIR", _OFFICIAL)
    parser.flag("--install", _INSTALL)
    parser.flag(
        "--rehearsal", "check a rehearsal: ignore its mark, its model's name and its durations"
    )
    parser.flag("--json", "print the findings as JSON")
    options = parser.parse_args(arguments)
    official = _official(options)
    tree = user_path(options.tree)
    return _check(tree, official, rehearsal=options.rehearsal, as_json=options.json)


def _official(options: argparse.Namespace) -> Path | None:
    from harness.submit.endpoints.rules import official

    if not options.official:
        if options.install:
            raise ConfigError("--install needs --official DIR, the environment to create")
        return None
    folder = user_path(options.official)
    official.ensure(folder, install=options.install)
    return folder


def _check(
    tree: Path, official: Path | None, *, rehearsal: bool = False, as_json: bool = False
) -> int:
    """Prints the findings and the official tools' verdicts. Returns 4 if any finding counts against the tree, otherwise
    0.
    """
    from harness.submit.endpoints.rules import official as official_tools
    from harness.submit.endpoints.rules.validate import validate

    checked = validate(tree)
    outcomes = official_tools.run_tools(official, tree, checked) if official else []
    counting = checked.counted(rehearsal=rehearsal)
    refused = not rehearsal and not all(one.passed for one in outcomes)
    if as_json:
        show(json.dumps(_json(checked, outcomes, rehearsal=rehearsal), indent=2))
    else:
        lines = [line for finding in counting for line in finding.lines()]
        lines.append(_summary(checked, rehearsal=rehearsal))
        lines += [line for one in outcomes for line in official_tools.lines(one)]
        show("\n".join(lines))
    return RunInvalid.exit_status if counting or refused else 0


def _json(checked: "Checked", outcomes: "Sequence[Outcome]", *, rehearsal: bool) -> dict[str, Any]:
    counting = checked.counted(rehearsal=rehearsal)
    return {
        "passed": not counting and (rehearsal or all(one.passed for one in outcomes)),
        "findings": [finding.to_json() for finding in counting],
        "left_out": [f.to_json() for f in checked.findings if f not in counting],
        "points": checked.points,
        "official": [one._asdict() for one in outcomes],
    }


def _summary(checked: "Checked", *, rehearsal: bool) -> str:
    counting = checked.counted(rehearsal=rehearsal)
    verdict = "not passed" if counting else "passed"
    counts = f"{counted(len(checked.points), 'point')}, {counted(len(counting), 'finding')}"
    left_out = Counter(f.rule for f in checked.findings if f not in counting)
    if not left_out:
        return f"{verdict}: {counts}"
    rules = ", ".join(f"{rule} x {n}" if n > 1 else rule for rule, n in sorted(left_out.items()))
    return f"{verdict}, as a rehearsal: {counts}; not counted: {rules}"
