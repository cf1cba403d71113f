"""Finds contradictions between the options of a run. Parsers (parse.py) judge each value alone."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from harness.core import registry
from harness.core.config.schema import DEFAULT_DURATION_NS, RunOptions
from harness.core.registry import SCENARIOS

NO_SCENARIO = "--scenario is missing"
_OF_SOME_SCENARIOS = {
    "target_qps": "--target-qps is the arrival rate of",
    "dispatch": "--dispatch deadline sets how batches are formed in",
    "batch_wait_ns": "--batch-wait sets how batches are formed in",
    "samples_per_query": "--samples-per-query belongs to",
    "arrivals": "--arrivals belongs to",
    "concurrency": "--concurrency belongs to",
}
"""Field -> the beginning of the problem where the scenario does not take it (`Scenario.options`)."""


def problems(options: RunOptions) -> Iterator[str]:
    """One line for each contradiction, with the options to drop or to add."""
    if options.scenario:
        yield from _scenario_problems(options)
    else:
        yield f"{NO_SCENARIO}: choose from {', '.join(SCENARIOS)}"
    yield from _repeated_names(options)
    if options.pin and options.oversubscribe:
        yield "--pin gives each thread a core of its own, --oversubscribe shares cores: drop one"
    if options.user_conf is not None and not options.mlperf:
        yield "--user-conf applies under the official rules only: add --mlperf, or drop --user-conf"
    if options.no_metrics and (options.metrics is not None or options.metrics_linger_ns):
        yield "--no-metrics opens no port: drop it, or drop --metrics and --metrics-linger"
    if options.audit is not None and options.mode != "performance":
        yield "--audit is a performance run of its own: add --mode performance"
    if options.meter and not options.runs_performance:
        yield "--meter measures the performance run: drop it with --mode accuracy"
    yield from _arrival_problems(options)
    yield from _server_problems(options)
    if options.mlperf:
        yield from _mlperf_problems(options)


def _repeated_names(options: RunOptions) -> Iterator[str]:
    for flag, pairs in (
        ("--input-shape", options.input_shape),
        ("--input-range", options.input_range),
        ("--lengths", options.lengths),
        ("--backend-option", options.backend_option),
        ("--header", options.header),
    ):
        names = [name for name, _ in pairs]
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"{flag} {name} appears twice: keep one"


def _arrival_problems(options: RunOptions) -> Iterator[str]:
    if options.scenario and not registry.load("scenario", options.scenario).scheduled:
        return  # the scenario refuses each of these options
    values = {"--arrivals": options.arrivals, "--concurrency": options.concurrency}
    flags = [flag for flag, value in values.items() if value is not None]
    if len(flags) > 1:
        yield "--arrivals and --concurrency both set when queries arrive: keep one"
    for flag in flags:
        if options.target_qps is not None:
            yield f"{flag} sets when queries arrive: drop --target-qps"
        if options.mlperf:
            yield f"{flag} cannot be set with --mlperf: LoadGen sets when queries arrive"
        if not options.runs_performance:
            yield f"{flag} applies to the performance run: drop it with --mode accuracy"
    if options.arrivals is not None and options.duration_ns != DEFAULT_DURATION_NS:
        yield (
            "--duration cannot be set with --arrivals: the file sets the duration; --queries N "
            "replays its first N arrivals"
        )


_OF_SERVERS = {
    "connections": "--connections",
    "request_timeout_ns": "--request-timeout",
    "header": "--header",
    "insecure": "--insecure",
    "no_resend": "--no-resend",
    "yes_load_this_host": "--yes-load-this-host",
}
_OF_THIS_MACHINE = {
    "instances": "--instances",
    "threads": "--threads",
    "oversubscribe": "--oversubscribe",
    "pin": "--pin",
    "provider": "--provider",
    "batch_wait_ns": "--batch-wait",
}


def _server_problems(options: RunOptions) -> Iterator[str]:
    defaults = {field.name: field.default for field in fields(options)}

    def given(flags: Mapping[str, str]) -> str:
        return " and ".join(
            f for name, f in flags.items() if getattr(options, name) != defaults[name]
        )

    if not options.url:
        if flags := given(_OF_SERVERS):
            yield f"{flags} apply to a server: add --url, or drop them"
        return
    for url in sorted({u for u in options.url if options.url.count(u) > 1}):
        yield f"--url {url} appears twice: keep one"
    if flags := given(_OF_THIS_MACHINE):
        yield f"{flags} apply to models on this machine, and --url names a server: drop them"
    if options.dispatch != "greedy" or options.device != "cpu":
        yield "--dispatch and --device apply to models on this machine, and --url names a server: drop them"
    if options.insecure and not any(url.startswith("https:") for url in options.url):
        yield "--insecure applies to https, and no --url is one: drop it"


def _scenario_problems(options: RunOptions) -> Iterator[str]:
    name = options.scenario
    scenario = registry.load("scenario", name)
    defaults = {field.name: field.default for field in fields(options)}
    for field, beginning in _OF_SOME_SCENARIOS.items():
        if field not in scenario.options and getattr(options, field) != defaults[field]:
            others = [n for n in SCENARIOS if field in registry.load("scenario", n).options]
            yield f"{beginning} --scenario {' or '.join(others)}: drop it for {name}"
    if scenario.streams and (options.instances or 1) > 1:
        yield (
            f"--instances {options.instances}: {name} issues one query at a time, which one instance "
            "answers: drop it"
        )


def _mlperf_problems(options: RunOptions) -> Iterator[str]:
    for flag, is_set, reason in (
        ("--duration", options.duration_ns != DEFAULT_DURATION_NS, "a run takes 600 s"),
        ("--queries", options.queries is not None, "LoadGen sets the count"),
        ("--seed", options.seed is not None, "the round sets the seeds"),
        ("--slo", options.slo is not None, "put target_latency into --user-conf"),
        ("--samples-per-query", options.samples_per_query not in (None, 8), "the rules set 8"),
    ):
        if is_set:
            yield f"{flag} cannot be set with --mlperf: {reason}"
