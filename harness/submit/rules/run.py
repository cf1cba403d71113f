"""Checks the logs of a LoadGen run, and the rules for performance runs."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from harness.core.stats import late_allowed, queries_needed
from harness.core.units import counted, show_ns
from harness.loadgen.logs import SUMMARY
from harness.results.evidence.summary import differences
from harness.results.verdict.arithmetic import contradictions, settings_stated_twice
from harness.submit.rules import settings
from harness.submit.rules.findings import Finding
from harness.submit.rules.tree.rounds import Benchmark
from harness.submit.rules.tree.submission import Result, RunLog
from harness.submit.rules.tree.tree import join

PERFORMANCE_MODE, ACCURACY_MODE = "PerformanceOnly", "AccuracyOnly"
_POWER_TIME = "%m-%d-%Y %H:%M:%S.%f"
_DURATION_SLACK = 0.001
"""Relative tolerance for durations, because clocks may be slewed and LoadGen's timestamps have a resolution of 1 ms."""

_MOST_QUERIES = 10**10
"""A larger number of queries is refused, because the table for early stopping would not fit into memory."""

_LONGEST_LOADING = timedelta(days=2)
_LONGEST_ROUND = timedelta(days=366)
"""The runs of a result may be at most this far apart, because runs from two rounds do not belong to one result."""

_SEEDS = ("qsl", "sample_index", "schedule")


def any_run(result: Result, run: RunLog, mode: str) -> Iterator[Finding]:
    """Checks that the log is complete and free of errors, and contains one run with this scenario and mode and the
    round's seeds.
    """
    file, log = run.file, run.detail
    yield from _whole(run)
    yield from _version(result, run)
    yield from _dates(result, run)
    if log.get("effective_test_mode") != mode:
        yield Finding("wrong-mode", file, run.text("effective_test_mode"), mode)
    if result.scenario and log.get("effective_scenario") != result.measured_scenario:
        actual = run.text("effective_scenario")
        yield Finding("wrong-scenario", file, actual, str(result.measured_scenario))
    for name in _SEEDS:
        key, expected = f"effective_{name}_rng_seed", getattr(result.round.seeds, name)
        if log.get(key) != expected:
            yield Finding("wrong-seed", file, f"{key}: {run.text(key)}", str(expected))
    errors = max(len(log.errors), int(run.number("num_errors") or 0))
    if errors:
        first = f": {log.errors[0]}" if log.errors else ""
        yield Finding("loadgen-errors", file, f"{errors} errors{first}"[:300], "no error")
    for contradiction in settings_stated_twice(log):
        yield Finding("numbers-disagree", file, contradiction[:300], "one log of one run")
    yield from settings.sut_name(result, run)
    yield from _summary(run)


def _whole(run: RunLog) -> Iterator[Finding]:
    file, log = run.file, run.detail
    if log.malformed_lines or not log.complete:
        actual = "the end of the log is missing"
        if log.malformed_lines:
            actual = f"{log.malformed_lines:,} lines that LoadGen did not write"
        yield Finding("log-incomplete", file, actual, "a complete log")
    if log.repeated != 1:
        yield Finding("log-mixed", file, counted(log.repeated, "run"), "one run")
    for key in dict.fromkeys(log.contradicted):
        yield Finding("log-mixed", file, f"{key} has two values"[:200], "one value")


def _version(result: Result, run: RunLog) -> Iterator[Finding]:
    """Checks that LoadGen is an unmodified release for the round, and the same release as in the performance run."""
    release = run.text("loadgen_version").partition(" ")[0]
    if release not in result.round.loadgen:
        expected = f"one of {', '.join(result.round.loadgen)}"
        yield Finding("loadgen-version", run.file, run.text("loadgen_version"), expected)
    changed = run.detail.get("loadgen_git_status_message")
    if changed not in (None, "", "NA"):  # NA means that LoadGen was not built in a checkout
        actual = f"local changes: {' '.join(str(changed).split())}"
        yield Finding("loadgen-version", run.file, actual[:200], "an unchanged checkout")
    reference = result.performance
    for key in ("loadgen_version", "loadgen_git_log_message"):
        if reference is not None and run.detail.get(key) != reference.detail.get(key):
            expected = f"{reference.text(key)}, as in the performance run"
            yield Finding("loadgen-version", run.file, run.text(key), expected)
            return


