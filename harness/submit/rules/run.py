"""One LoadGen run by its logs, whichever it is, and what a performance run must be."""

from collections.abc import Iterator
from datetime import datetime

from harness.core.stats import late_allowed, queries_needed
from harness.core.units import counted, show_ns
from harness.loadgen.logs import SUMMARY
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.rounds import Benchmark
from harness.submit.rules.tree.submission import Result, RunLog
from harness.submit.rules.tree.tree import join, shown

PERFORMANCE_MODE, ACCURACY_MODE = "PerformanceOnly", "AccuracyOnly"
_POWER_TIME = "%m-%d-%Y %H:%M:%S.%f"
_DURATION_SLACK = 0.001
"""A slewed clock, and the ms in which LoadGen writes when a run began and ended."""

_MOST_QUERIES = 10**10
"""A log that claims more is made up; the table of early stopping would not fit into memory."""

_SEEDS = ("qsl", "sample_index", "schedule")
_SUMMARY = {  # a line of the summary -> the key of the detail log that says the same
    "Scenario": "effective_scenario",
    "Mode": "effective_test_mode",
    "Result is": "result_validity",
    "qsl_rng_seed": "effective_qsl_rng_seed",
    "min_query_count": "effective_min_query_count",
    "Min latency (ns)": "result_min_latency_ns",
    "Max latency (ns)": "result_max_latency_ns",
}


def any_run(result: Result, run: RunLog, mode: str) -> Iterator[Finding]:
    """The log is whole, of one run, of this scenario and mode, under the round's seeds, without errors."""
    file, log = shown(run.file), run.detail
    if log.malformed_lines or not log.complete:
        found = (
            f"{log.malformed_lines:,} lines that are not LoadGen's" if log.malformed_lines else ""
        )
        yield Finding("log-incomplete", file, found or "its end is missing", "a whole log")
    if log.repeated != 1:
        yield Finding("log-mixed", file, counted(log.repeated, "run"), "one run")
    if log.get("effective_test_mode") != mode:
        yield Finding("wrong-mode", file, run.text("effective_test_mode"), mode)
    if result.scenario and log.get("effective_scenario") != result.measured_scenario:
        found = run.text("effective_scenario")
        yield Finding("wrong-scenario", file, found, str(result.measured_scenario))
    for name in _SEEDS:
        key, wanted = f"effective_{name}_rng_seed", getattr(result.round.seeds, name)
        if log.get(key) != wanted:
            yield Finding("wrong-seed", file, f"{key}: {run.text(key)}", str(wanted))
    errors = max(len(log.errors), int(run.number("num_errors") or 0))
    if errors:
        first = f": {log.errors[0]}" if log.errors else ""
        yield Finding("loadgen-errors", file, f"{errors} errors{first}"[:300], "no error")
    yield from _summary(run)


def _summary(run: RunLog) -> Iterator[Finding]:
    """mlperf_log_summary.txt is of the same run: it says what the detail log says."""
    file = shown(join(run.folder, SUMMARY))
    streams = run.detail.get("effective_scenario") == "MultiStream"  # it begins with whole queries
    for line, name in _SUMMARY.items():
        key = name.replace("_latency", "_query_latency") if streams else name
        said, logged = run.summary.get(line), run.detail.get(key)
        if said is not None and logged is not None and said != f"{logged}":
            yield Finding("summary-differs", file, f"{line}: {said}"[:200], f"{logged}")


