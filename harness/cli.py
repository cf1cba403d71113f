"""The command line: options come from RunConfig's fields, everything else is a verb.

Nothing heavy is imported before it is needed: `--help` takes a quarter of a second at most.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from harness import __version__, runs, verbs
from harness.config import SCHEMA_VERSION, RunConfig, config_from, make_config
from harness.console import say, show
from harness.errors import ConfigError, HarnessError
from harness.grid_options import Grid, GridOptions, is_asked, take_lists
from harness.options import add_options, flag_name, option_key, parse_values, visible_fields
from harness.search_options import PeakOptions, RepeatOptions, SweepOptions
from harness.verbs import Parser

T = TypeVar("T")

EXAMPLES = """\
examples:
  # Poisson arrivals at a demonstration rate on the embedded digits model
  python -m harness --scenario server --backend ort
  # the harness's own cost: one query at a time, answered by nobody
  python -m harness --scenario single-stream --backend null --mode performance --duration 2s
  # any ONNX file, synthetic data, all cores
  python -m harness --scenario offline --model model.onnx --mode performance
  # a run again, with all values as they were resolved then
  python -m harness --config results/latest/config.yaml
  # the highest rate that meets the SLO, and latency against offered load
  python -m harness peak --scenario server --slo p99=10ms
  python -m harness sweep --scenario server --slo p99=10ms --rate 10%..110%
  # a grid of fresh runs: what batch, precision and threads make of speed and accuracy
  python -m harness sweep --batch 1,2,4..64 --precision fp32,int8 --duration 2s
verbs:
  run (the default), peak, sweep, check, compare, rerun, report, arrivals, submit, data, pitfalls,
  list, runs; each has its own --help
"""

VERBS = (
    *("run", "peak", "sweep", "check", "compare", "rerun", "report", "arrivals", "submit"),
    *("data", "pitfalls", "list", "runs"),
)

# The MLPerf reference harness's spellings: (option, ours, what to do with a bare number)
_ALIASES = {
    "--qps": ("--target-qps", ""),
    "--max-batchsize": ("--max-batch", ""),
    "--dataset-path": ("--data-dir", ""),
    "--output": ("--out", ""),
    "--time": ("--duration", "s"),
    "--max-latency": ("--slo", "s"),
}
_REFUSED = {
    "--count": "--count is --queries here: --queries N",
    "--accuracy": "--accuracy is a mode here: --mode accuracy",
}

# What a config.yaml resolved that must be decided anew when an option is given beside it.
_OVERRIDDEN = {
    "seed": ("qsl_seed", "sample_index_seed", "schedule_seed", "dataset_digest"),
    "input_shape": ("dataset_digest",),
    "lengths": ("dataset_digest",),
    "duration": ("queries",),
    "slo": ("queries",),
    "instances": ("threads",),
    "mlperf": (
        *("duration_ns", "queries", "seed", "slo", "samples_per_query", "target_qps"),
        *("qsl_seed", "sample_index_seed", "schedule_seed"),
    ),
    "target_qps": ("queries", "arrivals", "arrivals_sha256", "concurrency"),
    "arrivals": ("queries", "target_qps", "arrivals_sha256", "concurrency"),
    "concurrency": ("queries", "target_qps", "arrivals", "arrivals_sha256"),
    "no_metrics": ("metrics", "metrics_linger_ns"),
    "metrics": ("no_metrics",),
    "model": ("model_sha256", "model_file", "dataset", "dataset_digest", "metric", "max_batch"),
    "dataset": ("dataset_digest",),
    "data_dir": ("dataset_digest",),
    "backend": ("model_sha256", "model_file"),
    "backend_option": ("model_sha256", "model_file"),
    "scenario": (
        "queries",
        "slo",
        "target_qps",
        "samples_per_query",
        "arrivals",
        "arrivals_sha256",
        "concurrency",
        "instances",
        "threads",
        "max_batch",
        "dispatch",
        "batch_wait_ns",
    ),
    "pin": ("oversubscribe",),
    "oversubscribe": ("pin",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; only a HarnessError is caught, one line a problem."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _fill_standard_streams()
    try:
        known = {
            "run": _run,
            "peak": _peak,
            "sweep": _sweep,
            "check": _check,
            "compare": verbs.compare,
            "rerun": verbs.rerun,
            "report": verbs.report,
            "arrivals": verbs.arrivals,
            "submit": _submit,
            "data": _data,
            "pitfalls": _pitfalls,
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


def run_parser(
    more: Sequence[type] = (RepeatOptions,),
    verb: str = "[VERB]",
    about: str = "Drive a model with MLPerf LoadGen and leave a result folder to be trusted.",
) -> argparse.ArgumentParser:
    """more: the verb's own options, beside those of RunConfig."""
    parser = Parser(
        prog="python -m harness",
        description=about,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage=f"%(prog)s {verb} --scenario NAME [options]",
    )
    parser.add_argument("--version", action="version", version=f"mlperf-harness {__version__}")
    add_options(parser, RunConfig, *more)
    parser.add_argument("--config", metavar="FILE", help="options from YAML; the command line wins")
    parser.add_argument("--json", action="store_true", help="print result.json instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress and no notices")
    return parser