def _dates(result: Result, run: RunLog) -> Iterator[Finding]:
    """Checks that the run is newer than its LoadGen, began at the same time as its log, and is about as old as the
    performance run.
    """
    dates = {key: _date(run, key) for key in ("test_datetime", "power_begin")}
    built = max(filter(None, [result.round.loadgen_since, _date(run, "loadgen_build_date_utc")]))
    for key, at in dates.items():
        if at is not None and at < built:
            expected = f"a time after {built:%Y-%m-%d}, when its LoadGen was built"
            yield Finding("wrong-date", run.file, f"{key}: {run.text(key)}", expected)
    begun, measured = dates.values()
    if begun and measured and abs(measured - begun) > _LONGEST_LOADING:
        actual = f"test_datetime: {run.text('test_datetime')}"
        yield Finding("wrong-date", run.file, actual, f"power_begin's {run.text('power_begin')}")
    reference = result.performance
    other = _date(reference, "test_datetime") if reference is not None else None
    if begun and other and abs(begun - other) > _LONGEST_ROUND:
        actual = f"test_datetime: {run.text('test_datetime')}"
        yield Finding(
            "wrong-date", run.file, actual, f"about {other:%Y-%m}, like the performance run"
        )


def _date(run: RunLog, key: str) -> datetime | None:
    """Returns a time from the log, in UTC; None if the log does not contain the time."""
    text = str(run.detail.get(key))
    try:
        if key == "power_begin":
            return datetime.strptime(text, _POWER_TIME)  # noqa: DTZ007 - it is UTC
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def _summary(run: RunLog) -> Iterator[Finding]:
    file, missing = join(run.folder, SUMMARY), []
    for line, stated, logged in differences(run.summary, run.detail):
        if stated is None:
            missing.append(line)
        else:
            yield Finding("summary-differs", file, f"{line}: {stated}"[:200], f"{logged}")
    if missing:
        more = f", and {len(missing) - 1} other lines" if len(missing) > 1 else ""
        actual = f"no line {missing[0]!r}{more}"
        yield Finding("summary-differs", file, actual, "every line that LoadGen writes")


def performance(result: Result, run: RunLog) -> Iterator[Finding]:
    """Checks a performance run, including the performance run of an audit."""
    file, benchmark = run.file, result.benchmark
    if run.detail.get("result_validity") != "VALID":
        yield Finding("invalid-result", file, _why_invalid(run), "VALID")
    yield from any_run(result, run, PERFORMANCE_MODE)
    for key in ("effective_max_duration_ms", "effective_max_query_count"):
        if run.number(key):
            yield Finding("run-limited", file, f"{key}: {run.text(key)}", "0 (no limit)")
    for contradiction in contradictions(run.detail):
        yield Finding("numbers-disagree", file, contradiction[:300], "one log of one run")
    if benchmark is None or result.scenario is None:
        return
    yield from _published(result, run, file, benchmark)
    if benchmark.timed:
        yield from _duration(result, run, file)
    yield from _queries(result, run, file, benchmark)
    yield from _latency(result, run, file, benchmark)
    yield from settings.samples(result, run, benchmark)
    yield from settings.of_round(result, run, benchmark)
    yield from _tokens(result, run, file, benchmark)


def _why_invalid(run: RunLog) -> str:
    keys = (
        "result_perf_constraints_met",
        "result_min_duration_met",
        "result_min_queries_met",
        "early_stopping_met",
    )
    missed = [key for key in keys if run.detail.get(key) is False]
    return f"{run.text('result_validity')}{': not ' + ', '.join(missed) if missed else ''}"