def performance(result: Result, run: RunLog) -> Iterator[Finding]:
    """Of a performance run, an audit's too."""
    file, benchmark = shown(run.file), result.benchmark
    if run.detail.get("result_validity") != "VALID":
        yield Finding("invalid-result", file, _why_invalid(run), "VALID")
    yield from any_run(result, run, PERFORMANCE_MODE)
    yield from _limits(run, file)
    if benchmark is None or result.scenario is None:
        return
    yield from _published(result, run, file, benchmark)
    if benchmark.timed:
        yield from _duration(result, run, file)
    yield from _queries(result, run, file, benchmark)
    yield from _latency(result, run, file, benchmark)
    yield from _samples(run, file, benchmark)
    yield from _tokens(result, run, file, benchmark)
    if "network" in (result.submitter.division, _network_of(result)):
        wanted = result.round.network_sut
        if wanted not in str(run.detail.get("sut_name")):
            yield Finding("network-sut", file, run.text("sut_name"), f"a name with {wanted!r}")


def _network_of(result: Result) -> str:
    return "network" if result.description.get("is_network") == "true" else ""


def main_run(run: RunLog) -> Iterator[Finding]:
    """The performance run itself: no audit's settings."""
    file = shown(run.file)
    for key in ("effective_performance_issue_same", "effective_performance_issue_unique"):
        if run.detail.get(key) not in (None, False):
            yield Finding("audit-settings", file, f"{key}: {run.text(key)}", "false")
    if run.number("effective_accuracy_log_sampling_target"):
        found = run.text("effective_accuracy_log_sampling_target")
        yield Finding("audit-settings", file, f"accuracy_log_sampling_target: {found}", "0")


def _why_invalid(run: RunLog) -> str:
    keys = (
        "result_perf_constraints_met",
        "result_min_duration_met",
        "result_min_queries_met",
        "early_stopping_met",
    )
    missed = [key for key in keys if run.detail.get(key) is False]
    return f"{run.text('result_validity')}{': not ' + ', '.join(missed) if missed else ''}"


def _limits(run: RunLog, file: str) -> Iterator[Finding]:
    for key in ("effective_max_duration_ms", "effective_max_query_count"):
        if run.number(key):
            yield Finding("run-limited", file, f"{key}: {run.text(key)}", "0: no limit")


