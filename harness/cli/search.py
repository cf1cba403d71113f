"""The verbs that make many runs to search for an optimum: peak, sweep (over rates, a grid or backends), tune and
overhead.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.cli import many_runs
from harness.cli.parser import Parser, add_options, read_options
from harness.cli.run_options import Invocation, invocation, read_run_options, run_parser
from harness.core import files
from harness.core.config import code
from harness.core.config.options import flag_name, option_key, parse_values, visible_fields
from harness.core.config.problems import NO_SCENARIO
from harness.core.config.run_config import RunConfig, config_from, make_config
from harness.core.console import program, say
from harness.core.shown import private
from harness.errors import ConfigError, refuse
from harness.results import run_folder
from harness.search.grid.cells.options import Grid, GridOptions, names_grid, take_lists
from harness.search.options import (
    OVERHEAD_DURATION_NS,
    OVERHEAD_OF_A_RUN,
    RUNTIMES_DURATION_NS,
    TUNE_DURATION_NS,
    OverheadOptions,
    PeakOptions,
    RuntimesOptions,
    SweepOptions,
    TuneOptions,
    WorkersOptions,
)
from harness.search.runtimes.options import OF_BOTH, drop_all, names_all, names_runtimes

_SEARCHED = ("queries", "target_qps", "until")
"""Fields from a --config file that a search sets for each of its runs."""

_TUNED = ("queries", "duration_ns", "instances", "threads", "max_batch", "until")
"""Fields from a --config file that `tune` itself finds or sets."""

_REFUSED: Mapping[str, str | None] = {
    option_key(field): None for field in visible_fields(RunConfig) if field.metadata["of_one_run"]
}
"""Options of a run that searches refuse. The help pages of searches omit these options."""

_ONE_RUNS = (
    *("queries", "target_qps", "max_batch", "model_file", "model_sha256", "dataset_digest"),
    "until",
)
"""Fields from a --config file that apply to a single run but not to the cells of a grid."""


def _out(name: str) -> str:
    return f"result folder, which must not exist yet (default results/TIME-{name}-BACKEND-MODEL)"


def peak(arguments: list[str]) -> int:
    parser = run_parser(
        "peak",
        "Find the highest rate that is VALID under the latency bound (server), or the largest number of samples "
        "per query (multi-stream). Short runs narrow the range, and full runs confirm the "
        "result. With --concurrency N, find the largest number of queries in flight instead, starting at N.",
        ("--scenario NAME [--slo SLO] [options]",),
        (PeakOptions, RunConfig),
    )
    parser.set_helps(
        {
            **_REFUSED,
            "queries": None,
            "mode": "performance, accuracy or both (default performance)",
            "duration": "approximate duration of a full run, e.g. 10s or 2min (default 10s)",
            "target_qps": "server: rate of the first run in queries/s (default: half of the "
            "calibrated capacity)",
            "concurrency": "server: start the search at N queries in flight; each answer triggers the next "
            "query (not MLPerf-compliant)",
            "out": _out("peak-SCENARIO"),
        }
    )
    defaults = {"mode": "performance"}
    texts, problems = read_run_options(parser, arguments)
    _drop_until(texts, problems, "peak")
    call = invocation(texts, problems, PeakOptions, defaults, _SEARCHED)
    from harness.search.peak import job

    return many_runs.execute("peak", call, job.problems, job.find)


def tune(arguments: list[str]) -> int:
    parser = run_parser(
        "tune",
        "Find the fastest combination of instances, threads, largest batch and backend options for a model on this "
        "machine, in one scenario and under one latency bound. Loops without LoadGen eliminate most candidates, and "
        "runs under LoadGen judge the rest. Options on the command line (--instances, --threads, --max-batch, "
        "--backend-option) keep their values.",
        ("--scenario NAME [options]",),
        (TuneOptions, RunConfig),
    )
    parser.set_helps(
        {
            **_REFUSED,
            **dict.fromkeys(("queries", "concurrency", "meter", "mode")),
            "duration": "approximate duration of each run, e.g. 2s (default 1500ms)",
            "target_qps": "server: rate of all runs in queries/s (default: the highest rate that meets the "
            "latency bound)",
            "out": _out("tune-SCENARIO"),
        }
    )
    defaults = {"mode": "performance", "duration_ns": TUNE_DURATION_NS}
    texts, problems = read_run_options(parser, arguments)
    _drop_until(texts, problems, "tune")
    call = invocation(texts, problems, TuneOptions, defaults, _TUNED)
    from harness.search.tune import job

    return many_runs.execute("tune", call, job.problems, job.tune)


def overhead(arguments: list[str]) -> int:
    parser = Parser(
        "overhead",
        "Measure the cost of serving a model. In-process runs and runs through a server alternate, with one query at "
        "a time. The result is the time that the server adds to a query, minus the time that this client needs for a "
        "server that answers at once. The result has a 95 % interval and is split into parts. Both sides must give "
        "the same answers.",
        "MODEL --url URL [options]",
    )
    parser.text("model", "MODEL", "a name from `list`, a manifest (.yaml), or a model file")
    parser.add_argument(
        "--url",
        metavar="URL",
        action="append",
        help="URL of the server, e.g. http://127.0.0.1:8000; repeat the option for each replica",
    )
    fields = {field.name: field for field in visible_fields(RunConfig)}
    group = parser.add_argument_group("run")
    for name in OVERHEAD_OF_A_RUN:
        parser.add_option(group, fields[name])
    add_options(parser, OverheadOptions)
    parser.flag("--json", "print JSON instead of a table")
    parser.flag("--quiet", "print no progress and no notices")
    parser.set_helps(
        {
            "backend": "remote backend for the server's protocol (default kserve)",
            "duration": "approximate duration of each run, e.g. 2s (default 2s)",
            "max_batch": "samples per request in the throughput runs, on both sides (default 1)",
            "out": "result folder; the verb continues a stopped measurement in this folder (default "
            "results/TIME-overhead-BACKEND-MODEL)",
        }
    )
    texts, problems = read_options(parser, arguments)
    as_json, quiet = (bool(texts.pop(name, False)) for name in ("json", "quiet"))
    of_own = {option_key(field) for field in visible_fields(OverheadOptions)}
    own = {key: texts.pop(key) for key in of_own & texts.keys()}
    options = OverheadOptions(**parse_values(OverheadOptions, own, "command line", problems))
    values = {
        "scenario": "single-stream",
        "mode": "performance",
        "duration_ns": OVERHEAD_DURATION_NS,
        "backend": "kserve",
        **config_from(texts, "command line", problems),
    }
    from harness.models.opened.loading import unknown_names

    problems += unknown_names(values)
    problems += unknown_names({"backend": options.local_backend})
    call = Invocation(make_config(values, problems), options, as_json, quiet)
    from harness.search.overhead import job

    return many_runs.execute("overhead", call, job.problems, job.measure)


def sweep(arguments: list[str]) -> int:
    parser = run_parser(
        "sweep",
        "Measure latency against load, with a run at each rate; or measure a grid, with a run for each combination of "
        "batch, precision, backend, threads and more. For a grid, --model, --backend and --threads may be lists "
        "(a,b), and --input-shape may have several shapes (NAME=1x8/1x16). Writes a table, a CSV file and a page with "
        "plots. With several backends (a,b or all) and without --batch, find the fastest backend: compare the "
        "backends' answers first, then run the backends in turns. With --models, measure the throughput and tail "
        "latency of a set of models for each number of workers, and the cost of the cache when every request misses.",
        (
            "--scenario server [--slo SLO] [--rate RATES] [options]",
            "[--batch SIZES] [--precision NAMES] [options]",
            "--backend all|NAMES [--precision NAMES] [options]",
            "--scenario server --models FILE [--workers NUMBERS] [options]",
            "--resume DIR",
            "--from DIR",
        ),
        (SweepOptions, WorkersOptions, GridOptions, RuntimesOptions, RunConfig),
        _SWEEP_EXAMPLES.format(program=program()),
    )
    parser.set_helps(
        {
            **_REFUSED,
            **dict.fromkeys(("target_qps", "concurrency")),
            "mode": "performance, accuracy or both (default performance; both for a grid)",
            "duration": "approximate duration of each run, e.g. 10s or 2min (default 10s; 1s for several backends)",
            "out": "result folder; except with --models, the same command continues a stopped sweep in this folder "
            "(default results/TIME-sweep-server-BACKEND-MODEL; for a grid: grid-SCENARIO-BACKEND-MODEL; for several "
            "backends: runtimes-SCENARIO-BACKENDS-MODEL)",
        }
    )
    texts, problems = read_run_options(parser, arguments)
    _drop_until(texts, problems, "sweep")
    if "models" in texts or "workers" in texts:
        _drop_foreign(texts, problems, SweepOptions, "rates, not of workers")
        _drop_foreign(texts, problems, GridOptions, "a grid, not of workers")
        _drop_foreign(texts, problems, RuntimesOptions, "backends, not of workers")
        of_a_set = invocation(texts, problems, WorkersOptions, {"mode": "performance"}, _SEARCHED)
        from harness.search.workers import job as workers

        return many_runs.execute("sweep", of_a_set, workers.problems, workers.sweep)
    _drop_foreign(texts, problems, WorkersOptions, "the workers of --models FILE")
    if names_runtimes(texts):
        _drop_foreign(texts, problems, SweepOptions, "rates, not of backends")
        return _sweep_of_runtimes(texts, problems, arguments)
    _drop_foreign(texts, problems, RuntimesOptions, "several backends without a grid")
    if not names_grid(texts):
        _require_scenario(texts, problems)
        call = invocation(texts, problems, SweepOptions, {"mode": "performance"}, _SEARCHED)
        from harness.search.sweep import job

        return many_runs.execute("sweep", call, job.problems, job.sweep)
    _drop_foreign(texts, problems, SweepOptions, "rates, not for a grid")
    return _sweep_of_grid(texts, problems)


def _drop_until(texts: dict[str, Any], problems: list[str], verb: str) -> None:
    """Removes --until from `texts` and adds a problem, because the message for a single run would be wrong advice for a
    search.
    """
    if texts.pop("until", None) is not None:
        problems.append(
            f"--until lets one run go on until it is decided, but {verb} plans the length of its runs: drop it"
        )


def _require_scenario(texts: Mapping[str, Any], problems: list[str]) -> None:
    """Adds a problem if neither the command line nor a --config file can name the scenario. The general message would
    offer scenarios that have no rate, and would not say that a list of backends needs none.
    """
    if "scenario" not in texts and "config" not in texts:
        problems.append(
            f"{NO_SCENARIO}: pass --scenario server to sweep over rates, or several backends (--backend a,b or all) to "
            "compare them"
        )


def _drop_foreign(texts: dict[str, Any], problems: list[str], schema: type, what: str) -> None:
    """Removes options from `texts` that belong to another kind of sweep, and adds a problem for each option."""
    given = [key for key in map(option_key, visible_fields(schema)) if key in texts]
    for key in given:
        del texts[key]
    problems += [f"{flag_name(key)} applies only to a sweep of {what}: drop it" for key in given]


_SWEEP_EXAMPLES = """\
examples:
  # latency at eleven rates, from 10 % to 110 % of the peak
  {program} sweep --scenario server --slo p99=10ms --rate 10%..110%
  # speed and accuracy for each batch size and precision
  {program} sweep --batch 1,2,4..64 --precision fp32,int8 --duration 2s
  # the fastest of all backends with equal answers
  {program} sweep --model digits --backend all
  # throughput and p99 of a set of models with one to four workers
  {program} sweep --scenario server --models set.yaml --workers 1,2,3,4
