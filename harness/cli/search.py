"""The command lines of the verbs that make runs of their own: tune, peak, sweep and profile."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from harness.cli.run_options import configured, given_options, run_parser
from harness.core.config.options import (
    flag_name,
    ignored_beside,
    option_key,
    parse_values,
    visible_fields,
)
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.explain.profile.options import ProfileOptions
from harness.search.grid.cells.options import Grid, GridOptions, is_asked, take_lists
from harness.search.options import TUNE_DURATION_NS, PeakOptions, SweepOptions, TuneOptions

T = TypeVar("T")

_ONE_RUNS = (
    *("queries", "target_qps", "max_batch"),
    *("model_file", "model_sha256", "dataset_digest"),
)
"""Of a file: what one run was sized to or made with, and others are not."""


def peak(arguments: list[str]) -> int:
    about = (
        "The highest rate (server; multi-stream: samples per query) that is VALID under the SLO: "
        "short probes close in on it, full-length runs confirm it. --target-qps is where to begin; "
        "with --concurrency N, where to begin, the most queries in flight are found."
    )
    parser = run_parser((PeakOptions,), ("peak --scenario NAME [options]",), about)
    return _searched("peak", PeakOptions, given_options(parser, arguments))


def sweep(arguments: list[str]) -> int:
    about = (
        "Latency against offered load: a run at each rate. Or a grid: a run for each batch, "
        "precision, framework and more. A table, a CSV and a page with plots."
    )
    usages = (
        "sweep --scenario NAME [--rate RATES] [options]",
        "sweep [--batch SIZES] [--precision NAMES] [options]",
        "sweep --resume FOLDER | --from FOLDER",
    )
    parser = run_parser((SweepOptions, GridOptions), usages, about)
    options = given_options(parser, arguments)
    grid = is_asked(options)
    for field in visible_fields(SweepOptions if grid else GridOptions):
        if options.pop(option_key(field)) is not None:
            flag = flag_name(option_key(field))
            options["problems"].append(f"{flag} is for a sweep of rates, not for a grid: drop it")
    return _grid(options) if grid else _searched("sweep", SweepOptions, options)


def profile(arguments: list[str]) -> int:
    about = (
        "Where the time of a query goes, from LoadGen down to the kernels: one harness run, then "
        "bare and profiled calls; tables, a trace and a page with flame view and roofline."
    )
    parser = run_parser((ProfileOptions,), ("profile [options]", "profile --from FOLDER"), about)
    options = given_options(parser, arguments)
    given = {key: value for key, value in options.items() if value not in (None, False)}
    given.pop("problems")
    shown = ("otlp", "table", "out", "json", "quiet")
    options["problems"] += ignored_beside("from", given, shown)
    return _searched(
        *("profile", ProfileOptions, options),
        {"scenario": "single-stream", "duration_ns": 3 * NS_PER_S},
        (),
    )


def tune(arguments: list[str]) -> int:
    about = (
        "Instances, threads, largest batch and the backend's own options that suit model, machine, "
        "scenario and SLO: bare loops cut the grid down, LoadGen judges what is left. What is given "
        "(--instances, --threads, --max-batch, --backend-option) is kept. server: at --target-qps, "
        "else at the highest rate that meets the SLO. --duration is that of a run (default 1500ms)."
    )
    parser = run_parser((TuneOptions,), ("tune --scenario NAME [options]",), about)
    return _searched(
        *("tune", TuneOptions, given_options(parser, arguments)),
        {"duration_ns": TUNE_DURATION_NS},
        ("queries", "duration_ns", "instances", "threads", "max_batch"),
    )


def _grid(options: dict[str, Any]) -> int:
    alone = "from" if options["from"] is not None else "resume"
    if options[alone] is None:
        lists = take_lists(options, options["problems"])
        config, own, how = configured(options, GridOptions, {"scenario": "offline"}, _ONE_RUNS)
        from harness.search.grid.cells.axes import axes_of

        grid = Grid(axes_of(lists, config, own), own)
    else:
        own, how = _alone(options, alone)
        from harness.search.grid import job as verb
        from harness.search.sweep import job as rates

        if own.from_ is not None:
            if (own.from_ / rates.SWEEP).is_file():
                return rates.show_stored(own.from_, as_json=how["as_json"])
            return verb.show_stored(own.from_, own, as_json=how["as_json"])
        assert own.resume is not None
        config, grid = verb.stored(own.resume)
    from harness.cli import search_verbs

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


def _searched(
    verb: str,
    more: type[T],
    options: dict[str, Any],
    defaults: Mapping[str, Any] = MappingProxyType({}),
    not_from_file: Sequence[str] = ("queries", "target_qps"),
) -> int:
    """not_from_file: what a file of one run says of that run alone; others are found."""
    defaults = {"mode": "performance", **defaults}
    config, own, how = configured(options, more, defaults, not_from_file)
    from harness.cli import search_verbs

    return search_verbs.execute(verb, config, own, **how)
