"""Reads the options of a run, from the command line and from a file, into a RunConfig.

An option of a run is a field of `RunOptions` (harness/core/config/schema.py), where it gets its flag, its
key in a file, its help and its parser. It needs an entry here only in these cases:

`SETTLED_ANEW`: a config.yaml holds a value that no longer holds once the option is set beside it.
`ALIASES`: MLPerf's reference harness has the same option under another name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from harness import __version__
from harness.cli.parser import Parser, add_options, read_options
from harness.cli.start import config_files
from harness.cli.start.config_files import CONFIG_FLAG, ConfigFiles, presets
from harness.core.config import code
from harness.core.config.options import (
    flag_name,
    option_key,
    parse_values,
    user_path,
    visible_fields,
)
from harness.core.config.run_config import RunConfig, config_from, make_config
from harness.core.config.schema import RunOptions
from harness.core.console import say
from harness.errors import ConfigError, HarnessError, refuse
from harness.search.options import RepeatOptions, WorkersOptions

T = TypeVar("T")
U = TypeVar("U")


class Alias(NamedTuple):
    ours: str
    """Our name of the option."""
    value: str = "{}"
    """Our spelling of the value; {} stands for the value, which is in seconds where it is a time."""


ALIASES: Mapping[str, Alias] = {
    "--qps": Alias("--target-qps"),
    "--max-batchsize": Alias("--max-batch"),
    "--dataset-path": Alias("--data-dir"),
    "--output": Alias("--out"),
    "--time": Alias("--duration", "{}s"),
    "--max-latency": Alias("--slo", "p99={}s"),
}
_REFUSED: Mapping[str, str] = {
    "--count": "--count is --queries here: --queries N",
    "--accuracy": "--accuracy is a mode here: --mode accuracy",
}
"""An option of MLPerf's reference harness that cannot be translated -> the message that refuses it."""

_SEEDS = ("qsl_seed", "sample_index_seed", "schedule_seed")
SETTLED_ANEW: Mapping[str, Sequence[str]] = {
    "seed": (*_SEEDS, "dataset_digest"),
    "input_shape": ("dataset_digest",),
    "input_range": ("dataset_digest",),
    "lengths": ("dataset_digest",),
    "duration": ("queries",),
    "slo": ("queries",),
    "instances": ("threads",),
    "mlperf": (
        "duration_ns",
        "queries",
        "seed",
        "slo",
        "samples_per_query",
        "target_qps",
        *_SEEDS,
    ),
    "target_qps": ("queries", "arrivals", "arrivals_sha256", "concurrency"),
    "arrivals": ("queries", "duration_ns", "target_qps", "arrivals_sha256", "concurrency"),
    "concurrency": ("queries", "target_qps", "arrivals", "arrivals_sha256", "load_hosts"),
    "no_metrics": ("metrics", "metrics_linger_ns"),
    "metrics": ("no_metrics",),
    "model": ("model_sha256", "model_file", "dataset", "dataset_digest", "metric", "max_batch"),
    "dataset": ("data_dir", "dataset_option", "dataset_digest"),
    "models": (
        *("model", "model_sha256", "model_file", "dataset", "dataset_digest", "metric"),
        *("max_batch", "instances", "threads"),
    ),
    "data_dir": ("dataset_digest",),
    "dataset_option": ("dataset_digest",),
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
        "load_hosts",
        "instances",
        "threads",
        "max_batch",
        "dispatch",
        "batch_wait_ns",
    ),
    "pin": ("oversubscribe",),
    "oversubscribe": ("pin",),
}
"""Key of an option on the command line -> fields of RunConfig that a --config file no longer sets.

A config.yaml of a finished run holds every value as it was resolved. `--config x --model y` must not
take the checksum, the data set and the batch size of the old model from it.
"""


_OF_THE_CALL = ("config", "trust", "json", "quiet")
"""Options of `run_parser` that are not options of the run."""


class Invocation(NamedTuple, Generic[T]):
    """One call of a verb that makes runs."""

    config: RunConfig
    own: T
    """The options of the verb itself, an instance of its schema."""
    as_json: bool
    quiet: bool

    def with_own(self, own: U) -> "Invocation[U]":
        return Invocation(self.config, own, self.as_json, self.quiet)


