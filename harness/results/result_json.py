"""Assembles result.json from the verdict, reasons, doubts and all numbers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from harness.core.codes import Reason
from harness.core.config.parse import Ramp
from harness.core.config.run_config import SCHEMA_VERSION
from harness.core.registry import short_name
from harness.core.units import NS_PER_S, counted
from harness.loadgen.plan import Calibration
from harness.machine.host_log import summary
from harness.machine.power.energy import window_ns
from harness.machine.power.ptdaemon_log import SOURCE
from harness.models.manifest.schema import Accuracy
from harness.models.opened.isolation import is_isolated
from harness.results import cost
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.performance import Performance
from harness.results.findings import NOT_STORED, Findings
from harness.results.load_hosts import section as load_hosts
from harness.results.load_hosts import witness
from harness.results.nodes import section as nodes
from harness.results.power import doubts as power_doubts
from harness.results.power import per_token, report
from harness.results.real_time import section as real_time
from harness.results.schema.client import Tokens
from harness.results.schema.machine import Calibration as CalibrationEntry
from harness.results.schema.machine import (
    Cold,
    Elastic,
    Host,
    NoiseFloor,
    Plan,
    PowerSection,
    WarmUp,
)
from harness.results.schema.performance import ComparedAnswers, NotScored, Scored
from harness.results.schema.result import (
    ClientSection,
    CostSection,
    Headline,
    ModelSource,
    ModelsSection,
    RealTimeSection,
    ReasonEntry,
    Result,
)
from harness.results.servers import section as servers
from harness.results.slos import reasons as slo_reasons
from harness.results.slos import section as goodput
from harness.results.tokens import by_model, cancellations, media, probes, ramp, sessions
from harness.results.tokens import section as tokens
from harness.results.tokens.phases import Phases, phases
from harness.results.verdict import (
    answer_signs,
    busy,
    client,
    code_doubts,
    doubts,
    model_doubts,
    reasons,
    token_counts,
)
from harness.results.verdict.host_doubts import host_doubts
from harness.results.verdict.score import LEFT_OUT, refusal
from harness.results.verdict.score import no_score as pointless

_OF_SERVED_RUNS: Mapping[str, Callable[[Evidence], Any]] = {
    "client": client.section,
    "nodes": nodes.section,
    "load_hosts": load_hosts.section,
    "witness": witness.section,
    "tokens": tokens.section,
    "sessions": sessions.section,
    "by_model": by_model.section,
    "media": media.section,
    "probes": probes.section,
    "cancellations": cancellations.section,
}
"""Maps a key of result.json to a function that returns the key's content, or None if the run lacks this content.
"""


def result(findings: Findings) -> Result:
    """Returns the content of result.json (harness/results/schema/result.py)."""
    invalid = list(_reasons(findings)) or _unfinished(findings)
    run, numbers, calibration = findings.performance, findings.performed, findings.calibration
    power = _power(findings, numbers)
    window = window_ns(run.log.values) if run and run.logged else None
    host = cast("Host | None", summary(findings.host, window))
    of_client = _client(findings, numbers, window)
    rates = numbers.throughput_per_s() if numbers else None
    loadgen_per_s = rates["completed"] if rates and findings.scenario.scheduled else None
    shares = phases(numbers.done if numbers is not None else None, window)
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "INVALID" if invalid else "VALID",
        "reasons": _entries(dict.fromkeys(invalid)),
        "doubts": _entries(_doubts(findings, power, host)),
        "not_for_submission": list(_not_for_submission(findings, numbers)),
        "started": findings.started,
        "scenario": findings.config.scenario,
        "mode": findings.config.mode,
        "backend": short_name(findings.config.backend),
        "model": findings.model.name,
        **_source(findings.model.resolved_name),
        "dataset": short_name(findings.dataset),
        "isolated": is_isolated(findings.resolved) and not code_doubts.foreign(findings.code),
        "slo": " ".join(map(str, findings.resolved.slos)) or None,
        "headline": _headline(findings, run) if run and run.logged else None,
        "latency_ns": numbers.latency_ns() if numbers else None,
        "latency_intervals_ns": numbers.intervals_ns if numbers else None,
        "throughput_per_s": rates,
        "goodput": goodput.section(run, findings.resolved.slos, loadgen_per_s) if run else None,
        "accuracy": _accuracy(findings),
        **per_token(power, of_client.get("tokens"), shares),
        "stages_ns": numbers.stages_ns if numbers else None,
        **of_client,
        **_cost(findings, numbers, window, of_client.get("tokens"), shares),
        **_models(findings),
        **_real_time(findings, numbers),
        "reference": numbers.reference(findings.ceiling_per_s) if numbers else None,
        "input_probe": numbers.input_probe if numbers else None,
        "steady": numbers.steady(findings.host) if numbers else None,
        "queries": numbers.queries() if numbers else None,
        "arrivals": numbers.arrivals() if numbers else None,
        "host": host,
        "measured_process": numbers.process() if numbers else None,
        "noise_floor_ns": cast("NoiseFloor | None", findings.noise),
        "plan": _plan(findings, run),
        "calibration": _calibration(findings.calibration),
        "cold": cast("Cold", dict(calibration.cold)) if calibration else None,
        "warm_up": cast("WarmUp", dict(calibration.warm_up)) if calibration else None,
        "backend_description": _described(findings, run),
        "dataset_description": findings.loaded.dataset if findings.loaded else None,
        "environment": findings.environment,
    }


def _described(findings: Findings, run: Evidence | None) -> Mapping[str, Any] | None:
    """Returns the backend's description of itself after loading, and after the run its use of a device under `use`."""
    if findings.loaded is None:
        return None
    used = run.ended.get("backend") if run is not None and run.ended is not None else None
    return {**findings.loaded.backend, **({"use": used} if used else {})}


