"""Checks the settings in LoadGen's log against the round and user.conf."""

from collections.abc import Iterator
from math import isclose

from harness.loadgen import user_conf as userconf
from harness.loadgen.logs import RATE_DIGITS, SAME_MACHINE
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.rounds import Benchmark
from harness.submit.rules.tree.submission import Result, RunLog

_PERMUTATION = "effective_sample_concatenate_permutation"
_SAME = {
    "min_duration": ("effective_min_duration_ms", 1.0),
    "performance_sample_count_override": ("effective_performance_sample_count", 1.0),
    "accuracy_sample_count_override": ("effective_accuracy_sample_count", 1.0),
}
_STREAM = {
    "target_latency_percentile": ("effective_target_latency_percentile", 0.01),
    "min_query_count": ("effective_min_query_count", 1.0),
}
_OF_SCENARIO = {
    "SingleStream": _STREAM,
    "MultiStream": {**_STREAM, "samples_per_query": ("effective_samples_per_query", 1.0)},
    "Server": {
        **_STREAM,
        "target_qps": ("effective_target_qps", 1.0),
        "target_latency": ("effective_target_latency_ns", 1e6),
        "max_async_queries": ("effective_max_async_queries", 1.0),
    },
    "Offline": {"target_qps": ("effective_target_qps", 1.0)},
}
"""Maps a user.conf key to a log key, and to the factor between their values."""

LEAST_ROUND_TRIP_NS = 1_000
"""No network allows a shorter round trip than this. LoadGen needs only a third of this time to get a name without
sending a request.
"""

_NAME_DURATION = "get_sut_name_duration_ns"


def of_round(result: Result, run: RunLog, benchmark: Benchmark) -> Iterator[Finding]:
    """Checks how samples are grouped into queries, as set in mlperf.conf."""
    scenario, file = str(run.detail.get("effective_scenario")), run.file
    per_query = {"MultiStream": result.round.multi_stream_samples}.get(scenario, 1)
    if scenario != "Offline" and run.number("effective_samples_per_query") != per_query:
        actual = f"{run.text('effective_samples_per_query')} samples per query"
        yield Finding("scenario-settings", file, actual, str(per_query))
    equal = benchmark.loadgen in result.round.equal_issue
    is_short = (run.number("effective_min_duration_ms") or 0) < result.round.min_duration_ms
    if equal and is_short:
        return  # a rehearsal's quick run, which `too-short` reports, does not read mlperf.conf
    if run.detail.get(_PERMUTATION) is not equal:
        actual = f"{_PERMUTATION}: {run.text(_PERMUTATION)}"
        yield Finding("scenario-settings", file, actual, str(equal))


def sut_name(result: Result, run: RunLog) -> Iterator[Finding]:
    """Checks the name that LoadGen received from the servers. A system in the open division may also be behind a
    network.
    """
    if result.submitter.division != "network" and result.description.get("is_network") != "true":
        return
    name, expected = run.text("sut_name"), result.round.network_sut
    if expected not in name:
        yield Finding("network-sut", run.file, name, f"a name that contains {expected!r}")
    took_ns = run.number(_NAME_DURATION)
    if took_ns is not None and took_ns < LEAST_ROUND_TRIP_NS:
        actual = f"{_NAME_DURATION}: {took_ns:.0f}"
        yield Finding("network-sut", run.file, actual, "the time of a round trip to every server")
    if SAME_MACHINE in name:
        yield Finding("same-machine", run.file, name, "servers and LoadGen on separate machines")


def samples(result: Result, run: RunLog, benchmark: Benchmark) -> Iterator[Finding]:
    """Checks the number of samples in memory and in the data set."""
    file, key = run.file, "qsl_reported_total_count"
    held, total = run.number("effective_performance_sample_count"), run.number(key)
    if held is None or held < benchmark.performance_samples:
        actual = f"{run.text('effective_performance_sample_count')} samples loaded"
        expected = f"at least {benchmark.performance_samples:,}"
        yield Finding("performance-samples", file, actual, expected)
    if held is not None and total is not None and held > total:
        actual = f"{held:,.0f} samples loaded, but the data set has {total:,.0f}"
        yield Finding("sample-override", file, actual, "samples that the data set has")
    accuracy = result.accuracy
    if accuracy is None or result.scenario is None:
        return
    if benchmark.performance_samples > benchmark.samples_in(result.scenario):
        return  # because the performance and the accuracy run use different data sets
    if total != accuracy.number(key):
        expected = f"{accuracy.text(key)}, as in the accuracy run"
        yield Finding("dataset-size", file, f"{key}: {run.text(key)}", expected)


def main_run(run: RunLog) -> Iterator[Finding]:
    """Checks that the performance run does not use an audit's settings."""
    file = run.file
    for key, expected in (
        ("effective_performance_issue_same", False),
        ("effective_performance_issue_unique", False),
        ("effective_accuracy_log_sampling_target", 0),
    ):
        if run.detail.get(key) != expected:
            yield Finding("audit-settings", file, f"{key}: {run.text(key)}", str(expected))


def user_conf(result: Result) -> Iterator[Finding]:
    """Checks the lines in user.conf, and checks that the performance run used the values."""
    path = result.inside("user.conf")
    text, run, benchmark = result.tree.text(path), result.performance, result.benchmark
    for number, problem in userconf.problems(text):
        actual = f"line {number}: {problem}"[:300]
        yield Finding("user-conf", path, actual, "a line that LoadGen understands")
    if run is not None and benchmark is not None:
        yield from _same_values(result, path, text, run, benchmark)


def _same_values(
    result: Result, path: str, text: str, run: RunLog, benchmark: Benchmark
) -> Iterator[Finding]:
    scenario = str(result.measured_scenario)
    for key, (logged, factor) in {**_SAME, **_OF_SCENARIO.get(scenario, {})}.items():
        if key == "min_query_count" and run.detail.get(_PERMUTATION):
            # LoadGen raises this count to a multiple of the sample count, so the two values may differ.
            continue
        value = _value(text, benchmark.loadgen, scenario, key)
        actual = run.number(logged)
        if (
            value
            and actual is not None
            and not isclose(value * factor, actual, rel_tol=RATE_DIGITS)
        ):
            yield _other(path, f"{key} = {value:.10g}", f"{logged} is {run.text(logged)}")
    latency_ms = _value(text, benchmark.loadgen, scenario, "target_latency")
    rate = run.number("effective_target_qps")
    expected = 1e3 / latency_ms if latency_ms and scenario.endswith("Stream") else None
    if expected and rate is not None and not isclose(expected, rate, rel_tol=RATE_DIGITS):
        yield _other(path, f"target_latency = {latency_ms:.10g}", f"the log expects {rate:.6g}/s")
    least = _value(text, benchmark.loadgen, scenario, "min_query_count")
    count = run.number("effective_samples_per_query")
    if scenario == "Offline" and least and count is not None and count < least:
        yield _other(path, f"min_query_count = {least:.10g}", f"the query has {count:,.0f} samples")


def _value(text: str, model: str, scenario: str, key: str) -> float | None:
    """Returns the value of a key; None if it is not set, or if LoadGen cannot read it (`problems` reports this case)."""
    value = userconf.value(text, model, scenario, key)
    try:
        return float(value) if value is not None and len(value) < 30 else None
    except ValueError:
        return None


def _other(path: str, line: str, log: str) -> Finding:
    return Finding("user-conf", path, line, f"the file of the performance run: {log}")