def _run(arguments: list[str]) -> int:
    config, repeats, how = _configured(_options(run_parser(), arguments), RepeatOptions)
    if repeats.repeats is not None:
        from harness import search_verbs

        return search_verbs.execute("run", config, repeats, **how)
    from harness.run import execute

    return execute(config, **how)


def _peak(arguments: list[str]) -> int:
    about = (
        "The highest rate (server; multi-stream: samples per query) that is VALID under the SLO: "
        "short probes close in on it, full-length runs confirm it. --target-qps is where to begin."
    )
    parser = run_parser((PeakOptions,), "peak", about)
    return _searched("peak", PeakOptions, _options(parser, arguments))


def _sweep(arguments: list[str]) -> int:
    about = (
        "Latency against offered load: a run at each rate. Or a grid: a run for each batch, "
        "precision, framework and more. A table, a CSV and a page with plots."
    )
    parser = run_parser((SweepOptions, GridOptions), "sweep", about)
    options = _options(parser, arguments)
    grid = is_asked(options)
    for field in visible_fields(SweepOptions if grid else GridOptions):
        if options.pop(option_key(field)) is not None:
            flag = flag_name(option_key(field))
            options["problems"].append(f"{flag} is for a sweep of rates, not for a grid: drop it")
    return _grid(options) if grid else _searched("sweep", SweepOptions, options)


def _grid(options: dict[str, Any]) -> int:
    alone = "from" if options["from"] is not None else "resume"
    if options[alone] is None:
        lists = take_lists(options, options["problems"])
        config, own, how = _configured(options, GridOptions, {"scenario": "offline"}, _ONE_RUNS)
        from harness.grid_axes import axes_of

        grid = Grid(axes_of(lists, config, own), own)
    else:
        own, how = _alone(options, alone)
        from harness import grid as verb
        from harness import sweep

        if own.from_ is not None:
            if (own.from_ / sweep.SWEEP).is_file():
                return sweep.show_stored(own.from_, as_json=how["as_json"])
            return verb.show_stored(own.from_, own, as_json=how["as_json"])
        assert own.resume is not None
        config, grid = verb.stored(own.resume)
    from harness import search_verbs

    return search_verbs.execute("grid", config, grid, **how)


def _alone(options: dict[str, Any], name: str) -> tuple[GridOptions, dict[str, bool]]:
    """--resume or --from, with what may stand beside it: how it is shown."""
    how = {"as_json": options.pop("json"), "quiet": options.pop("quiet")}
    problems: list[str] = options.pop("problems")
    shown = ("accuracy_floor", "price") if name == "from" else ()
    given = {key: value for key, value in options.items() if value is not None}
    problems += [
        f"--{name} takes everything from its folder: drop {flag_name(key)}"
        for key in given
        if key not in (name, *shown)
    ]
    values = parse_values(
        GridOptions, {k: given[k] for k in (name, *shown) if k in given}, "command line", problems
    )
    if problems:
        raise ConfigError("\n".join(problems))
    return GridOptions(**values), how


_ONE_RUNS = (
    *("queries", "target_qps", "max_batch"),
    *("model_file", "model_sha256", "dataset_digest"),
)
"""Of a file: what one run was sized to or made with, and others are not."""


def _searched(verb: str, more: type[T], options: dict[str, Any]) -> int:
    """A file's rate and counts are those of one run: others are found."""
    mode = {"mode": "performance"}
    config, own, how = _configured(options, more, mode, ("queries", "target_qps"))
    from harness import search_verbs

    return search_verbs.execute(verb, config, own, **how)


