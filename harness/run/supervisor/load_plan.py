"""Makes the plan of a LoadGen run, and checks that the run fits into memory and on the disk."""

import secrets
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from harness.core.config.parse import Ramp, Slo
from harness.core.config.run_config import RunConfig
from harness.core.config.schema import MAX_QUERIES
from harness.core.units import NS_PER_MS, NS_PER_S, show_bytes, show_percent
from harness.errors import ConfigError
from harness.loadgen import real_time, user_conf
from harness.loadgen.official import official_load
from harness.loadgen.plan import (
    Calibration,
    Loaded,
    LoadPlan,
    accuracy_samples,
    performance_samples,
)
from harness.loadgen.scenario import TURNS, Load, Scenario, scenario_named
from harness.loadgen.versions import seeds_of
from harness.models.opened.remote import request_timeout_s
from harness.models.opened.resolved_run import ResolvedRun
from harness.results.verdict import answers_check
from harness.results.verdict.score import no_score
from harness.run.journal import BYTES_PER_SAMPLE, RowKind
from harness.wire.opener import CONNECT_TIMEOUT_S, GIVE_UP_S

BYTES_PER_QUERY = 317
BYTES_PER_OFFLINE_SAMPLE = 155
"""Measured number of bytes that LoadGen keeps per query and, in Offline, per sample."""

BYTES_PER_SCHEDULED_QUERY = 24
"""Bytes per query in the harness's scheduler: two due times (relative to the start, and on the clock), and the sample.
"""

BYTES_PER_EVALUATED_SAMPLE = 150
"""Measured number of bytes that both processes hold per sample while the finished run is evaluated.

This number includes the journal, but not LoadGen's memory, which is free by then.
"""

BYTES_PER_LOGGED_ANSWER = 64
"""Bytes per row of the accuracy log, without the answer."""

MEMORY_SHARE = 0.60
"""Share of the available memory that a run may take; the remaining memory is a reserve."""

ISSUE_MARGIN = 1.25
"""The journal is larger than the predicted number of samples by this factor, because LoadGen may issue a few more
samples.
"""

UNTIL_TIMES = 30
"""A run with --until is at most this many times as long as --duration or --queries sets."""

MIN_HANG_S = 10.0
HANG_BATCHES = 20


def performance_plan(
    scenario: Scenario,
    config: RunConfig,
    slo: Slo | None,
    loaded: Loaded,
    calibration: Calibration,
    *,
    compared: bool = False,
    load: Load | None = None,
    frame_period_ns: int | None = None,
) -> LoadPlan:
    """Plans a performance run that is not official. The plan sets a fixed number of queries, so the duration is only a
    forecast.

    compared: whether some answers are logged for a comparison with an accuracy run.
    load: the load of a file of arrivals, of a ramp or of real-time streams; None: the scenario's load.
    frame_period_ns: time between two frames of a real-time stream.
    """
    load = load or scenario.load(config, slo, calibration)
    least = load.query_count
    if config.until is not None and config.concurrency is not None:
        load = load._replace(query_count=min(UNTIL_TIMES * least, MAX_QUERIES))
    plan = accuracy_plan(scenario, config, slo, loaded)
    in_sessions = "sessions" in loaded.dataset and scenario.scheduled and config.load_hosts is None
    if in_sessions:
        check_sessions(loaded)
    return replace(
        plan,
        accuracy=False,
        query_count=load.query_count,
        journal_samples=performance_samples(
            load.query_count * plan.samples_per_query,
            loaded,
            sessions=in_sessions,
            from_file=config.arrivals is not None,
        ),
        target_qps=load.target_qps,
        logged_answers=_logged(calibration) if compared else 0,
        answers_seed=secrets.randbits(63) if compared else 0,
        expected_s=load.expected_s,
        concurrency=config.concurrency,
        until=config.until,
        least_queries=_least(config, least) if config.until is not None else None,
        streams=config.streams,
        frame_period_ns=frame_period_ns,
        sessions=in_sessions,
        cancel_share=config.cancel.share if config.cancel else 0.0,
        cancel_after_ns=config.cancel.after_ns if config.cancel else 0,
        probe_rate=config.probe_rate or 0.0,
        load_hosts=config.load_hosts.count if config.load_hosts else 0,
    )


def _least(config: RunConfig, queries: int) -> int:
    """Returns the number of queries after which a run with --until may end.

    Without --concurrency, such a run may end after any query, because the run's schedule only sets a maximum.
    """
    return queries if config.concurrency is not None else 1


