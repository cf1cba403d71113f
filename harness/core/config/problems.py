"""Finds contradictions between a run's options. The parsers in parse.py check each value separately."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from harness.core import registry
from harness.core.config.options import MACHINE, NODE, NODES, SERVERS, flag_name, option_key
from harness.core.config.parse import RAY_NODES, Ramp
from harness.core.config.schema import DEFAULT_DURATION_NS, RunOptions
from harness.core.registry import SCENARIOS
from harness.core.units import NS_PER_S

NO_SCENARIO = "--scenario is missing"
_DEFAULTS = {field.name: field.default for field in fields(RunOptions)}
_WITHOUT_EFFECT = {"dispatch": "greedy"}
"""Maps a field to a value that every scenario accepts, because older versions stored this default in each result."""


def problems(options: RunOptions) -> Iterator[str]:
    """Yields one line per contradiction; the line names the options to remove or to add."""
    if options.scenario:
        yield from _scenario_problems(options)
    else:
        yield f"{NO_SCENARIO}: choose from {', '.join(SCENARIOS)}"
    yield from _repeated_names(options)
    yield from _slo_problems(options)
    if options.pin and options.oversubscribe:
        yield "--pin gives each thread a separate core, --oversubscribe shares cores: drop one"
    if options.user_conf is not None and not options.mlperf:
        yield "--user-conf applies under the official rules only: add --mlperf, or drop --user-conf"
    if options.no_metrics and (options.metrics is not None or options.metrics_linger_ns):
        yield "--no-metrics opens no port: drop it, or drop --metrics and --metrics-linger"
    if options.audit is not None and options.mode != "performance":
        yield "--audit is a separate performance run: add --mode performance"
    if options.meter and not options.runs_performance:
        yield "--meter measures the performance run: drop it with --mode accuracy"
    yield from _arrival_problems(options)
    yield from _until_problems(options)
    yield from _before_run_problems(options)
    yield from _server_problems(options)
    if options.models is not None:
        yield from _set_problems(options)
    yield from _load_host_problems(options)
    yield from _probe_problems(options)
    yield from _cancel_problems(options)
    if options.qdl:
        yield from _qdl_problems(options)
    if options.mlperf:
        yield from _mlperf_problems(options)


def _repeated_names(options: RunOptions) -> Iterator[str]:
    for flag, pairs in (
        ("--input-shape", options.input_shape),
        ("--input-range", options.input_range),
        ("--lengths", options.lengths),
        ("--backend-option", options.backend_option),
        ("--provider-option", options.provider_option),
        ("--dataset-option", options.dataset_option),
        ("--header", options.header),
    ):
        yield from _repeated(flag, [name for name, _ in pairs])


def _repeated(flag: str, names: Sequence[str]) -> Iterator[str]:
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"{flag} {name} appears twice: keep one"


def _slo_problems(options: RunOptions) -> Iterator[str]:
    yield from _repeated("--slo", [slo.name for slo in options.slo])
    if sum(slo.of == "itl" for slo in options.slo) > 1:
        yield "--slo itl appears twice: keep one percentile"
    of_tokens = [slo for slo in options.slo if slo.of]
    all_at_once = options.scenario and registry.load("scenario", options.scenario).all_at_once
    if all_at_once and any(slo.of == "ttft" for slo in of_tokens):
        yield f"--slo ttft does not apply to {options.scenario}, which requests all answers at once: drop it"


def _arrival_problems(options: RunOptions) -> Iterator[str]:
    if options.scenario and not registry.load("scenario", options.scenario).scheduled:
        return  # another check already refuses these options for a scenario without a schedule
    values = {
        "--arrivals": options.arrivals,
        "--concurrency": options.concurrency,
        "--streams": options.streams,
    }
    flags = [flag for flag, value in values.items() if value is not None]
    if len(flags) > 1:
        yield f"{' and '.join(flags)} each set when queries arrive: keep one"
    if options.streams is not None:
        yield from _stream_problems(options)
    for flag in flags:
        if options.target_qps is not None:
            yield f"{flag} sets when queries arrive: drop --target-qps"
        if options.mlperf:
            yield f"{flag} cannot be set with --mlperf: LoadGen sets when queries arrive"
        if not options.runs_performance:
            yield f"{flag} applies to the performance run: drop it with --mode accuracy"
    if isinstance(options.arrivals, Ramp):
        yield from _ramp_problems(options)
    elif options.arrivals is not None and options.duration_ns != DEFAULT_DURATION_NS:
        yield (
            "--duration cannot be set with --arrivals: the file sets the duration; --queries N "
            "replays its first N arrivals"
        )


def _until_problems(options: RunOptions) -> Iterator[str]:
    if options.until is None:
        return
    if options.load_hosts is not None:
        yield "--until watches one measured process: drop it, or drop --load-hosts"
    if options.streams is not None:
        yield "--until would end --streams in the middle of their sequences: drop it"
    elif options.concurrency is None and options.arrivals is None:
        yield (
            f"--until {options.until} does not work with LoadGen, which fixes the length of a run before its first query: drop it and set "
            "--duration (an undecided result states how long), or add --concurrency or --arrivals"
        )


def _ramp_problems(options: RunOptions) -> Iterator[str]:
    for flag, is_set in (
        ("--cancel", options.cancel is not None),
        ("--load-hosts", options.load_hosts is not None),
        ("--nodes", options.nodes is not None),
        ("--models", options.models is not None),
    ):
        if is_set:
            yield f"--arrivals ramp judges the answers while it sends requests: drop it, or drop {flag}"
    if not options.url:
        yield "--arrivals ramp finds the rate of a server: add --url, or use `peak`"


def _stream_problems(options: RunOptions) -> Iterator[str]:
    for flag, is_set in (
        ("--url", bool(options.url)),
        ("--nodes", options.nodes is not None),
        ("--models", options.models is not None),
        ("--load-hosts", options.load_hosts is not None),
        ("--dispatch deadline", options.dispatch == "deadline"),
        ("--batch-wait", bool(options.batch_wait_ns)),
    ):
        if is_set:
            yield f"--streams keeps the states of its sequences in one process, which forms the batches: drop {flag}"


RESETS = ("vllm", "sglang")
"""Values of --before-run that send a request to each server in --url."""


def _before_run_problems(options: RunOptions) -> Iterator[str]:
    if options.before_run in RESETS and not options.url:
        yield f"--before-run {options.before_run} needs a server: add --url"
    if options.before_run is not None and not options.runs_performance:
        yield "--before-run applies to the performance run: drop it with --mode accuracy"


def _node_problems(options: RunOptions) -> Iterator[str]:
    if options.url:
        yield "--nodes and --url both set where the answers come from: drop one"
    if flags := _given(options, lambda m: SERVERS in m["of"] and NODES not in m["of"]):
        yield f"{flags} can only be used with --url, not with --nodes: drop {flags}"
    of_a_node = _given(options, lambda m: NODE in m["of"])
    if of_a_node and not options.nodes_are_started:
        yield f"{of_a_node} can only be set when `serve --node` starts a node: drop {of_a_node} here"
    if flags := _given(options, lambda m: m["of"] == (MACHINE,)):
        yield f"{flags} cannot be set with --nodes, because nodes form batches themselves: drop {flags}"
    yield from _node_model_problems(options)
    of_ray = options.nodes is not None and options.nodes.startswith(RAY_NODES)
    if of_ray and options.node_count is None:
        yield "--nodes ray:// names a cluster: add --node-count N, the number of nodes to take"
    if not of_ray and options.node_count is not None:
        yield "--node-count applies to --nodes ray://HEAD only; other --nodes give the number of nodes: drop it"
    if not of_ray and options.transport is not None:
        yield "--transport applies to --nodes ray://HEAD only; other --nodes are reached by sockets: drop it"


def _node_model_problems(options: RunOptions) -> Iterator[str]:
    if options.models is not None:
        yield "--models does not apply to nodes, which have one model each: drop it, or drop --nodes"
    if options.backend in registry.REMOTE_BACKENDS:
        yield f"--backend {options.backend} needs servers: drop --nodes, and name the servers with --url"


def _given(options: RunOptions, is_meant: Callable[[Mapping[str, Any]], bool]) -> str:
    """Returns the flags that the user set, among the options whose metadata `is_meant` accepts."""
    flags = [
        _flag(field)
        for field in fields(RunOptions)
        if is_meant(field.metadata) and _has_effect(field.name, getattr(options, field.name))
    ]
    return " and ".join(filter(None, [", ".join(flags[:-1]), *flags[-1:]]))


def _flag(field: Field[Any]) -> str:
    return flag_name(option_key(field)) if field.metadata["visible"] else field.name


def _has_effect(name: str, value: object) -> bool:
    return value not in (_DEFAULTS[name], _WITHOUT_EFFECT.get(name))


def _server_problems(options: RunOptions) -> Iterator[str]:
    if options.nodes is not None:
        yield from _node_problems(options)
        return
    if flags := _given(options, lambda m: m["of"] == (NODES,)):
        yield f"{flags} can only be used with --nodes: add it, or drop {flags}"
    if not options.url:
        if flags := _given(options, lambda m: SERVERS in m["of"]):
            yield f"{flags} can only be used with a server: add --url, or drop {flags}"
        return
    yield from _repeated("--url", options.url)
    if flags := _given(options, lambda m: MACHINE in m["of"]):
        yield f"{flags} can only be used with models on this machine, but --url names a server: drop {flags}"
    if options.insecure and not any(url.startswith(("https:", "grpcs:")) for url in options.url):
        yield "--insecure applies to https and grpcs, but no --url uses either of them: drop it"


def _load_host_problems(options: RunOptions) -> Iterator[str]:
    if options.load_hosts is None:
        return
    for flag, is_set, reason in (
        ("--mlperf", options.mlperf, "the rules require one LoadGen"),
        ("--qdl", options.qdl, "a QDL belongs to one LoadGen"),
        ("--nodes", options.nodes is not None, "nodes take their work from one process"),
        ("--audit", options.audit is not None, "a compliance test belongs to one LoadGen"),
        (
            "--concurrency",
            options.concurrency is not None,
            "a closed loop has no schedule to share",
        ),
        ("--mode accuracy", not options.runs_performance, "only the performance run is shared"),
        (
            "--meter ptdaemon",
            any(m == "ptdaemon" for m, _ in options.meter),
            "it measures LoadGen's runs",
        ),
    ):
        if is_set:
            yield f"--load-hosts cannot be set with {flag}, because {reason}: drop one"


def _probe_problems(options: RunOptions) -> Iterator[str]:
    if options.probe_rate is None:
        return
    for flag, is_set in (
        ("--mlperf", options.mlperf),
        ("--load-hosts", options.load_hosts is not None),
        ("--mode accuracy", not options.runs_performance),
    ):
        if is_set:
            yield f"--probe-rate sends requests during one LoadGen's performance run: drop it, or drop {flag}"
    duration_s = options.duration_ns / NS_PER_S
    if options.queries is None and options.probe_rate * duration_s < 1:
        yield (
            f"--probe-rate {options.probe_rate:g} is less than one probe in this run of {duration_s:g} s, which would show "
            f"nothing: raise it above {1 / duration_s:.3g}, or raise --duration"
        )


def _cancel_problems(options: RunOptions) -> Iterator[str]:
    if options.cancel is None:
        return
    if options.concurrency is None and options.arrivals is None:
        yield "--cancel does not work with LoadGen, which waits for every answer: add --concurrency or --arrivals, or drop --cancel"
    if options.load_hosts is not None:
        yield "--cancel draws its requests in one process: drop it, or drop --load-hosts"
    if any(url.startswith(("grpc:", "grpcs:")) for url in options.url):
        yield "--cancel closes HTTP connections, but gRPC has one connection for all calls: drop it, or name a server with http://"


def _qdl_problems(options: RunOptions) -> Iterator[str]:
    """Yields the options that MLPerf's Network division does not allow for the client, a query dispatch library (QDL).

    Source: mlcommons/inference_policies ac93e89, inference_rules.adoc, "Network Division".
    """
    if (options.max_batch or 1) > 1:
        yield f"--max-batch {options.max_batch} is not allowed with --qdl, because a QDL may not batch queries: drop it, and let the server batch them"
    for flag, value in (("--arrivals", options.arrivals), ("--concurrency", options.concurrency)):
        if value is not None:
            yield f"{flag} replaces LoadGen, and a QDL gives its name to LoadGen: drop it, or drop --qdl"
    if dict(options.backend_option).get("encoding") == "shm":
        yield "--backend-option encoding=shm is not allowed with --qdl, because all queries must cross the network: drop it, or drop --qdl"
    for name, _ in options.header:
        if name.lower() in _CODINGS:
            yield f"--header {name} is not allowed with --qdl, which permits compression only of the data set before the run: drop it"


def _set_problems(options: RunOptions) -> Iterator[str]:
    """Yields problems with options that do not support several models."""
    if flags := _given(options, lambda m: m["of_one_model"]):
        yield f"--models names each model with its data, so {flags} cannot be set: drop {flags}"
    if options.scenario and not registry.load("scenario", options.scenario).scheduled:
        yield f"--models chooses a model at each arrival, and {options.scenario} has no arrivals: add --scenario server"
    if options.runs_accuracy:
        yield "--models measures speed, and several models have no common score: add --mode performance"
    if (options.max_batch or 1) > 1:
        yield f"--max-batch {options.max_batch} is not allowed with --models, because waiting queries may need different models: drop it"
    for flag, is_set in (
        ("--mlperf", options.mlperf),
        ("--url", bool(options.url)),
        ("--audit", options.audit is not None),
        ("--pin", options.pin),
        ("--dispatch deadline", options.dispatch == "deadline"),
        ("--batch-wait", bool(options.batch_wait_ns)),
        ("--backend-option processes=on", ("processes", "on") in options.backend_option),
    ):
        if is_set:
            yield f"{flag} applies to one model: drop it with --models"


_CODINGS = ("accept-encoding", "content-encoding", "te", "transfer-encoding")
"""Headers with which client and server negotiate compression."""


def of_other_scenarios(name: str, values: Mapping[str, object]) -> Iterator[str]:
    """Yields the fields in `values` that only other scenarios accept."""
    accepted = registry.load("scenario", name).options
    others = frozenset().union(*(registry.load("scenario", one).options for one in SCENARIOS))
    foreign = others - accepted
    for field, default in _DEFAULTS.items():
        if field in foreign and _has_effect(field, values.get(field, default)):
            yield field


def _scenario_problems(options: RunOptions) -> Iterator[str]:
    name = options.scenario
    scenario = registry.load("scenario", name)
    values = {field: getattr(options, field) for field in _DEFAULTS}
    for field in of_other_scenarios(name, values):
        others = [n for n in SCENARIOS if field in registry.load("scenario", n).options]
        flag = _flag(RunOptions.__dataclass_fields__[field])
        yield f"{flag} belongs to --scenario {' or '.join(others)}: drop it for {name}"
    if scenario.streams and (options.instances or 1) > 1:
        yield (
            f"--instances {options.instances} has no effect, because {name} issues one query at a time, which one instance "
            "answers: drop it"
        )


def _mlperf_problems(options: RunOptions) -> Iterator[str]:
    for flag, is_set, reason in (
        ("--duration", options.duration_ns != DEFAULT_DURATION_NS, "a run takes 600 s"),
        ("--queries", options.queries is not None, "LoadGen sets the count"),
        ("--seed", options.seed is not None, "the round sets the seeds"),
        ("--slo", bool(options.slo), "put target_latency into --user-conf"),
        ("--samples-per-query", options.samples_per_query not in (None, 8), "the rules set 8"),
    ):
        if is_set:
            yield f"{flag} cannot be set with --mlperf: {reason}"