def _source(resolved_name: str | None) -> ModelSource:
    return {"model_source": resolved_name} if resolved_name is not None else {}


def _headline(findings: Findings, run: Evidence) -> Headline | None:
    quantity = findings.scenario.headline(run.log.values)
    if quantity is None:
        return None
    return {
        "name": quantity.name,
        "value": quantity.value,
        "unit": quantity.unit,
        "source": quantity.source.replace("LoadGen", run.log.source),
    }


def _unfinished(findings: Findings) -> list[Reason]:
    """Returns a reason if the job lacks one of the runs that --mode requests. Used only if no other reason was found."""
    config = findings.config
    performance = findings.performance is not None or not config.runs_performance
    if performance and (any(findings.scoring) or not config.runs_accuracy):
        return []
    return [Reason("did-not-finish", "the run did not finish")]


def _reasons(findings: Findings) -> Iterable[Reason]:
    if findings.stopped is not None:
        yield findings.stopped
    if findings.unsaved is not None:
        yield findings.unsaved
    if findings.performance is not None:
        run, slos = findings.performance, findings.resolved.slos
        yield from token_counts.one_token_answers(run)
        yield from reasons.performance(run, [*slo_reasons.reasons(findings.scenario, run, slos)])
        yield from findings.contradictions(findings.performance)
        yield from reasons.slo(findings.scenario, findings.performance, findings.slo)
    if findings.performed is not None:
        completed = findings.performed.throughput_per_s()["completed"]
        yield from nodes.reasons(findings.performed.run)
        yield from client.reasons(findings.performed.run, completed)
        yield from sessions.reasons(findings.performed.run)
        yield from reasons.by_index(findings.performed.input_probe)
    for role, run in findings.runs.items():
        if role != "performance":
            yield from reasons.any_run(run)
            yield from nodes.reasons(run)
            yield from findings.contradictions(run)
    scoring, declared = findings.scoring, findings.model.accuracy
    if scoring.failure is not None:
        yield scoring.failure
    if scoring.score is not None:
        yield from reasons.score(scoring.score, findings.accuracy_target)
    if scoring.compared is not None:
        allowed = declared.sampling_tolerance if declared else 0
        yield from reasons.answers(scoring.compared, allowed, drawn=_draws_tokens(findings))


def _draws_tokens(findings: Findings) -> bool:
    """Returns whether the requests ask the server to draw tokens at random."""
    loaded = findings.loaded
    return loaded is not None and any(
        part.get("draws_tokens") for part in (loaded.backend, loaded.dataset)
    )


def _entries(reasons: Iterable[Reason]) -> list[ReasonEntry]:
    return [{"code": one.code, "text": one.text} for one in reasons]