def plan_for(
    run: ResolvedRun, loaded: Loaded, calibration: Calibration, outdir: Path, role: str
) -> LoadPlan:
    """Returns the plan of one LoadGen run, and writes LoadGen's input files into `outdir`.

    role: performance, accuracy or answers.
    """
    config, replayed, accuracy = run.config, run.arrivals, role == "accuracy"
    if role == "answers":
        plan = answers_plan(run, outdir, loaded, calibration)
    elif config.mlperf:
        plan = official_plan(run, outdir, loaded, calibration, accuracy)
    elif accuracy:
        plan = accuracy_plan(run.scenario, config, run.slo, loaded)
        plan = _with_tokens(plan, run, outdir)
    else:
        compared = config.runs_accuracy and not no_score(run.model, loaded, run.metric)
        load = replayed.load(config.queries) if replayed else None
        sizing = max(run.slos, key=lambda slo: slo.percentile, default=None)
        period_ns = run.model.frame_period_ns if config.streams is not None else None
        if config.streams is not None and period_ns is not None and sizing is not None:
            load = real_time.load(
                config.queries, config.duration_ns, config.streams, period_ns, sizing.percentile
            )
        if isinstance(config.arrivals, Ramp):
            load = Load(config.queries or MOST_RAMPED, None)
        plan = performance_plan(
            run.scenario,
            config,
            sizing,
            loaded,
            calibration,
            compared=compared,
            load=load,
            frame_period_ns=period_ns,
        )
        if replayed is not None:
            plan = replayed.put(plan, outdir)
        if isinstance(config.arrivals, Ramp):
            plan = replace(plan, ramp=_ramp(config.arrivals, run, in_sessions=plan.sessions))
        plan = _with_tokens(plan, run, outdir)
    if config.audit is not None:
        copy = user_conf.copy_audit(config.audit, outdir)
        text = Path(copy).read_text(encoding="utf-8", errors="replace")
        given = user_conf.value(text, "*", "*", "sample_concatenate_permutation")
        plan = replace(plan, audit_config=copy, equal_issue=plan.equal_issue and given != "0")
    return plan


MOST_RAMPED = 200_000
"""A ramp with its holds issues at most this many queries. The journal is sized for this number."""


def _ramp(ramp: Ramp, run: ResolvedRun, *, in_sessions: bool) -> dict[str, Any]:
    """Returns the plan's field `ramp`. Raises a ConfigError if the run has no SLO, or has sessions."""
    if not run.slos:
        raise ConfigError("--arrivals ramp raises the rate until an SLO breaks: add --slo")
    if in_sessions:
        raise ConfigError(
            "--arrivals ramp does not apply to sessions, which send each turn after the previous answer and not at the "
            "ramp's rate: set --target-qps or --concurrency instead"
        )
    return {
        "start": ramp.start_per_s,
        "factor": ramp.factor,
        "step_ns": ramp.step_ns,
        "hold_ns": run.config.duration_ns,
        "slos": " ".join(map(str, run.slos)),
    }


def check_sessions(loaded: Loaded) -> None:
    """Raises a ConfigError if the longest session has more turns than there are samples in memory."""
    longest = loaded.dataset["turns"]["max"]
    if loaded.performance_count < longest:
        raise ConfigError(
            f"the longest session has {longest} turns, but only {loaded.performance_count:,} samples "
            "are loaded: raise --performance-count"
        )


BOUNDS_FILE = "token_latencies.conf"
NO_BOUND_MS = 10**9
"""Stands for a bound that is not set: LoadGen always needs a bound for both TTFT and TPOT."""


def _with_tokens(plan: LoadPlan, run: ResolvedRun, outdir: Path) -> LoadPlan:
    """Returns the plan with the bounds that LoadGen judges. Writes the bounds of token times into a file for LoadGen.

    LoadGen has only one percentile for TTFT and TPOT, so LoadGen judges both at the highest percentile of the SLOs. The
    harness judges every SLO at its percentile.
    """
    slo, of_tokens = run.slo, [slo for slo in run.slos if slo.of]
    percentile, bound_ns = (slo.percentile, slo.bound_ns) if slo else (None, None)
    plan = replace(plan, percentile=percentile, latency_bound_ns=bound_ns)
    if not of_tokens:
        return plan
    told = not (plan.accuracy or plan.harness_scheduled or run.scenario.all_at_once)
    if not run.scenario.scheduled:
        return replace(plan, token_latencies=told)
    percentile = max(one.percentile for one in of_tokens)
    if plan.harness_scheduled:
        return replace(plan, percentile=slo.percentile if slo else percentile)
    plan = replace(plan, percentile=percentile, latency_bound_ns=None, token_latencies=told)
    if not told:
        return plan
    bounds_ms = {
        one.of: ceil(one.bound_ns / NS_PER_MS) for one in of_tokens if one.percentile == percentile
    }
    path = outdir.absolute() / BOUNDS_FILE
    path.write_text(
        "".join(
            f"*.Server.{of}_latency = {bounds_ms.get(of, NO_BOUND_MS)}\n" for of in ("ttft", "tpot")
        ),
        encoding="utf-8",
    )
    return replace(plan, user_conf=str(path))


