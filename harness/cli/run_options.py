"""A run's options, on the command line and in a file, into a RunConfig; every problem at once."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from harness import __version__
from harness.core.config.options import (
    Parser,
    add_options,
    option_key,
    parse_known,
    parse_values,
    visible_fields,
)
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, config_from, make_config
from harness.errors import ConfigError
from harness.search.options import RepeatOptions

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
  # the plan that suits model and machine, the highest rate that meets the SLO, latency against load
  python -m harness tune --scenario server --slo p99=10ms
  python -m harness peak --scenario server --slo p99=10ms
  python -m harness sweep --scenario server --slo p99=10ms --rate 10%..110%
  # a grid of fresh runs: what batch, precision and threads make of speed and accuracy
  python -m harness sweep --batch 1,2,4..64 --precision fp32,int8 --duration 2s
verbs:
  run (the default), tune, peak, sweep, profile, check, compare, rerun, report, arrivals, submit,
  data, pitfalls, bricks, advise, list, runs; each has its own --help
"""

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
    "arrivals": ("queries", "duration_ns", "target_qps", "arrivals_sha256", "concurrency"),
    "concurrency": ("queries", "target_qps", "arrivals", "arrivals_sha256"),
    "no_metrics": ("metrics", "metrics_linger_ns"),
    "metrics": ("no_metrics",),
    "model": ("model_sha256", "model_file", "dataset", "dataset_digest", "metric", "max_batch"),
    "dataset": ("data_dir", "dataset_digest"),
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


def run_parser(
    more: Sequence[type] = (RepeatOptions,),
    usages: Sequence[str] = ("[run] --scenario NAME [options]", "VERB ..."),
    about: str = "Drive a model with MLPerf LoadGen and leave a result folder to be trusted.",
) -> argparse.ArgumentParser:
    """more: the verb's own options, beside those of RunConfig. usages: what follows the program."""
    parser = Parser(
        prog="python -m harness",
        description=about,
        epilog=EXAMPLES,
        allow_abbrev=False,
        usage="\n       ".join(f"%(prog)s {words}" for words in usages),
    )
    parser.add_argument("--version", action="version", version=f"mlperf-harness {__version__}")
    add_options(parser, RunConfig, *more)
    parser.add_argument("--config", metavar="FILE", help="options from YAML; the command line wins")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress and no notices")
    return parser


def given_options(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[str, Any]:
    """What is on the command line, as text, and `problems`, what is unknown there."""
    return vars(parse_known(parser, _translated(arguments)))


def configured(
    options: dict[str, Any],
    more: type[T],
    defaults: Mapping[str, Any] = MappingProxyType({}),
    not_from_file: Sequence[str] = (),
) -> tuple[RunConfig, T, dict[str, bool]]:
    """The configuration, the verb's own options, and as_json and quiet; every problem at once."""
    file, as_json, quiet = options.pop("config"), options.pop("json"), options.pop("quiet")
    problems: list[str] = options.pop("problems")
    own = {k: options.pop(k) for k in [option_key(f) for f in visible_fields(more)]}
    values = from_file(Path(file), problems) if file else {}
    given = {k: v for k, v in options.items() if v is not None}
    for key in not_from_file:
        values.pop(key, None)
    in_file = set(values)
    values = {**defaults, **values}
    for key in given:
        for resolved in _OVERRIDDEN.get(key, ()):
            values.pop(resolved, None)
    if "arrivals" in values and "duration_ns" not in in_file:
        values.pop("duration_ns", None)  # they say how long, whatever the verb has for others
    values |= config_from(given, "command line", problems)
    own_values = parse_values(more, own, "command line", problems)
    if not values.keys().isdisjoint(("backend", "dataset", "meter", "metric", "model")):
        from harness.machine import sampler
        from harness.models.opened.loading import unknown_names

        problems += [*unknown_names(values), *sampler.unknown(values.get("meter", ()))]
    config = make_config(values, problems)
    return config, more(**own_values), {"as_json": as_json, "quiet": quiet}


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
    from harness.core.strict_yaml import load_yaml

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