def _doubts(findings: Findings, power: PowerSection, host: Host | None) -> Iterable[Reason]:
    bound_ns = findings.slo.bound_ns if findings.slo else None
    run, numbers, calibration = findings.performance, findings.performed, findings.calibration
    if run is not None and numbers is not None:
        yield from doubts.performance(run, numbers.journal_latency_ns, bound_ns)
        percentile = findings.slo.percentile if findings.slo else findings.scenario.percentile
        yield from doubts.few_samples(run, percentile)
        yield from doubts.few_held(run.plan, findings.loaded)
        yield from client.doubts(run, bound_ns, _described(findings, run))
        yield from _by_the_page(findings, numbers)
        yield from witness.doubts(numbers.run)
        yield from nodes.doubts(run)
        yield from model_doubts.cached(numbers.input_probe)
        if numbers.done is not None:
            slowest_ns = calibration.slowest_batch_ns if calibration else 0
            yield from doubts.stall(numbers.done, run.plan.scenario, slowest_ns)
            yield from client.standstill_doubts(numbers.run)
            if numbers.kept_up:
                # If the run did not keep up, the queue grows, which looks like a drift on any machine.
                yield from doubts.steadiness(numbers.steady(findings.host))
            fixed = findings.loaded.fixed_batch if findings.loaded else None
            yield from model_doubts.padding(numbers.mean_batch or 0.0, fixed)
        if _computes_here(findings):
            yield from model_doubts.idle(run, numbers.infer_s)
    yield from _accuracy_doubts(findings)
    if calibration is not None:
        yield from doubts.pinning(findings.config.backend, findings.spec.pinned, calibration.placed)
    if findings.loaded is not None:
        sha256 = findings.loaded.model_sha256
        # A --model-file counts as pinned, because not_for_submission reports the option and config.yaml contains the
        # file's digest.
        pinned = findings.config.model_file is not None or findings.model.is_pinned(sha256)
        if not findings.model.unpinned_own:  # because not_for_submission reports such a model
            yield from model_doubts.model_file(findings.model.name, sha256, pinned=pinned)
    metered = findings.power is not None or findings.ptdaemon is not None
    if run is not None and metered and power["power"] is None:
        yield Reason("power-missing", f"no meter has a reading: {power['power_reason']}")
    yield from power_doubts(power)
    yield from _machine_doubts(findings, host, bound_ns)
    yield from code_doubts.code(findings.code)


def _machine_doubts(
    findings: Findings, host: Host | None, bound_ns: int | None
) -> Iterable[Reason]:
    run, load = findings.performance, dict(findings.load)
    if run is not None and client.local_servers(run):
        load["others"] = None  # because a server on this machine would count as another process
    if host is not None:
        samples = len(run.done) if run is not None and run.done is not None else 0
        others, remote = load.get("others"), bool(findings.config.url)
        yield from host_doubts(host, findings.config.scenario, samples, others, remote=remote)
    if findings.noise is not None:
        yield from doubts.machine(findings.noise["p99"], load, bound_ns)


def _by_the_page(findings: Findings, numbers: Performance) -> Iterable[Reason]:
    """Compares the tokens in the replies with the servers' metrics."""
    run = numbers.run
    window = window_ns(run.log.values) if run.logged else None
    page = servers.section(findings.server_metrics, window, findings.no_server_metrics)
    generated = tokens.section(run)
    seconds = (window[1] - window[0]) / NS_PER_S if window is not None else 0.0
    yield from answer_signs.page(page, generated, seconds)


def _accuracy_doubts(findings: Findings) -> Iterable[Reason]:
    target, (scored, no_score, _, compared) = findings.model.accuracy, findings.scoring
    if target is not None and (scored is not None or no_score):
        data = "" if findings.accuracy_target else findings.dataset
        yield from model_doubts.unscored(target, scored.metric if scored else None, no_score, data)
    elif target is not None:
        yield from _refused(findings, target)
    own = findings.own_data and findings.config.model_file is None
    if target is not None and scored is not None and own:
        yield from model_doubts.too_good(scored, target)
    yield from model_doubts.other_judge(findings.model)
    if _draws_tokens(findings):
        yield from model_doubts.drawn_answers()
    elif findings.performance is not None:
        told = token_counts.client_told(findings.performance).get("tokens") or {}
        yield from answer_signs.varied(told)
    if target is not None:
        answers = compared.answers if compared is not None else None
        yield from model_doubts.weak_judge(target, scored, answers)
    run = findings.compared_run
    if compared is not None and run is not None:
        yield from model_doubts.few_compared(compared.answers, run.plan.logged_answers)