def _model_key(run: ResolvedRun) -> str:
    """Returns the name under which LoadGen knows the benchmark. LoadGen applies general rules to unknown names."""
    declared = run.model.manifest and run.model.manifest.mlperf_model
    return run.config.mlperf_model or declared or run.model.name


def official_plan(
    run: ResolvedRun, outdir: Path, loaded: Loaded, calibration: Calibration, accuracy: bool
) -> LoadPlan:
    """Returns the plan under the official rules. LoadGen sets counts, seeds and bounds for the model key.

    Writes the effective user.conf into `outdir`. The file contains the user's lines, and calibrated values for settings
    that those lines omit.
    """
    scenario, config, model_key = run.scenario, run.config, _model_key(run)
    text = user_conf.lint(config.user_conf) if config.user_conf else ""
    sized = scenario.user_conf(config, calibration)
    if accuracy:
        sized = scenario.accuracy_user_conf()
        text = user_conf.without(text, f"{scenario.loadgen_name}.target_qps")
    path = outdir.absolute() / "user.conf"
    path.write_text(user_conf.compose(text, sized), encoding="utf-8")
    load = official_load(
        config.scenario, model_key, str(path), loaded.total_count, loaded.performance_count
    )
    issued = ceil(load.queries * load.samples_per_query * ISSUE_MARGIN)
    if load.equal_issue:  # LoadGen rounds up to complete sets of samples (Offline) or queries
        issued += load.performance_count * load.samples_per_query
    return LoadPlan(
        scenario=config.scenario,
        accuracy=accuracy,
        query_count=loaded.total_count if accuracy else load.queries,
        journal_samples=accuracy_samples(loaded) if accuracy else issued,
        total_count=loaded.total_count,
        performance_count=load.performance_count,
        seeds=seeds_of(config),
        samples_per_query=load.samples_per_query,
        target_qps=load.target_qps if scenario.scheduled else None,
        percentile=load.percentile,
        latency_bound_ns=load.latency_bound_ns,
        token_latencies=load.token_latencies,
        model_key=model_key,
        equal_issue=load.equal_issue,
        user_conf=str(path),
        expected_s=None if accuracy else load.expected_s,
    )


ANSWERS_S = 5.0
MOST_ANSWERS = 100_000
"""Duration and maximum number of queries (Offline: samples) of the run that logs answers for an official run."""


def answers_plan(
    run: ResolvedRun, outdir: Path, loaded: Loaded, calibration: Calibration
) -> LoadPlan:
    """Plans a short repetition of the official performance run that logs its answers.

    LoadGen does not log answers in a performance run for submission.
    """
    official = official_plan(run, outdir, loaded, calibration, accuracy=False)
    rate_per_s = official.target_qps or calibration.rate_per_s
    per_s = rate_per_s or NS_PER_S / (calibration.latency_ns or NS_PER_S)
    least = ceil(min(answers_check.FEWEST, loaded.total_count) / official.samples_per_query)
    count = min(max(least, ceil(ANSWERS_S * per_s)), MOST_ANSWERS)
    return replace(
        official,
        query_count=count,
        journal_samples=count * official.samples_per_query,
        model_key=None,
        equal_issue=False,
        user_conf=None,
        logged_answers=_logged(calibration),
        answers_seed=secrets.randbits(63),
        expected_s=count / per_s,
        checks_answers=True,
    )


def _logged(calibration: Calibration) -> int:
    """Returns the number of answers that LoadGen logs; this number is limited because LoadGen holds the answers in
    memory.
    """
    fitting = answers_check.LIMIT_BYTES // max(1, calibration.answer_bytes)
    return min(answers_check.LOGGED, fitting)


ACCURACY_QPS = 100_000.0
"""Rate of Server's accuracy run. LoadGen paces this run, too, although its latency is not judged."""


def accuracy_plan(
    scenario: Scenario, config: RunConfig, slo: Slo | None, loaded: Loaded
) -> LoadPlan:
    """Plans a run that processes every sample of the dataset once."""
    return LoadPlan(
        scenario=config.scenario,
        accuracy=True,
        query_count=loaded.total_count,
        journal_samples=accuracy_samples(loaded),
        total_count=loaded.total_count,
        performance_count=loaded.performance_count,
        seeds=seeds_of(config),
        samples_per_query=scenario.samples_per_query(config),
        target_qps=ACCURACY_QPS if scenario.scheduled else None,
        percentile=slo.percentile if slo else None,
        latency_bound_ns=slo.bound_ns if slo else None,
    )