def _options(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[str, Any]:
    """What is on the command line, as text, and `problems`, what is unknown there."""
    return vars(parse_known(parser, _translated(arguments)))


def _configured(
    options: dict[str, Any],
    more: type[T],
    defaults: Mapping[str, Any] = MappingProxyType({}),
    not_from_file: Sequence[str] = (),
) -> tuple[RunConfig, T, dict[str, bool]]:
    """The configuration, the verb's own options, and as_json and quiet; every problem at once."""
    file, as_json, quiet = options.pop("config"), options.pop("json"), options.pop("quiet")
    problems: list[str] = options.pop("problems")
    own = {k: options.pop(k) for k in [option_key(f) for f in visible_fields(more)]}
    values = {**defaults, **(from_file(Path(file), problems) if file else {})}
    given = {k: v for k, v in options.items() if v is not None}
    for key in not_from_file:
        values.pop(key, None)
    for key in given:
        for resolved in _OVERRIDDEN.get(key, ()):
            values.pop(resolved, None)
    values |= config_from(given, "command line", problems)
    own_values = parse_values(more, own, "command line", problems)
    if not values.keys().isdisjoint(("backend", "dataset", "meter", "metric", "model")):
        from harness.loading import unknown_names

        problems += unknown_names(values)
    config = make_config(values, problems)
    return config, more(**own_values), {"as_json": as_json, "quiet": quiet}


def parse_known(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Like parse_args, but every unknown option becomes an entry of `problems`."""
    options, unknown = parser.parse_known_args(arguments)
    known = list(parser._option_string_actions)  # noqa: SLF001 - argparse offers no other way
    problems = []
    after_unknown = False  # the word after an unknown option is most likely its value
    for word in unknown:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            if not after_unknown:
                problems.append(f"unexpected argument {word!r}: see --help")
            after_unknown = False
            continue
        after_unknown = "=" not in word
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        problems.append(f"unknown option {name}: {hint}")
    options.problems = problems
    return options


def _translated(arguments: Sequence[str]) -> list[str]:
    """The reference harness's spellings into ours."""
    words: list[str] = []
    expects: str | None = None
    for word in arguments:
        name, equals, value = word.partition("=")
        if expects is not None:
            words.append(_with_unit(expects, word))
            expects = None
        elif name in _REFUSED:
            raise ConfigError(_REFUSED[name])
        elif name not in _ALIASES:
            words.append(word)
        elif equals:
            words += [_ALIASES[name][0], _with_unit(name, value)]
        else:
            words.append(_ALIASES[name][0])
            expects = name
    return words


def _with_unit(alias: str, value: str) -> str:
    """Bare seconds get their unit; --max-latency is a bound on p99."""
    text = value + _ALIASES[alias][1]
    return f"p99={text}" if alias == "--max-latency" else text


def from_file(path: Path, problems: list[str]) -> dict[str, Any]:
    from harness.manifest import load_yaml

    content = load_yaml(path)
    if not isinstance(content, dict) or not all(isinstance(k, str) for k in content):
        raise ConfigError(f"{path} is not a configuration: it must map option names to values")
    version = content.pop("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema_version {version!r}, this harness reads up to {SCHEMA_VERSION}: "
            "update the harness"
        )
    return config_from(content, str(path), problems)


def _check(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness check",
        description="Derive a run's verdict again from its files, and compare it with result.json.",
    )
    parser.add_argument("folder", metavar="RUN", help="a run's folder, e.g. results/latest")
    folder = Path(parser.parse_args(arguments).folder)
    from harness.errors import RunInvalid
    from harness.recheck import check

    differences = check(folder)
    show("\n".join(differences) or f"{folder}: result.json agrees with the files")
    return RunInvalid.exit_status if differences else 0


def _data(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m harness data",
        description="Look at a dataset before a long run: labels, digest, every sample decoded.",
    )
    parser.add_argument("what", choices=("check",), metavar="check")
    parser.add_argument("dataset", metavar="DATASET", help="a name, or file.py:Class")
    parser.add_argument("--data-dir", metavar="DIR", help="where the dataset's files are")
    parser.add_argument("--model", metavar="M", help="decode with this model's steps")
    options = parser.parse_args(arguments)
    from harness.data import check
    from harness.errors import RunInvalid

    folder = Path(options.data_dir).expanduser() if options.data_dir else None
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
    parser.add_argument("--out", metavar="DIR", help="for pitfalls.json and the plot pitfalls.svg")
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    if given["samples"] < 1:
        raise ConfigError(f"--samples {given['samples']}: it must be at least 1")
    for key in ("data_dir", "hook", "out"):
        if key in given:
            given[key] = Path(given[key]).expanduser()
    from harness.analysis.pitfall_report import report

    report(given, samples=given.pop("samples"), out=given.pop("out", None))
    return 0


def _submit(arguments: list[str]) -> int:
    from harness.submit.command import submit

    return submit(arguments)


def _list(arguments: list[str]) -> int:
    parser = Parser(prog="python -m harness list", description="What can be named.")
    parser.parse_args(arguments)
    from harness import registry
    from harness.manifest import load_model, named_models

    lines = []
    for kind in ("scenario", "backend", "dataset", "metric"):
        lines.append(f"{kind}s")
        for name, entry in registry.rows(kind):
            state = "" if entry.installed else f"  (not installed: extra {entry.extra!r})"
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
    from harness import registry, sampler

    here = dict(sampler.availability())
    for name, entry in registry.rows("meter"):
        why = here.get(name, "")
        yield f"  {name:<16}{entry.about}{f'  ({why})' if why else ''}"
