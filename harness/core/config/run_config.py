"""RunConfig: one run, as asked for. Frozen; every problem is reported at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.core.config.options import option, option_key, parse_values
from harness.core.config.parse import (
    SCENARIOS,
    Endpoint,
    Slo,
    bounded,
    parse_endpoint,
    parse_input_shape,
    parse_key_value,
    parse_lengths,
    parse_meter,
    parse_name,
    parse_path,
    parse_positive_duration_ns,
    parse_rate,
    parse_scenario,
    parse_slo,
    positive,
)
from harness.core.units import NS_PER_S, parse_duration_ns, write_duration
from harness.errors import ConfigError, some_of
from harness.types import Lognormal

SCHEMA_VERSION = 1
"""Of config.yaml and result.json; a file from a newer version is refused."""

MAX_BATCH = 65_535
"""Samples; the journal has 16 bits for the size of a batch."""

MAX_CONCURRENCY = 1_000_000

MAX_QUERIES = 2**31 - 1

MODES = ("performance", "accuracy", "both")
DISPATCHES = ("greedy", "deadline")


MAX_SEED = 2**64 - 1
_NO_SCENARIO = "--scenario is missing"
_NOT_REPEATED = ("out", "metrics", "no_metrics", "metrics_linger_ns", "no_report")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Times in ns, rates in queries/s (Offline: samples/s), batches in samples."""

    scenario: str = option(
        "single-stream, multi-stream, server (Poisson arrivals) or offline",
        parse=parse_scenario,
        metavar="NAME",
        group="what to run",
    )
    backend: str = option(
        "what answers: a name from `list`, module:Class or file.py:Class (default ort)",
        default="ort",
        parse=parse_name,
        metavar="NAME",
        group="what to run",
    )
    model: str = option(
        "a manifest's name or .yaml file, or a model file (default digits)",
        default="digits",
        parse=parse_name,
        metavar="MODEL",
        group="what to run",
    )
    dataset: str | None = option(
        "default: the manifest's, else synthetic",
        parse=parse_name,
        metavar="NAME",
        group="what to run",
    )
    data_dir: Path | None = option(
        "the dataset's file or folder", parse=parse_path, metavar="PATH", group="what to run"
    )
    metric: str | None = option(
        "default: the manifest's", parse=parse_name, metavar="NAME", group="what to run"
    )
    hook: Path | None = option(
        "the Python file that the manifest's postprocessing hook lies in: it is run",
        parse=parse_path,
        metavar="FILE",
        group="what to run",
    )
    mode: str = option(
        "performance, accuracy or both (default both)",
        choices=MODES,
        default="both",
        metavar="MODE",
        group="what to run",
    )
    out: Path | None = option(
        "result folder (default results/<time>-<scenario>-<backend>-<model>)",
        parse=parse_path,
        metavar="DIR",
        group="what to run",
    )
    duration_ns: int = option(
        "about how long the performance run takes, e.g. 10s, 2min (default 10s)",
        name="duration",
        parse=parse_positive_duration_ns,
        default=10 * NS_PER_S,
        metavar="TIME",
        group="the load",
    )
    queries: int | None = option(
        "exactly this many queries (offline: samples) instead of --duration",
        parse=positive(MAX_QUERIES),
        metavar="N",
        group="the load",
    )
    slo: Slo | None = option(
        "latency bound and its percentile, e.g. p99=15ms",
        parse=parse_slo,
        metavar="SLO",
        group="the load",
    )
    target_qps: float | None = option(
        "server: arrival rate in queries/s (default 25 % of the calibrated capacity)",
        parse=parse_rate,
        metavar="QPS",
        group="the load",
    )
    arrivals: Path | None = option(
        "server: replay this file, an arrival time a line; not MLPerf (docs/arrivals.md)",
        parse=parse_path,
        metavar="FILE",
        group="the load",
    )
    concurrency: int | None = option(
        "server: keep N queries in flight, each answer brings the next one; not MLPerf",
        parse=positive(MAX_CONCURRENCY),
        metavar="N",
        group="the load",
    )
    samples_per_query: int | None = option(
        "multi-stream: samples in a query (default 8)",
        parse=positive(4096),
        metavar="N",
        group="the load",
    )
    performance_count: int | None = option(
        "samples held in memory in a performance run (default: the dataset's)",
        parse=positive(2**31 - 1),
        metavar="N",
        group="the load",
    )
    seed: int | None = option(
        "seed of arrivals, sample order and synthetic data (default: the MLPerf round's)",
        parse=bounded(0, MAX_SEED),
        metavar="N",
        group="the load",
    )
    instances: int | None = option(
        "copies of the model that answer in parallel (default: streams 1, else one a core)",
        parse=positive(1024),
        metavar="N",
        group="how to answer",
    )
    threads: int | None = option(
        "threads of each instance (default: cores / instances)",
        parse=positive(1024),
        metavar="N",
        group="how to answer",
    )
    max_batch: int | None = option(
        "largest batch, in samples (default: the manifest's, else 8)",
        parse=positive(MAX_BATCH),
        metavar="N",
        group="how to answer",
    )
    oversubscribe: bool = option(
        "allow more threads than can compute at the same time",
        flag=True,
        default=False,
        group="how to answer",
    )
    pin: bool = option(
        "put each instance's threads on cores of its own",
        flag=True,
        default=False,
        group="how to answer",
    )
    dispatch: str = option(
        "server: greedy takes what waits, deadline what keeps the SLO (default greedy)",
        choices=DISPATCHES,
        default="greedy",
        metavar="NAME",
        group="how to answer",
    )
    batch_wait_ns: int = option(
        "server: how long a sample may wait for others to fill its batch, e.g. 500us (default 0s)",
        name="batch_wait",
        parse=parse_duration_ns,
        default=0,
        metavar="TIME",
        group="how to answer",
    )
    device: str = option(
        "cpu or cuda (default cpu); a backend that has it not refuses it",
        choices=("cpu", "cuda"),
        default="cpu",
        metavar="NAME",
        group="how to answer",
    )
    provider: str | None = option(
        "ort: execution provider, must then really be used (default: the device's)",
        metavar="NAME",
        group="how to answer",
    )
    input_shape: tuple[tuple[str, tuple[int, ...]], ...] = option(
        "size of an input whose dimensions are symbolic, e.g. ids=1x128 (repeatable)",
        parse=parse_input_shape,
        many=True,
        metavar="NAME=1xDIM",
        group="how to answer",
    )
    lengths: tuple[tuple[str, Lognormal | Path], ...] = option(
        "synthetic: lengths of a symbolic dimension, lognormal:median=128,sigma=0.6,max=512 or a "
        "file with one a line (repeatable)",
        parse=parse_lengths,
        many=True,
        metavar="DIM=LENGTHS",
        group="how to answer",
    )
    backend_option: tuple[tuple[str, str], ...] = option(
        "passed to the backend, e.g. compile=off; format=NAME chooses the model's file, processes=on "
        "puts each instance into a process of its own (repeatable)",
        parse=parse_key_value,
        many=True,
        metavar="KEY=VALUE",
        group="how to answer",
    )
    hang_timeout_ns: int | None = option(
        "give up after this long without progress (default: 10s, or 20 slowest warm-up batches)",
        name="hang_timeout",
        parse=parse_positive_duration_ns,
        metavar="TIME",
        group="how to answer",
    )
    meter: tuple[tuple[str, str], ...] = option(
        "read power: a name from `list`, NAME=ARGUMENT, module:Class or file.py:Class (repeatable)",
        parse=parse_meter,
        many=True,
        metavar="NAME",
        group="what to read meanwhile",
    )
    mlperf: bool = option(
        "the official rules: 600 s, official seeds, counts and bounds",
        flag=True,
        default=False,
        group="official rules",
    )
    user_conf: Path | None = option(
        "LoadGen's user.conf, with --mlperf",
        parse=parse_path,
        metavar="FILE",
        group="official rules",
    )
    audit: Path | None = option(
        "LoadGen's audit.config: a performance run for a compliance test, see `submit`",
        parse=parse_path,
        metavar="FILE",
        group="official rules",
    )
    metrics: Endpoint | None = option(
        "where Prometheus may scrape the run (default 127.0.0.1:9464, if that is free)",
        parse=parse_endpoint,
        metavar="HOST:PORT",
        group="watching it",
    )
    no_metrics: bool = option(
        "serve no metrics; metrics.prom is written all the same",
        flag=True,
        default=False,
        group="watching it",
    )
    metrics_linger_ns: int = option(
        "serve them this long after the end, so that the verdict is scraped, e.g. 15s",
        name="metrics_linger",
        parse=parse_positive_duration_ns,
        default=0,
        metavar="TIME",
        group="watching it",
    )
    no_report: bool = option("make no report.html", flag=True, default=False, group="watching it")
    qsl_seed: int | None = option("", parse=bounded(0, MAX_SEED), visible=False)
    sample_index_seed: int | None = option("", parse=bounded(0, MAX_SEED), visible=False)
    schedule_seed: int | None = option("", parse=bounded(0, MAX_SEED), visible=False)
    model_file: Path | None = option("", parse=parse_path, visible=False)
    model_sha256: str | None = option("", visible=False)
    dataset_digest: str | None = option("", visible=False)
    arrivals_sha256: str | None = option("", visible=False)
    loadgen_version: str | None = option("", visible=False)
    mlperf_model: str | None = option("", visible=False)

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError("\n".join(problems))

    def _problems(self) -> Iterator[str]:
        """Contradictions between options; ranges were checked while parsing."""
        if self.scenario:
            yield from self._scenario_problems()
        else:
            yield f"{_NO_SCENARIO}: choose from {', '.join(SCENARIOS)}"
        for flag, given in (
            ("--input-shape", self.input_shape),
            ("--lengths", self.lengths),
            ("--backend-option", self.backend_option),
        ):
            names = [name for name, _ in given]
            for name in sorted({n for n in names if names.count(n) > 1}):
                yield f"{flag} {name} is given twice: keep one"
        if self.pin and self.oversubscribe:
            yield "--pin gives each thread a core: drop it, or --oversubscribe"
        if self.user_conf is not None and not self.mlperf:
            yield "--user-conf only counts under the official rules: add --mlperf, or drop it"
        if self.no_metrics and (self.metrics is not None or self.metrics_linger_ns):
            yield "--no-metrics serves nothing: drop it, or --metrics and --metrics-linger"
        if self.audit is not None and self.mode != "performance":
            yield "--audit is a performance run of its own: add --mode performance"
        if self.meter and not self.runs_performance:
            yield "--meter reads the performance run: drop it for --mode accuracy"
        yield from self._arrival_problems()
        if self.mlperf:
            yield from self._mlperf_problems()

    def _arrival_problems(self) -> Iterator[str]:
        asked = {"--arrivals": self.arrivals, "--concurrency": self.concurrency}
        given = [flag for flag, value in asked.items() if value is not None]
        if len(given) > 1:
            yield "--arrivals and --concurrency both say when queries come: keep one"
        for flag in given:
            if self.scenario and self.scenario != "server":
                yield f"{flag} belongs to --scenario server: drop it for {self.scenario}"
            if self.target_qps is not None:
                yield f"{flag} says when queries come: drop --target-qps"
            if self.mlperf:
                yield f"{flag} cannot be set with --mlperf: there LoadGen says when queries come"
            if not self.runs_performance:
                yield f"{flag} is of the performance run: drop it for --mode accuracy"
        if self.arrivals is not None and self.duration_ns != 10 * NS_PER_S:
            yield "--duration: the file of --arrivals says how long; --queries N takes its first N"

    def _scenario_problems(self) -> Iterator[str]:
        name = self.scenario
        if self.target_qps is not None and name != "server":
            yield f"--target-qps is the arrival rate of --scenario server: drop it for {name}"
        for flag, given in (
            ("--dispatch deadline", self.dispatch != "greedy"),
            ("--batch-wait", self.batch_wait_ns),
        ):
            if given and name != "server":
                yield f"{flag} is how --scenario server makes batches: drop it for {name}"
        if self.samples_per_query is not None and name != "multi-stream":
            yield f"--samples-per-query belongs to --scenario multi-stream: drop it for {name}"
        if name.endswith("stream") and (self.instances or 1) > 1:
            yield f"--instances {self.instances}: {name} asks one query at a time, one answers"

    def _mlperf_problems(self) -> Iterator[str]:
        for name, given, why in (
            ("--duration", self.duration_ns != 10 * NS_PER_S, "a run takes 600 s"),
            ("--queries", self.queries is not None, "LoadGen sets the count"),
            ("--seed", self.seed is not None, "the round sets the seeds"),
            ("--slo", self.slo is not None, "put target_latency into --user-conf"),
            ("--samples-per-query", self.samples_per_query not in (None, 8), "it is 8"),
        ):
            if given:
                yield f"{name} cannot be set with --mlperf: {why}"

    @property
    def harness_scheduled(self) -> bool:
        """Our own scheduler issues the performance run's queries, not LoadGen."""
        return self.arrivals is not None or self.concurrency is not None

    @property
    def runs_performance(self) -> bool:
        return self.mode in ("performance", "both")

    @property
    def runs_accuracy(self) -> bool:
        return self.mode in ("accuracy", "both")


