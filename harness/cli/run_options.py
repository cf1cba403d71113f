"""Converts a run's options from the command line and from files to a RunConfig."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from harness import __version__
from harness.cli.parser import Parser, add_options, read_options
from harness.cli.start import config_files
from harness.cli.start.config_files import CONFIG_FLAG, ConfigFile, presets
from harness.core import registry
from harness.core.config import code
from harness.core.config.options import (
    flag_name,
    option_key,
    parse_values,
    visible_fields,
)
from harness.core.config.problems import of_other_scenarios
from harness.core.config.run_config import RunConfig, config_from, make_config
from harness.core.config.schema import RunOptions
from harness.core.console import say
from harness.core.registry import default_model
from harness.errors import ConfigError, HarnessError, refuse
from harness.search.options import RepeatOptions, WorkersOptions

T = TypeVar("T")
U = TypeVar("U")


class Alias(NamedTuple):
    ours: str
    """The harness's name for the option."""
    value: str = "{}"
    """The harness's spelling of the value, in which {} is replaced by the value. Times are in seconds."""


ALIASES: Mapping[str, Alias] = {
    "--qps": Alias("--target-qps"),
    "--max-batchsize": Alias("--max-batch"),
    "--dataset-path": Alias("--data-dir"),
    "--output": Alias("--out"),
    "--time": Alias("--duration", "{}s"),
    "--max-latency": Alias("--slo", "p99={}s"),
}
_REFUSED: Mapping[str, str] = {
    "--count": "use --queries N in place of --count",
    "--accuracy": "use --mode accuracy in place of --accuracy",
}
"""Maps each option of MLPerf's reference harness that the harness refuses to a message that names the option to use
instead.
"""


_OF_THE_CALL = ("config", "trust", "json", "quiet")
"""Options in `run_parser` that do not belong to the run."""


class Invocation(NamedTuple, Generic[T]):
    """A call of a verb that makes runs."""

    config: RunConfig
    own: T
    """The verb's options, as an instance of the verb's schema."""
    as_json: bool
    quiet: bool

    def with_own(self, own: U) -> "Invocation[U]":
        return Invocation(self.config, own, self.as_json, self.quiet)


def run_parser(
    verb: str, about: str, usages: Sequence[str], schemas: Sequence[type], notes: str = ""
) -> Parser:
    """Returns a parser with the schemas' options, in order, and the options that all verbs that make runs share."""
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
        f"read options from a YAML file, a run's folder, or a preset ({', '.join(presets())}); "
        "a later file overrides an earlier one, and the command line overrides all (repeatable)",
        action="append",
        default=None,
    )
    add_trust(parser, "allow this code, named in a --config file, to run")
    parser.flag("--json", "print JSON instead of a table")
    parser.flag("--quiet", "print no progress and no notices")
    return parser


RUN_FOLDER = "the folder of a run, e.g. results/latest"
"""Help text for an argument that names a finished run."""


def add_trust(parser: Parser, about: str) -> None:
    """Adds the option with which the user permits the execution of code that a file or folder names."""
    parser.text(code.TRUST, "NAME", f"{about} (repeatable)", action="append", default=None)