def _published(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    scenario = str(run.detail.get("effective_scenario"))
    # An inferred result's SingleStream log also contains the MultiStream result.
    if result.scenario == "MultiStream":
        scenario = "MultiStream"
    key = benchmark.results.get(scenario) or result.round.results.get(scenario)
    if key is not None and not (run.number(key) or 0) > 0:
        yield Finding("result-missing", file, f"{key}: {run.text(key)}", "a number above 0")


def _duration(result: Result, run: RunLog, file: str) -> Iterator[Finding]:
    """Checks the configured and the measured duration; max_duration can end a run early."""
    least_ms = result.round.min_duration_ms
    setting = run.number("effective_min_duration_ms")
    if setting is None or setting < least_ms:
        actual = f"effective_min_duration_ms: {run.text('effective_min_duration_ms')}"
        yield Finding("too-short", file, actual, f"at least {least_ms}")
    took_ns = _took_ns(run)
    if took_ns is None:
        actual = "no times of begin and end"
        yield Finding("log-incomplete", file, actual, "power_begin and power_end")
    elif took_ns < least_ms * 1e6 * (1 - _DURATION_SLACK):
        actual = f"the run took {show_ns(took_ns)}"
        yield Finding("too-short", file, actual, f"at least {show_ns(least_ms * 1e6)}")


def _took_ns(run: RunLog) -> float | None:
    """Returns the run's duration in ns: in Offline, up to the last answer; otherwise, from power_begin to power_end."""
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
        expected = f"at least {least:,.0f}, the log's min_query_count"
        yield Finding("too-few-queries", file, f"{count:,.0f} queries", expected)
    if scenario == "Offline":
        if least is None or least < 1:
            actual = f"effective_min_query_count: {run.text('effective_min_query_count')}"
            yield Finding("too-few-queries", file, actual, "at least 1")
        samples = run.number("effective_samples_per_query")
        if samples is None or samples < benchmark.offline_samples:
            actual = f"{run.text('effective_samples_per_query')} samples in the query"
            expected = f"at least {benchmark.offline_samples:,}"
            yield Finding("too-few-queries", file, actual, expected)
        return
    if benchmark.token_limits_ns is None:
        yield from _early_stopping(result, run, file, scenario)
    elif run.detail.get("early_stopping_met") is False:
        yield Finding("early-stopping", file, "not met", "met")


def _early_stopping(result: Result, run: RunLog, file: str, scenario: str) -> Iterator[Finding]:
    """Checks LoadGen's early-stopping result, and checks that the result agrees with the counts in the log."""
    expected = result.round.percentiles.get(scenario)
    if expected is None:
        return
    percentile = run.number("effective_target_latency_percentile")
    if percentile != expected:
        actual = f"p{(percentile or 0) * 100:.10g}"
        yield Finding("scenario-settings", file, actual, f"p{expected * 100:.10g}")
    if run.detail.get("early_stopping_met") is not True:
        message = " ".join(run.text("early_stopping_result").split())
        yield Finding("early-stopping", file, message[:300], "met")
        return
    count = int(run.number("result_query_count") or 0)
    late = int(run.number("result_overlatency_query_count") or 0) if scenario == "Server" else 0
    if late and late_allowed(min(max(count, 1), _MOST_QUERIES), expected) < late:
        actual = f"met, although {late:,} of {count:,} queries are late"
        yield Finding("early-stopping", file, actual, f"p{expected * 100:.10g} within the bound")
    least = queries_needed(0 if scenario == "Server" else 1, expected)
    if count < least:
        yield Finding("too-few-queries", file, f"{count:,} queries", f"at least {least:,}")


def _latency(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    limit_ns = benchmark.latency_limit_ns.get(str(result.scenario))
    if str(result.scenario) in (benchmark.token_limits_ns or {}):
        return  # LoadGen logs a latency bound of 0, because it judges the token times instead
    if limit_ns is None or result.measured_scenario != run.detail.get("effective_scenario"):
        return
    key = "effective_target_latency_ns"
    actual_ns = run.number(key)
    if actual_ns is None or not 0 < actual_ns <= limit_ns:
        actual = f"{key}: {run.text(key)}"
        yield Finding("latency-limit", file, actual, f"at most {limit_ns} ({show_ns(limit_ns)})")


def _tokens(result: Result, run: RunLog, file: str, benchmark: Benchmark) -> Iterator[Finding]:
    if benchmark.token_limits_ns is None:
        return
    if run.detail.get("requested_use_token_latencies") is not True:
        actual = "use_token_latencies is off"
        yield Finding("token-latencies", file, actual, "use_token_latencies = 1")
    limit = benchmark.token_limits_ns.get(str(result.scenario))
    if limit is None:
        return
    for key, most_ns in (
        ("result_first_token_99.00_percentile_latency_ns", limit.ttft),
        ("result_time_per_output_token_99.00_percentile_ns", limit.tpot),
    ):
        actual_ns = run.number(key)
        if actual_ns is None or actual_ns >= most_ns:
            yield Finding("token-latencies", file, f"{key}: {run.text(key)}", f"below {most_ns}")