"""


def _sweep_of_grid(texts: dict[str, Any], problems: list[str]) -> int:
    if "from" in texts:
        return _stored_sweep(texts, problems)
    if "resume" in texts:
        return _resumed_grid(texts, problems)
    drop_all(texts, problems)
    if names_all(texts):
        from harness.search.runtimes import choice

        texts["backend"] = ",".join(choice.readable(texts.get("model", "")))
    lists = take_lists(texts, problems)
    call = invocation(texts, problems, GridOptions, {"scenario": "offline"}, _ONE_RUNS)
    from harness.search.grid import job
    from harness.search.grid.cells.axes import axes_of

    own = replace(call.own, price=call.config.price)
    grid = Grid(axes_of(lists, call.config, own), own)
    return many_runs.execute("grid", call.with_own(grid), job.problems, job.sweep)


def _sweep_of_runtimes(texts: dict[str, Any], problems: list[str], arguments: Sequence[str]) -> int:
    from harness.search.runtimes import choice, job

    drop_all(texts, problems)
    if names_all(texts):
        texts["backend"] = ",".join(choice.every_runtime())
    lists = take_lists(texts, problems)
    given = {key: texts.pop(key) for key in OF_BOTH if key in texts}
    of_grid = GridOptions(**parse_values(GridOptions, given, "command line", problems))
    defaults = {
        "scenario": "single-stream",
        "mode": "performance",
        "duration_ns": RUNTIMES_DURATION_NS,
    }
    call = invocation(texts, problems, RuntimesOptions, defaults, _ONE_RUNS)
    command = f"{program()} sweep {shlex.join(private.arguments(arguments))}"
    plan = choice.plan_of(lists, of_grid, call.own, call.config, command)
    return many_runs.execute("sweep", call.with_own(plan), choice.problems, job.measure)


def _resumed_grid(texts: dict[str, Any], problems: list[str]) -> int:
    trusted = texts.pop("trust", ())
    own = _only_folder("resume", (), texts, problems)
    assert own.resume is not None
    from harness.search.grid import job

    config, grid = job.stored(own.resume)
    named = code.values_of(config)
    source, digests = f"--resume {own.resume}", {"plugin_sha256": named["plugin_sha256"]}
    backends = [{**digests, "backend": backend} for backend in grid.axes.backend]
    values = ({**named, "backend": None}, *backends)
    refuse(line for v in values for line in code.untrusted(source, v, trusted))
    if "quiet" not in texts:
        say("\n".join(filter(None, (code.announcement(source, v) for v in values))))
    call = Invocation(config, grid, "json" in texts, "quiet" in texts)
    return many_runs.execute("grid", call, job.problems, job.sweep)


def _stored_sweep(texts: dict[str, Any], problems: list[str]) -> int:
    own = _only_folder("from", ("accuracy_floor", "price"), texts, problems)
    assert own.from_ is not None
    from harness.search.grid import job as grid
    from harness.search.grid.cells.cells import GRID
    from harness.search.sweep import job as rates
    from harness.search.workers import job as workers

    if (own.from_ / run_folder.RUNTIMES).is_file():
        from harness.search.runtimes import job as runtimes

        return runtimes.show_stored(own.from_, as_json="json" in texts)
    if (own.from_ / run_folder.WORKERS).is_file():
        return workers.show_stored(own.from_, as_json="json" in texts)
    if (own.from_ / rates.SWEEP).is_file():
        return rates.show_stored(own.from_, as_json="json" in texts)
    if not (own.from_ / GRID).is_file():
        raise ConfigError(files.not_a_study(own.from_, "sweep"))
    return grid.show_stored(own.from_, own, as_json="json" in texts)


def _only_folder(
    name: str, allowed: Sequence[str], texts: Mapping[str, Any], problems: list[str]
) -> GridOptions:
    """Returns --NAME and the options in `allowed`. Refuses all other options, because the folder already contains their
    values.
    """
    problems += [
        f"--{name} takes all options from its folder: drop {flag_name(key)}"
        for key in texts
        if key not in (name, *allowed, "json", "quiet")
    ]
    own = {key: texts[key] for key in (name, *allowed) if key in texts}
    values = parse_values(GridOptions, own, "command line", problems)
    refuse(problems)
    return GridOptions(**values)