def read_run_options(parser: Parser, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Maps the key of each option on the command line to its text; also returns the problems. Options in `ALIASES` are
    returned under the harness's names.

    Reads the files that --config lists. `config` becomes a ConfigFiles, and the verb's options in these files are added
    to the texts.
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
    """Takes each value from the command line, or else from the last --config file that sets it, or else from the verb's
    defaults.

    texts, problems: the results of `read_run_options`. schema: the verb's options. defaults: fields of RunConfig.
    not_from_file: fields of RunConfig that the verb does not accept from a file. Raises a single ConfigError that lists
    every problem.
    """
    own_keys = {option_key(field) for field in visible_fields(schema)}
    own = {key: texts[key] for key in texts if key in own_keys}
    of_run = {key: texts[key] for key in texts if key not in {*own_keys, *_OF_THE_CALL}}
    typed = config_from(of_run, "command line", problems)
    files = _Stored(texts["config"].files if "config" in texts else ())
    for key in of_run:
        files.settle(key, typed.get(_FIELDS[key]), "the command line")
    files.leave_out(not_from_file)
    stored = files.values
    values = {
        field: value
        for field, value in defaults.items()
        if not any(field in _reset(key) for key in of_run)
    }
    values |= stored
    if "arrivals" in values and "duration_ns" not in stored:
        # The verb's default duration does not apply, because the last arrival ends the run.
        values.pop("duration_ns", None)
    values |= typed
    problems += _of_a_set(values, schema)
    foreign = {key: value for key, value in stored.items() if key in values and key not in typed}
    source = str(texts.get("config"))
    for file in texts["config"].files if "config" in texts else ():
        if file.is_of_run:
            from harness.results.resolved import without_folder

            bare = without_folder(RunOptions(**{"scenario": "", **foreign}))
            if bare:  # `publish` removed the folders, so do not look up these names
                refuse([*problems, published(file.name, bare)])
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
        say("\n".join(files.notices(typed)))
    return Invocation(config, schema(**own_values), "json" in texts, "quiet" in texts)


def _of_a_set(values: dict[str, Any], schema: type) -> Iterator[str]:
    """Sets performance mode for --models, because --models does not support any other mode.

    If the verb varies one model, yields a problem.
    """
    if values.get("models") is not None:
        values.setdefault("mode", "performance")
        if schema not in (RepeatOptions, WorkersOptions):
            yield "--models is for `run` and `sweep`, but this verb varies one model: drop it"


_BY_KEY = {option_key(field): field for field in visible_fields(RunConfig)}
_FIELDS = {key: field.name for key, field in _BY_KEY.items()}
_FLAGS = {field.name: flag_name(option_key(field)) for field in visible_fields(RunConfig)}
_DEFAULTS = {field.name: field.default for field in visible_fields(RunConfig)}
_TOLD = {**_FLAGS, "model_file": "model_file"}
"""Maps a field to its name in a notice. Values that are resolved from other options do not cause notices."""

_IMPLIED = ("backend", "model")
"""Options whose default applies if a file does not set them."""


def _reset(key: str) -> Sequence[str]:
    """Returns the fields that become invalid if an option overrides the value in a file. For example, `--config RUN
    --model y` must not use the digest, dataset and largest batch of the old model.
    """
    meta = _BY_KEY[key].metadata
    return (*meta["resets"], *meta["resets_of_run"])


def _not_taken(scenario: str, values: Mapping[str, Any]) -> list[str]:
    """Returns the fields in a file that are invalid in the scenario. These fields are options for other scenarios and,
    if latencies only reflect the load, also an SLO.
    """
    fields = list(of_other_scenarios(scenario, values))
    judged = "slo" in values and registry.load("scenario", scenario).all_at_once
    return [*fields, "slo"] if judged else fields


class _Stored:
    """Fields of RunConfig in the --config files, except fields that later values make invalid."""

    def __init__(self, files: Sequence[ConfigFile]) -> None:
        self.values: dict[str, Any] = {}
        self._from: dict[str, ConfigFile] = {}
        self._left_out: dict[tuple[str, str], list[str]] = {}
        for file in files:
            for key in file.keys:
                field = _FIELDS.get(key)
                if field in file.values:
                    self.settle(key, file.values[field], file.name)
            self.values |= file.values
            self._from |= dict.fromkeys(file.values, file)

    def settle(self, key: str, value: object, by: str) -> None:
        """Drops the fields that become invalid when the command line or a later file sets `key` to `value`."""
        option = _BY_KEY[key]
        implied = option.default if key in _IMPLIED else None
        if value is False or self.values.get(option.name, implied) == value:
            return
        for field in _reset(key):
            file = self._from.get(field)
            if file is not None and (field in option.metadata["resets"] or file.is_of_run):
                self._drop(field, f"{by} sets --{key.replace('_', '-')}")
        if key == "scenario" and value is not None:
            for field in _not_taken(str(value), self.values):
                self._drop(field, f"{by} sets --scenario {value}")

    def leave_out(self, fields: Sequence[str]) -> None:
        """Drops fields that the verb itself sets."""
        for field in fields:
            if field in self.values:
                self._drop(field, "this verb chooses the value itself")

    def _drop(self, field: str, why: str) -> None:
        value, file = self.values.pop(field), self._from.pop(field)
        if field in _TOLD and value != _DEFAULTS.get(field):
            self._left_out.setdefault((file.name, why), []).append(field)

    def notices(self, typed: Mapping[str, Any]) -> Iterator[str]:
        """Yields one line per file and reason, but ignores fields that the command line (`typed`) or a later file sets."""
        for (name, why), fields in self._left_out.items():
            lost = [field for field in fields if field not in typed and field not in self.values]
            if lost:
                yield f"{name}: {', '.join(map(_TOLD.__getitem__, lost))} left out, because {why}"


def with_sources(problems: str, arguments: Sequence[str]) -> str:
    """Adds a source to each line: the preset or file that set the line's options.

    Omits options that the command line sets, and files that the line already mentions.
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
    except HarnessError:  # the problems already include this error
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


def published(copy: str, fields: Sequence[str]) -> str:
    """Returns the problem with a published copy of a run.

    fields: fields of the copy's config.yaml that name files without their folders.
    """
    flags = (flag_name("model" if field == "model_file" else field) for field in fields)
    return (
        f"{copy} is a published copy, whose paths were cut to file names: run the original again, or "
        f"pass your own {', '.join(dict.fromkeys(flags))} with --config {copy}"
    )


def _contradictions(of_run: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yields a problem for options on the command line that exclude each other. A config.yaml may contain both options."""
    lengths = [key for key in ("queries", "duration") if key in of_run]
    if values.get("mode") == "accuracy":
        for key in lengths:
            yield f"--{key} sets the length of the performance run: drop it with --mode accuracy"
    elif len(lengths) > 1:
        yield "--queries and --duration both set the length of the run: keep one"
    if "metric" in of_run and _dataset(values) == "synthetic":
        yield (
            "--metric cannot score synthetic data, which has no labels: drop it, or pass a different --dataset"
        )


def _dataset(values: Mapping[str, Any]) -> str:
    """Returns the dataset's name, or "" if the model is unknown, which is reported separately."""
    from harness.models.manifest.defaults import default_dataset
    from harness.models.manifest.lookup import load_model

    if values.get("dataset") is not None:
        return str(values["dataset"])
    try:
        return default_dataset(
            load_model(values.get("model") or default_model(values.get("backend", "")))
        )
    except ConfigError:
        return ""


def _translated(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the options of MLPerf's reference harness replaced by the harness's options."""
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