def config_from(raw: Mapping[str, object], source: str, problems: list[str]) -> dict[str, Any]:
    """Raw values under their option names -> field values; problems are appended, not raised."""
    if "backend" in raw and raw["backend"] is None:
        raw = {**raw, "backend": "null"}  # YAML reads the bare word as nothing
    return parse_values(RunConfig, raw, source, problems)


def make_config(values: Mapping[str, Any], problems: Sequence[str] = ()) -> RunConfig:
    """A RunConfig, or one ConfigError with the problems of the values and of their combination."""
    try:
        config = RunConfig(**{"scenario": "", **values})
    except ConfigError as e:
        told = any("no scenario named" in p for p in problems)
        more = [p for p in str(e).splitlines() if not (told and p.startswith(_NO_SCENARIO))]
        raise ConfigError(some_of([*problems, *more])) from None
    if problems:
        raise ConfigError(some_of(problems))
    return config


def from_plain(plain: Mapping[str, object], source: str = "setup") -> RunConfig:
    """The inverse of `to_plain`."""
    problems: list[str] = []
    raw = {k: v for k, v in plain.items() if k != "schema_version"}
    return make_config(config_from(raw, source, problems), problems)


def to_plain(config: RunConfig) -> dict[str, object]:
    """YAML values under their option names; left out is what is not set, and what another run
    has elsewhere: its folder, and where it is watched.
    """
    values: dict[str, object] = {"schema_version": SCHEMA_VERSION}
    for f in fields(config):
        value = getattr(config, f.name)
        if f.name not in _NOT_REPEATED and value is not None and value != ():
            values[option_key(f)] = _plain(f.name, value)
    return values


def _plain(name: str, value: Any) -> object:
    if name.endswith("_ns"):
        return write_duration(value)
    if name == "input_shape":
        return [f"{key}={'x'.join(map(str, shape))}" for key, shape in value]
    if name == "meter":
        return [f"{meter}={argument}" if argument else meter for meter, argument in value]
    if name in ("backend_option", "lengths"):
        return [f"{key}={text}" for key, text in value]
    return str(value) if isinstance(value, Path | Slo) else value