def run_parser(
    verb: str, about: str, usages: Sequence[str], schemas: Sequence[type], notes: str = ""
) -> Parser:
    """A parser with the options of the schemas in their order, and those that all verbs with runs have."""
    parser = Parser(verb, about, *usages, notes=notes)
    add_options(parser, *schemas)
    parser.add_argument(
        "--version",
        action="version",
        version=f"mlperf-harness {__version__}",
        help="print the version",
    )
    parser.text(
        CONFIG_FLAG,
        "FILE",
        f"read options from a YAML file, a run's folder, or a preset: {', '.join(presets())}; "
        "of several the last one wins, and the command line wins over all (repeatable)",
        action="append",
        default=None,
    )
    add_trust(parser, "code that a file of --config names, so that it may run")
    parser.flag("--json", "print JSON instead of a table")
    parser.flag("--quiet", "print no progress and no notices")
    return parser


def add_trust(parser: Parser, about: str) -> None:
    """The option by which the user names code that a file or folder names."""
    parser.text(code.TRUST, "NAME", f"{about} (repeatable)", action="append", default=None)


def read_run_options(parser: Parser, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(text by key of the options on the command line, problems), with `ALIASES` under our names.

    The files of --config are read: `config` is a ConfigFiles, and the verb's own options in them are among
    the texts.
    """
    texts, problems = read_options(parser, _translated(arguments))
    if "config" in texts:
        own = parser.fields.keys() - {option_key(field) for field in visible_fields(RunConfig)}
        files = config_files.read(texts["config"], own, problems)
        if "quiet" not in texts:
            say("\n".join(files.notices))
        texts = {**files.own, **texts, "config": files}
    return texts, problems


def invocation(
    texts: Mapping[str, Any],
    problems: list[str],
    schema: type[T],
    defaults: Mapping[str, Any] = MappingProxyType({}),
    not_from_file: Sequence[str] = (),
) -> Invocation[T]:
    """Values of the command line, else of the last --config file that has them, else the verb's defaults.

    texts, problems: as `read_run_options` returns them. schema: the verb's own options.
    defaults: fields of RunConfig. not_from_file: fields of RunConfig that the verb does not take
    from a file. Raises one ConfigError with every problem.
    """
    own_keys = {option_key(field) for field in visible_fields(schema)}
    own = {key: texts[key] for key in texts if key in own_keys}
    of_run = {key: texts[key] for key in texts if key not in {*own_keys, *_OF_THE_CALL}}
    stored = _stored(texts["config"]) if "config" in texts else {}
    stored = {key: value for key, value in stored.items() if key not in not_from_file}
    values = {**defaults, **stored}
    for key in of_run:
        for field in SETTLED_ANEW.get(key, ()):
            values.pop(field, None)
    if "arrivals" in values and "duration_ns" not in stored:
        values.pop("duration_ns", None)  # the file of arrivals sets it, not the verb's default
    typed = config_from(of_run, "command line", problems)
    values |= typed
    problems += _of_a_set(values, schema)
    foreign = {key: value for key, value in stored.items() if key in values and key not in typed}
    source = str(texts.get("config"))
    for name in texts["config"].names if "config" in texts else ():
        if _is_of_run(user_path(name)):
            from harness.results.resolved import without_folder

            bare = without_folder(RunOptions(**{"scenario": "", **foreign}))
            if bare:  # else its problems are of files that lie here by chance
                refuse([*problems, published(name, bare)])
    problems += code.untrusted(source, foreign, texts.get("trust", ()))
    problems += _contradictions(of_run, values)
    own_values = parse_values(schema, own, "command line", problems)
    if not values.keys().isdisjoint(("backend", "dataset", "meter", "metric", "model")):
        from harness.machine.power import opening
        from harness.models.opened.loading import unknown_names

        problems += [*unknown_names(values), *opening.unknown(values.get("meter", ()))]
    config = make_config(values, problems)
    if "quiet" not in texts:
        say(code.announcement(source, foreign))
    return Invocation(config, schema(**own_values), "json" in texts, "quiet" in texts)


def _of_a_set(values: dict[str, Any], schema: type) -> Iterator[str]:
    """A run of --models has no accuracy; verbs that vary one model refuse it."""
    if values.get("models") is not None:
        values.setdefault("mode", "performance")
        if schema not in (RepeatOptions, WorkersOptions):
            yield "--models makes single runs, and this verb varies one model: drop it"


def _stored(files: ConfigFiles) -> dict[str, Any]:
    """Fields of RunConfig in the files, each of which settles those before it anew."""
    stored: dict[str, Any] = {}
    for file in files.files:
        for key in file.keys:
            for field in SETTLED_ANEW.get(key, ()):
                stored.pop(field, None)
        stored |= file.values
    return stored


def with_sources(problems: str, arguments: Sequence[str]) -> str:
    """Each line with the preset or file that set the options in it, where neither the command line set them
    nor the line names the file.
    """
    given = f"{CONFIG_FLAG}="
    files = [
        word.removeprefix(given)
        for before, word in pairwise(("", *arguments))
        if before == CONFIG_FLAG or word.startswith(given)
    ]
    try:
        typed = [word.partition("=")[0] for word in _translated(arguments)]
        sources = config_files.sources(files)
    except HarnessError:  # it is among the problems
        return problems
    return "\n".join(_with_source(line, typed, sources) for line in problems.splitlines())


def _with_source(line: str, typed: Sequence[str], sources: Mapping[str, str]) -> str:
    flags = dict.fromkeys(_FLAG.findall(line))
    by_source: dict[str, list[str]] = {}
    for flag in flags:
        key = flag.removeprefix("--").replace("-", "_")
        if key in sources and flag not in typed and sources[key] not in line:
            by_source.setdefault(sources[key], []).append(flag)
    told = "; ".join(f"{source} sets {' and '.join(found)}" for source, found in by_source.items())
    return f"{line} ({told})" if told else line


_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


def _is_of_run(path: Path) -> bool:
    from harness.results.run_folder import CONFIG, RESULT

    return path.is_dir() or (path.name == CONFIG and (path.parent / RESULT).is_file())


def published(copy: str, fields: Sequence[str]) -> str:
    """The problem of a published copy. fields: those of its config.yaml that name files without a folder."""
    flags = (flag_name("model" if field == "model_file" else field) for field in fields)
    return (
        f"{copy} is a published copy, which names files without their folders: run the original again, or "
        f"pass your own {', '.join(dict.fromkeys(flags))} with --config {copy}"
    )


def _contradictions(of_run: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Options of the command line that rule each other out; a config.yaml may hold both, as resolved."""
    lengths = [key for key in ("queries", "duration") if key in of_run]
    if values.get("mode") == "accuracy":
        for key in lengths:
            yield f"--{key} sets the length of the performance run: drop it with --mode accuracy"
    elif len(lengths) > 1:
        yield "--queries and --duration both set the length of the run: keep one"
    if "metric" in of_run and _dataset(values) == "synthetic":
        yield (
            "--metric cannot score synthetic data, which has no labels: drop it, or pass another --dataset"
        )


def _dataset(values: Mapping[str, Any]) -> str:
    """Name of the dataset; "" where the model is unknown, which is a problem of its own."""
    from harness.models.manifest.defaults import default_dataset
    from harness.models.manifest.lookup import load_model

    if values.get("dataset") is not None:
        return str(values["dataset"])
    try:
        return default_dataset(load_model(values.get("model", "digits")))
    except ConfigError:
        return ""


def _translated(arguments: Sequence[str]) -> list[str]:
    """The words with the options of MLPerf's reference harness under our names."""
    words: list[str] = []
    pending: Alias | None = None
    for word in arguments:
        name, equals, value = word.partition("=")
        if pending is not None:
            words.append(pending.value.format(word))
            pending = None
        elif name in _REFUSED:
            raise ConfigError(_REFUSED[name])
        elif name not in ALIASES:
            words.append(word)
        else:
            alias = ALIASES[name]
            words.append(alias.ours)
            if equals:
                words.append(alias.value.format(value))
            else:
                pending = alias
    return words
