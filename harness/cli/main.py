"""The command line: options come from RunConfig's fields, everything else is a verb.

Nothing heavy is imported before it is needed: `--help` takes a quarter of a second at most.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from harness.cli import results, runs, search
from harness.cli.run_options import configured, given_options, run_parser
from harness.core.config.options import Parser, user_path
from harness.core.console import say, show
from harness.errors import ConfigError, HarnessError
from harness.search.options import RepeatOptions

VERBS = (
    *("run", "tune", "peak", "sweep", "profile", "check", "compare", "rerun", "report"),
    *("arrivals", "submit", "data", "pitfalls", "bricks", "advise", "list", "runs"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; only a HarnessError is caught, one line a problem."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _fill_standard_streams()
    try:
        known = {
            "run": _run,
            "tune": search.tune,
            "peak": search.peak,
            "sweep": search.sweep,
            "profile": search.profile,
            "check": _check,
            "compare": results.compare,
            "rerun": results.rerun,
            "report": results.report,
            "arrivals": results.arrivals,
            "submit": _submit,
            "data": _data,
            "pitfalls": _pitfalls,
            "advise": _advise,
            "bricks": _bricks,
            "list": _list,
            "runs": runs.runs,
        }
        return known[_verb(given)](given)
    except HarnessError as e:
        say(str(e))
        return e.exit_status
    except KeyboardInterrupt:  # before the run took the signals over
        return 130


def _fill_standard_streams() -> None:
    """What is opened next must not get the number of a closed stdout, and be printed into."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good


def _verb(given: list[str]) -> str:
    """Taken from the front; `run` where the words begin with an option."""
    if not given or given[0].startswith("-"):
        return "run"
    if given[0] not in VERBS:
        near = get_close_matches(given[0], VERBS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(VERBS)}"
        raise ConfigError(f"no verb {given[0]!r}: {hint}")
    return given.pop(0)


def _run(arguments: list[str]) -> int:
    config, repeats, how = configured(given_options(run_parser(), arguments), RepeatOptions)
    if repeats.repeats is not None:
        from harness.cli import search_verbs

        return search_verbs.execute("run", config, repeats, **how)
    from harness.run.supervisor.job import execute

    return execute(config, **how)


def _check(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness check",
        description="Derive a run's verdict again from its files, and compare it with result.json.",
    )
    parser.add_argument("folder", metavar="RUN", help="a run's folder, e.g. results/latest")
    folder = Path(parser.parse_args(arguments).folder)
    from harness.errors import RunInvalid
    from harness.results.recheck import agreed, check

    differences = check(folder)
    show("\n".join(differences) or agreed(folder))
    return RunInvalid.exit_status if differences else 0


def _data(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness data",
        description="Look at a dataset before a long run: labels, digest, every sample decoded.",
        usage="%(prog)s check DATASET [--data-dir PATH] [--model MODEL]",
    )
    parser.add_argument("verb", choices=("check",), metavar="VERB", help="check")
    parser.add_argument("dataset", metavar="DATASET", help="a name, or file.py:Class")
    parser.add_argument("--data-dir", metavar="PATH", help="the dataset's file or folder")
    parser.add_argument("--model", metavar="MODEL", help="decode with this model's steps")
    options = parser.parse_args(arguments)
    from harness.errors import RunInvalid
    from harness.run.supervisor.data_check import check

    folder = None if options.data_dir is None else user_path(options.data_dir)
    found = check(options.dataset, folder, options.model)
    show("\n".join([*found.lines, *(f"{'bad':<12}{fault}" for fault in found.faults)]))
    return RunInvalid.exit_status if found.faults else 0


def _pitfalls(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness pitfalls",
        description="What each mistake in preparing the input costs: every change of a declared "
        "step, of precision and of framework alone against the model as declared. Without --model "
        "and --dataset: the digits, and scikit-learn's two photographs.",
    )
    parser.add_argument("--model", metavar="M", help="default: digits, or one of images at hand")
    parser.add_argument("--dataset", metavar="D", help="default: the manifest's")
    parser.add_argument("--data-dir", metavar="PATH", help="the dataset's file or folder")
    parser.add_argument("--backend", metavar="NAME", help="default ort; null: compare inputs only")
    parser.add_argument("--hook", metavar="FILE", help="the manifest's own Python: it is run")
    parser.add_argument(
        "--samples", type=int, default=500, metavar="N", help="at most (default 500)"
    )
    parser.add_argument("--out", metavar="DIR", help="for pitfalls.json and the page pitfalls.html")
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    if given["samples"] < 1:
        raise ConfigError(f"--samples {given['samples']}: it must be at least 1")
    for key in ("data_dir", "hook", "out"):
        if key in given:
            given[key] = user_path(given[key])
    from harness.explain.pitfalls.report import report

    report(given, samples=given.pop("samples"), out=given.pop("out", None))
    return 0


def _submit(arguments: list[str]) -> int:
    from harness.cli.submit import submit

    return submit(arguments)


def _bricks(arguments: list[str]) -> int:
    from harness.cli.brick_command import bricks

    return bricks(arguments)


def _advise(arguments: list[str]) -> int:
    from harness.cli.advise_options import options_of

    options, values = options_of(arguments)
    from harness.explain.advise.job import advise

    return advise(options, values)


def _list(arguments: list[str]) -> int:
    parser = Parser(prog="python -m harness list", description="What can be named.")
    parser.parse_args(arguments)
    from harness.core import registry
    from harness.core.extras import how_to_install
    from harness.models.manifest.lookup import load_model, named_models

    lines = []
    for kind in ("scenario", "backend", "dataset", "metric"):
        lines.append(f"{kind}s")
        for name, entry in registry.rows(kind):
            state = "" if entry.installed else f"  (not installed: {how_to_install(entry.extra)})"
            lines.append(f"  {name:<16}{entry.about}{state}")
    lines += ["meters", *_meters()]
    lines.append("models")
    for name in named_models():
        manifest = load_model(name).manifest
        lines.append(f"  {name:<20}{manifest.description if manifest else ''}")
    show("\n".join(lines))
    return 0


def _meters() -> Iterator[str]:
    """Which work on this machine, and why the others do not."""
    from harness.core import registry
    from harness.machine import sampler

    here = dict(sampler.availability())
    for name, entry in registry.rows("meter"):
        why = here.get(name, "")
        yield f"  {name:<16}{entry.about}{f'  ({why})' if why else ''}"