def _refused(findings: Findings, target: Accuracy) -> Iterable[Reason]:
    """Yields a doubt if the performance run's answers do not have the shape that the target's metric requires."""
    run, loaded, metric = findings.performance, findings.loaded, target.metric
    if findings.config.runs_accuracy or run is None or run.ended is None or loaded is None:
        return
    if not pointless(findings.model, loaded, metric) and (why := refusal(metric, run.ended)):
        yield from model_doubts.unscored(target, None, why, "")


def _computes_here(findings: Findings) -> bool:
    """Returns whether the backend reports that it computes on the CPU in the measured process."""
    if findings.config.node_urls:
        return False
    backend = findings.loaded.backend if findings.loaded else {}
    device = str(backend.get("device", findings.config.device))
    reported = backend.get("framework", "none") != "none"
    return reported and findings.config.device == "cpu" and device.lower().startswith("cpu")


def _not_for_submission(findings: Findings, numbers: Performance | None) -> Iterable[str]:
    if not findings.config.mlperf:
        yield "a quick run, not under the official rules"
        if findings.config.audit is not None:
            yield f"an audit: {findings.config.audit.name} changes LoadGen's settings"
    yield from _of_the_model(findings)
    yield from _of_the_load(findings)
    if findings.config.backend == "null":
        yield "null backend: the harness's own cost, no model"
    if findings.loaded is not None and findings.loaded.synthetic:
        integers = findings.loaded.dataset.get("zero_or_one")
        alike = f", with only 0 and 1 in {' and '.join(integers)}" if integers else ""
        yield f"synthetic data{alike}"
    if findings.config.mlperf and findings.config.device == "cpu" and numbers is not None:
        yield from busy.waited(numbers.process(), numbers.stages_ns, numbers.queries())


def _of_the_load(findings: Findings) -> Iterable[str]:
    scheduler = "by the harness scheduler: no MLPerf scenario"
    if isinstance(findings.config.arrivals, Ramp):
        yield f"a rate that grows until an SLO breaks, and is held below, {scheduler}"
    elif findings.config.arrivals is not None:
        yield f"arrivals replayed from a file {scheduler}"
    if findings.config.load_hosts is not None and findings.config.runs_performance:
        yield f"{counted(findings.config.load_hosts.count, 'load host')} in place of one LoadGen"
    if findings.config.streams is not None:
        yield f"{counted(findings.config.streams, 'stream')} in real time {scheduler}"
    if findings.config.concurrency is not None:
        yield f"{findings.config.concurrency:,} queries kept in flight {scheduler}"
    elif findings.performance is not None and findings.performance.plan.sessions:
        yield f"sessions, whose turns wait for each other, {scheduler}"
    if findings.config.probe_rate is not None and findings.config.runs_performance:
        yield f"probes during the load, {findings.config.probe_rate:g} per second"


def _of_the_model(findings: Findings) -> Iterable[str]:
    declared = findings.model.manifest and findings.model.manifest.mlperf_model
    if findings.config.mlperf and not (findings.config.mlperf_model or declared):
        yield f"{findings.model.name} is not an MLPerf model: its manifest has no mlperf_model"
    if findings.model.has_random_weights:
        yield "random weights"
    if findings.model.unpinned_own and findings.config.model_file is None:
        files = ", ".join(findings.model.unpinned_own)
        yield f"the manifest of {findings.model.name!r} has no SHA-256 for {files}"
    if findings.config.model_file is not None:
        yield f"{findings.config.model_file.name} in place of the manifest's file"


def _accuracy(findings: Findings) -> Scored | NotScored:
    declared = findings.accuracy_target
    score, no_score, failure, compared = findings.scoring
    if score is not None:
        judged = declared is not None and declared.metric == score.metric
        target = declared.target if declared is not None and judged else None
        scored: Scored = {
            "metric": score.metric,
            "value": score.value,
            "unit": score.unit,
            "samples": score.samples,
            "target": target,
            "lower_is_better": score.lower_is_better,
            "details": dict(score.details),
            "compared": cast("ComparedAnswers", compared._asdict()) if compared else None,
            "source": "LoadGen mlperf_log_accuracy.json",
        }
        if score.scorer:
            scored["scorer"] = score.scorer
        if findings.scored_again:
            scored["scored_again"] = findings.scored_again
        return scored
    if not findings.config.runs_accuracy:
        random = findings.model.has_random_weights
        return {"value": None, "reason": "random weights" if random else "performance run only"}
    why = failure.text if failure else no_score
    if no_score and findings.accuracy is None:
        why += LEFT_OUT
    return {"value": None, "reason": why or "the run ended before it was scored"}


