"""Loads and validates the rules of an MLPerf round from rounds/<name>.yaml. A new file in this folder adds a round."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError
from harness.submit.rules.tree.round_names import DEFAULT, FOLDER, known_rounds


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Bound(_Strict):
    """Bound for a score, computed as `reference` times `share`, as in the rules."""

    reference: float
    share: float

    @property
    def value(self) -> float:
        return self.reference * self.share


class Seeds(_Strict):
    qsl: int
    sample_index: int
    schedule: int


class TokenLimit(_Strict):
    """Limits in ns for two p99 values: the time to the first token, and the time per output token."""

    ttft: int
    tpot: int


class Interactive(_Strict):
    """Values that a benchmark changes in the Interactive scenario."""

    samples: int
    targets: dict[str, Bound]


class Work(_Strict):
    """Minimum work that a benchmark requires: operations per sample (two per multiplication), and size of the model and
    data.
    """

    gflop: float
    memory_gb: float
    disk_gb: float


class Benchmark(_Strict):
    """A benchmark in the round. Counts are in samples.

    loadgen: the benchmark's key in LoadGen's built-in mlperf.conf
    edge, datacenter, both: scenarios that a system of one or both categories requires
    token_limits_ns: None if the benchmark has no tokens
    end_tokens: ids of tokens that end an answer of a language model
    accuracy_max_tokens: largest number of tokens per answer in the accuracy run; 0 for the performance run's limit
    audit_config: settings of audit.config for this benchmark only, by audit
    user_conf: settings that the round requires and LoadGen's mlperf.conf lacks, by scenario
    timed: False if a run is a single pass over the data set
    client: the program that measures the speed under the benchmark's rules; empty for LoadGen
    unknown_to: MLCommons' checkers that crash on the benchmark or refuse it, whatever the folder contains
    """

    loadgen: str
    edge: tuple[str, ...] = ()
    datacenter: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    samples: int
    performance_samples: int
    offline_samples: int = 0
    targets: dict[str, Bound]
    limits: dict[str, Bound] = {}
    accuracy_delta_percent: dict[str, float] = {}
    latency_limit_ns: dict[str, int] = {}
    token_limits_ns: dict[str, TokenLimit] | None = None
    results: dict[str, str] = {}
    audits: tuple[str, ...] = ()
    test01_answers: int | None = None
    end_tokens: tuple[int, ...] = ()
    accuracy_max_tokens: int = 0
    interactive: Interactive | None = None
    accuracy_videos: tuple[int, ...] = ()
    audit_config: dict[str, dict[str, int | float]] = {}
    user_conf: dict[str, dict[str, int]] = {}
    work: Work
    timed: bool = True
    client: str = ""
    unknown_to: tuple[str, ...] = ()

    @property
    def has_accuracy_data(self) -> bool:
        """Whether the accuracy run has a separate, smaller data set."""
        return self.performance_samples > self.samples

    @property
    def counts_tokens(self) -> bool:
        """Whether a published number depends on the number of tokens in the answers."""
        return any("tokens" in key for key in self.results.values())

    def scenarios(self, category: str) -> tuple[str, ...]:
        """Returns the scenarios that a closed submission requires; () if the category does not include the benchmark."""
        return {"edge": self.edge, "datacenter": self.datacenter}.get(category, self.both)

    def optional_in(self, category: str) -> tuple[str, ...]:
        """Returns the scenarios from which a closed submission in this category needs at least one;
        () if it needs none.
        """
        return self.optional if "datacenter" in category else ()

    def samples_in(self, scenario: str) -> int:
        special = self.interactive if scenario == "Interactive" else None
        return special.samples if special else self.samples

    def targets_in(self, scenario: str) -> Mapping[str, Bound]:
        special = self.interactive if scenario == "Interactive" else None
        return special.targets if special else self.targets

    def delta_percent(self, metric: str) -> float:
        """Returns the largest accuracy difference that is allowed between an audit and the accuracy run."""
        return self.accuracy_delta_percent.get(
            metric, self.accuracy_delta_percent.get("default", 1.0)
        )


class Audit(_Strict):
    """An audit that the round requires.

    outputs: patterns by file; each pattern must match a line of the file
    config: settings of LoadGen's audit.config
    logged: entries of the detail log with these settings
    runs: whether the audit is a performance run whose logs are in the submission
    needs: a requirement that the harness lacks and that keeps the harness from planning the audit
    """

    outputs: dict[str, tuple[str, ...]]
    config: dict[str, int] = {}
    logged: dict[str, int | bool] = {}
    runs: bool = False
    needs: str = ""


class Power(_Strict):
    """Requirements for a PTDaemon session. sources: files of each power-dev version, with their SHA-1."""

    fields: tuple[str, ...]
    versions: tuple[str, ...]
    meters: dict[str, int]
    two_channels: tuple[int, ...]
    clock_tolerance_ms: int
    least_share: float
    harmless: tuple[str, ...]
    uncertain: str
    hashed: tuple[str, ...]
    sources: tuple[dict[str, str], ...]


class SystemKeys(_Strict):
    meaningful: tuple[str, ...]
    present: tuple[str, ...]
    numbers: tuple[str, ...]
    at_least_one: tuple[str, ...]
    counted: tuple[str, ...]
    network: tuple[str, ...]

    @property
    def required(self) -> tuple[str, ...]:
        return self.meaningful + self.present


class Round(_Strict):
    """Content of a round's YAML file. The comments in that file explain the fields."""

    name: str
    loadgen: tuple[str, ...]
    loadgen_since: datetime
    seeds: Seeds
    min_duration_ms: int
    multi_stream_samples: int
    percentiles: dict[str, float]
    results: dict[str, str]
    inferred: tuple[tuple[str, str], ...]
    served_as: tuple[tuple[str, str], ...]
    divisions: tuple[str, ...]
    beside_divisions: tuple[str, ...]
    root_suffixes: tuple[str, ...]
    statuses: tuple[str, ...]
    categories: tuple[str, ...]
    largest_file_bytes: Annotated[int, Field(ge=1)]
    largest_accuracy_log_bytes: Annotated[int, Field(ge=1)]
    shown_accuracy_log_bytes: Annotated[int, Field(ge=1)]
    system_keys: SystemKeys
    network_sut: str
    network_categories: tuple[str, ...]
    measurement_keys: tuple[str, ...]
    performance_files: tuple[str, ...]
    accuracy_files: tuple[str, ...]
    scenario_files: tuple[str, ...]
    tolerated_files: tuple[str, ...]
    power_files: tuple[str, ...]
    power_log: str
    power: Power
    audits: dict[str, Audit]
    equal_issue: tuple[str, ...]
    patterns: dict[str, str]
    highest_scores: dict[str, float]
    aliases: dict[str, str]
    guesses: dict[str, str]
    benchmarks: dict[str, Benchmark]

    @property
    def scenarios(self) -> tuple[str, ...]:
        return tuple(self.results)

    def audit_settings(self, audit: str, benchmark: str) -> Mapping[str, int | float]:
        """Returns LoadGen's audit.config settings for this audit of this benchmark."""
        chosen = self.benchmarks[benchmark]
        answers = chosen.test01_answers if audit == "TEST01" else None
        target = {} if answers is None else {"accuracy_log_sampling_target": answers}
        return {**self.audits[audit].config, **target, **chosen.audit_config.get(audit, {})}

    def benchmark_of(self, folder: str, mapping: Mapping[str, str]) -> str | None:
        """Returns the benchmark to which a folder belongs.
        Tries the same criteria in the same order as the official checker: name, alias, mapping, part of a name.
        """
        if folder in self.benchmarks:
            return folder
        known = self.aliases.get(folder) or mapping.get(folder)
        if known is None:
            known = next((to for part, to in self.guesses.items() if part in folder), None)
        return known if known in self.benchmarks else None

    def scenario_of(self, folder: str) -> str | None:
        """Returns the scenario to which a folder belongs. Ignores case."""
        return next((s for s in self.scenarios if s.lower() == folder.lower()), None)

    def scores(self, text: str, metrics: Mapping[str, Bound]) -> dict[str, list[float]]:
        """Returns the values of each metric in accuracy.txt, in the order of the file. A value that is not a number
        becomes NaN.
        """
        scores: dict[str, list[float]] = {}
        for line in text.splitlines():
            for metric in metrics:
                match = re.match(self.patterns[metric], line)
                if match:
                    scores.setdefault(metric, []).append(_number(match[1]))
        return scores


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # e.g. 1.2.3
        return float("nan")


@lru_cache(maxsize=4)
def load_round(name: str = DEFAULT) -> Round:
    if name not in known_rounds():
        raise ConfigError(f"no round named {name!r}: choose from {', '.join(known_rounds())}")
    path = FOLDER / f"{name.replace('.', '_')}.yaml"
    try:
        return Round.model_validate(load_yaml(path))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None