def _published(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    scenario = str(run.detail.get("effective_scenario"))
    if (
        result.scenario == "MultiStream"
    ):  # inferred ones are taken from this line of single-stream's
        scenario = "MultiStream"
    key = benchmark.results.get(scenario) or result.round.results.get(scenario)
    if key is not None and not (run.number(key) or 0) > 0:
        yield Finding("result-missing", file, f"{key}: {run.text(key)}", "a number above 0")


def _duration(result: Result, run: RunLog, file: str) -> Iterator[Finding]:
    """The setting, and how long it really was: LoadGen lets max_duration cut a run short."""
    least_ms = result.round.min_duration_ms
    setting = run.number("effective_min_duration_ms")
    if setting is None or setting < least_ms:
        found = f"effective_min_duration_ms: {run.text('effective_min_duration_ms')}"
        yield Finding("too-short", file, found, f"at least {least_ms}")
    took_ns = _took_ns(run)
    if took_ns is None:
        yield Finding("log-incomplete", file, "no times of its begin and end", "both")
    elif took_ns < least_ms * 1e6 * (1 - _DURATION_SLACK):
        yield Finding("too-short", file, f"it took {show_ns(took_ns)}", show_ns(least_ms * 1e6))


def _took_ns(run: RunLog) -> float | None:
    """Offline: until its last answer. Else from LoadGen's power_begin to its power_end."""
    if run.detail.get("effective_scenario") == "Offline":
        return run.number("result_max_latency_ns")
    try:
        begin, end = (
            datetime.strptime(str(run.detail.get(k)), _POWER_TIME)  # noqa: DTZ007 - both are UTC
            for k in ("power_begin", "power_end")
        )
    except ValueError:
        return None
    return (end - begin).total_seconds() * 1e9


def _queries(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    scenario = str(run.detail.get("effective_scenario"))
    count, least = run.number("result_query_count"), run.number("effective_min_query_count")
    if count is not None and least is not None and count < least:
        yield Finding("too-few-queries", file, f"{count:,.0f} queries", f"{least:,.0f} as set")
    if scenario == "Offline":
        if least is None or least < 1:
            found = f"effective_min_query_count: {run.text('effective_min_query_count')}"
            yield Finding("too-few-queries", file, found, "at least 1")
        samples = run.number("effective_samples_per_query")
        if samples is None or samples < benchmark.offline_samples:
            found = f"{run.text('effective_samples_per_query')} samples in the query"
            yield Finding("too-few-queries", file, found, f"{benchmark.offline_samples:,} at least")
        return
    if scenario == "MultiStream":
        samples, wanted = (
            run.number("effective_samples_per_query"),
            result.round.multi_stream_samples,
        )
        if samples != wanted:
            found = f"{run.text('effective_samples_per_query')} samples a query"
            yield Finding("scenario-settings", file, found, str(wanted))
    if benchmark.token_limits_ns is None:
        yield from _early_stopping(result, run, file, scenario)
    elif run.detail.get("early_stopping_met") is False:
        yield Finding("early-stopping", file, "not met", "met")


def _early_stopping(result: Result, run: RunLog, file: str, scenario: str) -> Iterator[Finding]:
    """What LoadGen says, and the counts it must have come from."""
    wanted = result.round.percentiles.get(scenario)
    if wanted is None:
        return
    percentile = run.number("effective_target_latency_percentile")
    if percentile != wanted:
        found = f"p{(percentile or 0) * 100:.10g}"
        yield Finding("scenario-settings", file, found, f"p{wanted * 100:.10g}")
    if run.detail.get("early_stopping_met") is not True:
        said = " ".join(run.text("early_stopping_result").split())
        yield Finding("early-stopping", file, said[:300], "met")
        return
    count = int(run.number("result_query_count") or 0)
    late = int(run.number("result_overlatency_query_count") or 0) if scenario == "Server" else 0
    if late and late_allowed(min(max(count, 1), _MOST_QUERIES), wanted) < late:
        found = f"met, with {late:,} of {count:,} queries late"
        yield Finding("early-stopping", file, found, f"p{wanted * 100:.10g} within the bound")
    least = queries_needed(0 if scenario == "Server" else 1, wanted)
    if count < least:
        yield Finding("too-few-queries", file, f"{count:,} queries", f"{least:,} for a result")


def _latency(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    limit_ns = benchmark.latency_limit_ns.get(str(result.scenario))
    if limit_ns is None or result.scenario != run.detail.get("effective_scenario"):
        return
    key = "effective_target_latency_ns"
    found_ns = run.number(key)
    if found_ns is None or not 0 < found_ns <= limit_ns:
        found = f"{key}: {run.text(key)}"
        yield Finding("latency-limit", file, found, f"at most {limit_ns} ({show_ns(limit_ns)})")


def _samples(run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    held, total = (
        run.number(k) for k in ("effective_performance_sample_count", "qsl_reported_total_count")
    )
    if held is None or held < benchmark.performance_samples:
        found = f"{run.text('effective_performance_sample_count')} samples held"
        wanted = f"{benchmark.performance_samples:,} at least"
        yield Finding("performance-samples", file, found, wanted)
    if held is not None and total is not None and held > total:
        found = f"{held:,.0f} samples held of {total:,.0f} there are"
        yield Finding("sample-override", file, found, "samples that exist")


def _tokens(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    if benchmark.token_limits_ns is None:
        return
    if run.detail.get("requested_use_token_latencies") is not True:
        yield Finding("token-latencies", file, "not used", "use_token_latencies = 1")
    limit = benchmark.token_limits_ns.get(str(result.scenario))
    if limit is None:
        return
    for key, most_ns in (
        ("result_first_token_99.00_percentile_latency_ns", limit.ttft),
        ("result_time_per_output_token_99.00_percentile_ns", limit.tpot),
    ):
        found_ns = run.number(key)
        if found_ns is None or found_ns >= most_ns:
            yield Finding("token-latencies", file, f"{key}: {run.text(key)}", f"below {most_ns}")