def _cost(
    findings: Findings,
    numbers: Performance | None,
    window: tuple[int, int] | None,
    generated: Tokens | None,
    shares: Phases | None,
) -> CostSection:
    done = numbers.done if numbers is not None else None
    answered = len(done) - done.failed if done else 0
    found = cost.section(findings.config.price, window, answered, generated, shares)
    return {"cost": found} if found is not None else {}


def _power(findings: Findings, numbers: Performance | None) -> PowerSection:
    run, done = (numbers.run, numbers.done) if numbers is not None else (None, None)
    meters = {name for name, _ in findings.config.meter}
    official = {SOURCE.name} & meters
    if (official and findings.ptdaemon is None) or (meters - official and findings.power is None):
        return {"power": None, "power_reason": NOT_STORED}
    return report(
        findings.power,
        run.log.values if run is not None and run.logged else {},
        done.issued // run.plan.samples_per_query if run and done else 0,
        len(done) if done else 0,
        findings.ptdaemon,
        elsewhere=client.elsewhere(run) if run is not None else (),
        under_rules=findings.config.mlperf,
        scheduler=run.log.source if run is not None else "LoadGen",
    )


def _client(
    findings: Findings, numbers: Performance | None, window: tuple[int, int] | None
) -> ClientSection:
    sections: dict[str, Any] = {}
    told = servers.section(findings.server_metrics, window, findings.no_server_metrics)
    if told is not None:
        sections["servers"] = told
    if numbers is not None:
        found = {name: section(numbers.run) for name, section in _OF_SERVED_RUNS.items()}
        sections |= {name: content for name, content in found.items() if content}
        if (ramped := ramp.section(numbers.run, findings.resolved.slos)) is not None:
            sections["ramp"] = ramped
    return cast("ClientSection", sections)


def _real_time(findings: Findings, numbers: Performance | None) -> RealTimeSection:
    run = findings.performance
    if run is None or numbers is None:
        return {}
    found = real_time.section(run, findings.model, numbers.infer_s)
    return {"real_time": found} if found is not None else {}


def _models(findings: Findings) -> ModelsSection:
    return {"models": findings.models} if findings.models is not None else {}


def _plan(findings: Findings, run: Evidence | None) -> Plan:
    """Returns the instance group and the dispatcher (harness/run/measured/dispatch/choose.py). The key `issuer` holds
    the value reported at the end of a run, or the planned value if no run ended.
    """
    pinned = findings.spec.pinned
    placed = findings.calibration.placed if findings.calibration else ()
    last = run or findings.accuracy
    ended = (last.ended if last else None) or {}
    plan: Plan = {
        "instances": findings.spec.instances,
        "threads": findings.spec.threads,
        "max_batch": findings.spec.max_batch,
        "cores": findings.spec.cores,
        "owns_cores": findings.spec.owns_cores,
        "pinned": [list(cpus) for cpus in pinned] or None,
        "issuer": list(ended.get("issuer", findings.spec.issuer)) or None,
        "placed": [{"threads": t, "outside": o} for t, o in placed] or None,
        "dispatch": findings.config.dispatch,
        "batch_wait_ns": findings.config.batch_wait_ns,
        "dispatcher": run.ended.get("dispatcher") if run and run.ended else None,
    }
    if ended.get("slice"):
        plan["issuer_slice"] = ended["slice"]
    if ended.get("elastic"):
        done = last.done if last else None
        wide = findings.spec.instances  # number of the wide instance, which is the last worker
        samples = int((done.columns["worker"] == wide).sum()) if done is not None else 0
        plan["elastic"] = cast("Elastic", {**ended["elastic"], "samples": samples})
    return plan


def _calibration(calibration: Calibration | None) -> CalibrationEntry | None:
    if calibration is None:
        return None
    entry: CalibrationEntry = {
        "rate_per_s": calibration.rate_per_s,
        "latency_ns": calibration.latency_ns,
        "slowest_batch_ns": calibration.slowest_batch_ns,
        "batch_latency_ns": [list(point) for point in calibration.batch_latency_ns] or None,
        "seconds": calibration.seconds,
    }
    if calibration.thread_latency_ns:
        entry["thread_latency_ns"] = [list(point) for point in calibration.thread_latency_ns]
    return entry