def memory_bytes(
    plan: LoadPlan, max_batch: int, model_bytes: int, rows: RowKind = RowKind.BATCH
) -> int:
    """Returns the peak memory of a run with this plan; the peak occurs during the run or during the evaluation
    afterwards.

    rows: kind of the journal's rows.
    """
    samples = plan.query_count * plan.samples_per_query
    if scenario_named(plan.scenario).all_at_once:
        loadgen, batches = samples * BYTES_PER_OFFLINE_SAMPLE, ceil(samples / max_batch)
    else:
        each = BYTES_PER_SCHEDULED_QUERY if plan.harness_scheduled else BYTES_PER_QUERY
        loadgen, batches = plan.query_count * each, plan.query_count
    if rows is RowKind.REPLY:
        batches = ceil(samples / max_batch)
    elif rows is not RowKind.BATCH:
        batches = samples
    journal = samples * BYTES_PER_SAMPLE + batches * rows.value.itemsize
    running = loadgen + journal
    return max(running, samples * BYTES_PER_EVALUATED_SAMPLE) + model_bytes


def check_memory(
    plan: LoadPlan,
    max_batch: int,
    model_bytes: int,
    available_bytes: int,
    *,
    counted: bool,
    searched: bool = False,
    rows: RowKind = RowKind.BATCH,
) -> None:
    """Raises ConfigError if the plan does not fit into memory. The message names the longest run that fits.

    counted: whether --queries set the number of queries, so that the message names this option.
    searched: whether a search for the load derived the number of queries from --duration.
    """
    needed = memory_bytes(plan, max_batch, model_bytes, rows)
    limit = MEMORY_SHARE * available_bytes
    if needed <= limit:
        return
    count = plan.query_count
    per_query = (needed - model_bytes) / count
    fits = max(0, int((limit - model_bytes) / per_query))
    seconds = int((plan.expected_s or 0.0) * fits / count)
    share = f"{show_percent(MEMORY_SHARE)} of the {show_bytes(available_bytes)} available"
    if plan.model_key is not None:
        advice = _official_advice(plan, fits)
    elif not fits:
        advice = "free some memory"
    elif (searched or not counted) and fits >= TURNS and count == TURNS * (plan.concurrency or 0):
        advice = f"the most that fits is --concurrency {fits // TURNS}"
    elif searched:
        advice = "shorten --duration"
    elif counted or not seconds:
        advice = f"the most that fits is --queries {fits}"
    else:
        advice = f"the longest that fits is --duration {seconds}s"
    raise ConfigError(
        f"{count:,} queries need about {show_bytes(needed)} of memory, more than {share}: {advice}"
    )


def check_disk(plan: LoadPlan, answer_bytes: int, free_bytes: int) -> None:
    """Raises ConfigError if the disk has no room for the accuracy log, which holds the answers in hexadecimal."""
    samples = plan.query_count
    needed = samples * (BYTES_PER_LOGGED_ANSWER + 2 * answer_bytes)
    if needed > free_bytes:
        raise ConfigError(
            f"the accuracy log of {samples:,} answers needs about {show_bytes(needed)} on disk, "
            f"but only {show_bytes(free_bytes)} are free: free more space, or pass an --out on another disk"
        )


def _official_advice(plan: LoadPlan, fits: int) -> str:
    """Returns advice for an official run that does not fit into memory.

    An official run takes at least 600 s, so the user can change only the expected rate, which sets the number of
    queries. If the model is faster than the expected rate, the run ends too early and is INVALID.
    """
    if fits < 1 or not plan.expected_s:  # the length of an accuracy run cannot be changed
        return "free some memory"
    scenario = scenario_named(plan.scenario)
    name = scenario.loadgen_name
    if scenario.streams:
        shortest_ms = plan.expected_s * 1e3 / fits
        return (
            f"if a query takes {shortest_ms:.4f} ms or more on average, put *.{name}.target_latency = "
            f"{2 * shortest_ms:.4f} (ms) into the --user-conf file; otherwise free some memory"
        )
    most_qps = f"{fits / plan.expected_s / 1.1:.0f}"
    if scenario.all_at_once:
        return (
            f"if the model answers at most {most_qps} samples/s, put *.{name}.target_qps = {most_qps} "
            "into the --user-conf file; otherwise free some memory"
        )
    return f"put *.{name}.target_qps = {most_qps} or less into the --user-conf file"


def hang_timeout_s(config: RunConfig, slowest_batch_ns: int) -> float:
    if config.hang_timeout_ns is not None:
        return config.hang_timeout_ns / 1e9
    longest_s = max(MIN_HANG_S, HANG_BATCHES * slowest_batch_ns / 1e9) + config.batch_wait_ns / 1e9
    # A run counts as hung only after requests have timed out and the run has had time to give up on a lost server.
    if config.servers:
        longest_s = 2 * request_timeout_s(config, slowest_batch_ns) + CONNECT_TIMEOUT_S + GIVE_UP_S
    return longest_s
