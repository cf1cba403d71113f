"""Assembles result.json: verdict, reasons, doubts and every number. Pure."""

from collections.abc import Iterable
from typing import cast

from harness.core.codes import Reason
from harness.core.config.run_config import SCHEMA_VERSION
from harness.loadgen.plan import Calibration
from harness.machine.host_log import summary
from harness.machine.power.energy import window_ns
from harness.machine.power.ptdaemon_log import SOURCE
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.performance import Performance
from harness.results.findings import NOT_STORED, Findings
from harness.results.power import report
from harness.results.schema.machine import Calibration as CalibrationEntry
from harness.results.schema.machine import Host, NoiseFloor, Plan, PowerSection
from harness.results.schema.performance import NotScored, Scored
from harness.results.schema.result import Headline, ReasonEntry, Result
from harness.results.verdict.doubts import (
    compared_doubts,
    drift_doubts,
    machine_doubts,
    model_doubts,
    padding_doubts,
    performance_doubts,
    pin_doubts,
    power_doubts,
    sample_doubts,
    stall_doubts,
    unscored_doubts,
)
from harness.results.verdict.host_doubts import host_doubts
from harness.results.verdict.reasons import (
    compared_reasons,
    performance_reasons,
    run_reasons,
    score_reasons,
    slo_reasons,
)


def result(found: Findings) -> Result:
    """The content of result.json (harness/results/schema/result.py)."""
    reasons = list(_reasons(found))
    if not reasons and not _measured(found):
        reasons = [Reason("did-not-finish", "the run did not finish")]
    run, ran = found.performance, found.performed
    power = _power(found, ran)
    window = window_ns(run.log.values) if run and run.logged else None
    host = cast("Host | None", summary(found.host, window))
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "INVALID" if reasons else "VALID",
        "reasons": _entries(dict.fromkeys(reasons)),
        "doubts": _entries(_doubts(found, power, host)),
        "not_for_submission": list(_not_for_submission(found)),
        "started": found.started,
        "scenario": found.config.scenario,
        "mode": found.config.mode,
        "backend": found.config.backend,
        "model": found.model.name,
        "dataset": found.dataset,
        "slo": str(found.slo) if found.slo else None,
        "headline": _headline(found, run) if run and run.logged else None,
        "latency_ns": ran.latency_ns() if ran else None,
        "latency_intervals_ns": ran.intervals_ns if ran else None,
        "throughput_per_s": ran.throughput_per_s() if ran else None,
        "accuracy": _accuracy(found),
        **power,
        "stages_ns": ran.stages_ns if ran else None,
        "reference": ran.reference(found.ceiling_per_s) if ran else None,
        "steady_state": ran.steady_state.to_json() if ran and ran.steady_state else None,
        "queries": ran.queries() if ran else None,
        "arrivals": ran.arrivals() if ran else None,
        "host": host,
        "measured_process": ran.process() if ran else None,
        "noise_floor_ns": cast("NoiseFloor | None", found.noise),
        "plan": _plan(found, run),
        "calibration": _calibration(found.calibration),
        "cold": dict(found.calibration.cold) if found.calibration else None,
        "warm_up": dict(found.calibration.warm_up) if found.calibration else None,
        "backend_description": found.loaded.backend if found.loaded else None,
        "dataset_description": found.loaded.dataset if found.loaded else None,
        "environment": found.environment,
    }


def _headline(found: Findings, run: Evidence) -> Headline | None:
    quantity = found.scenario.headline(run.log.values)
    if quantity is None:
        return None
    return {
        "name": quantity.name,
        "value": quantity.value,
        "unit": quantity.unit,
        "source": quantity.source.replace("LoadGen", run.log.source),
    }


def _measured(found: Findings) -> bool:
    """Whether every run of --mode has ended."""
    performance = found.performance is not None or not found.config.runs_performance
    return performance and (any(found.scoring) or not found.config.runs_accuracy)


def _reasons(found: Findings) -> Iterable[Reason]:
    if found.stopped is not None:
        yield found.stopped
    if found.unsaved is not None:
        yield found.unsaved
    if found.performance is not None:
        yield from performance_reasons(found.performance)
        yield from slo_reasons(found.scenario, found.performance, found.slo)
    if found.accuracy is not None:
        yield from run_reasons(found.accuracy)
    scoring, declared = found.scoring, found.model.accuracy
    if scoring.failure is not None:
        yield scoring.failure
    if scoring.score is not None:
        yield from score_reasons(scoring.score, declared)
    if scoring.compared is not None:
        allowed = declared.sampling_tolerance if declared else 0
        yield from compared_reasons(scoring.compared, allowed)


def _entries(reasons: Iterable[Reason]) -> list[ReasonEntry]:
    return [{"code": one.code, "text": one.text} for one in reasons]


def _doubts(
    found: Findings,
    power: PowerSection,
    host: Host | None,
) -> Iterable[Reason]:
    bound_ns = found.slo.bound_ns if found.slo else None
    run, ran = found.performance, found.performed
    if run is not None and ran is not None:
        yield from performance_doubts(run, ran.journal_latency_ns, bound_ns)
        percentile = found.slo.percentile if found.slo else found.scenario.percentile
        yield from sample_doubts(run, percentile)
        if ran.done is not None:
            slowest_ns = found.calibration.slowest_batch_ns if found.calibration else 0
            yield from stall_doubts(ran.done, run.plan.scenario, slowest_ns)
            yield from drift_doubts(ran.steady_state)
            fixed = found.loaded.fixed_batch if found.loaded else None
            yield from padding_doubts(ran.mean_batch or 0.0, fixed)
    target, (scored, no_score, *_) = found.model.accuracy, found.scoring
    if target is not None and (scored is not None or no_score):
        yield from unscored_doubts(target, scored.metric if scored else None, no_score)
    if found.scoring.compared is not None and run is not None:
        yield from compared_doubts(found.scoring.compared.answers, run.plan.logged_answers)
    if found.calibration is not None:
        yield from pin_doubts(found.config.backend, found.spec.pinned, found.calibration.placed)
    if found.loaded is not None:
        sha256 = found.loaded.model_sha256
        # --model-file is reported in not_for_submission, and its digest is in config.yaml
        pinned = found.config.model_file is not None or found.model.is_pinned(sha256)
        yield from model_doubts(found.model.name, sha256, pinned=pinned)
    metered = found.power is not None or found.ptdaemon is not None
    if run is not None and metered and power["power"] is None:
        yield from power_doubts(power["power_reason"] or "")
    if host is not None:
        samples = len(run.done) if run is not None and run.done is not None else 0
        yield from host_doubts(host, found.config.scenario, samples, found.load.get("others"))
    if found.noise is not None:
        yield from machine_doubts(found.noise["p99"], found.load, bound_ns)


def _not_for_submission(found: Findings) -> Iterable[str]:
    if not found.config.mlperf:
        yield "a quick run, not under the official rules"
    if found.config.arrivals is not None:
        yield "arrivals replayed from a file by the harness scheduler: no MLPerf scenario"
    if found.config.concurrency is not None:
        yield (
            f"{found.config.concurrency:,} queries kept in flight by the harness scheduler: "
            "no MLPerf scenario"
        )
    if found.config.backend == "null":
        yield "null backend: the harness's own cost, no model"
    if found.loaded is not None and found.loaded.synthetic:
        integers = found.loaded.dataset.get("zero_or_one")
        alike = f", with only 0 and 1 in {' and '.join(integers)}" if integers else ""
        yield f"synthetic data{alike}"
    if found.model.has_random_weights:
        yield "random weights"
    if found.config.model_file is not None:
        yield f"{found.config.model_file.name} in place of the manifest's file"


def _accuracy(found: Findings) -> Scored | NotScored:
    declared = found.model.accuracy
    score, no_score, failure, compared = found.scoring
    if score is not None:
        judged = declared is not None and declared.metric == score.metric
        target = declared.target if declared is not None and judged else None
        return {
            "metric": score.metric,
            "value": score.value,
            "unit": score.unit,
            "samples": score.samples,
            "target": target,
            "lower_is_better": score.lower_is_better,
            "details": dict(score.details),
            "compared": {
                "answers": compared.answers,
                "differing": compared.differing,
                "first": compared.first,
            }
            if compared
            else None,
            "source": "LoadGen mlperf_log_accuracy.json",
        }
    if not found.config.runs_accuracy:
        random = found.model.has_random_weights
        return {"value": None, "reason": "random weights" if random else "performance run only"}
    why = failure.text if failure else no_score
    return {"value": None, "reason": why or "the run ended before it was scored"}


def _power(found: Findings, ran: Performance | None) -> PowerSection:
    run, done = (ran.run, ran.done) if ran is not None else (None, None)
    asked = {name for name, _ in found.config.meter}
    official = {SOURCE.name} & asked
    if (official and found.ptdaemon is None) or (asked - official and found.power is None):
        return {"power": None, "power_reason": NOT_STORED}
    values = run.log.values if run is not None and run.logged else {}
    queries = done.issued // run.plan.samples_per_query if run and done else 0
    source = run.log.source if run is not None else "LoadGen"
    return report(
        *(found.power, values, queries, len(done) if done else 0, found.ptdaemon),
        under_rules=found.config.mlperf,
        whose=source,
    )


def _plan(found: Findings, run: Evidence | None) -> Plan:
    """The instance group and the dispatcher (harness/run/measured/dispatch/choose.py). issuer: reported
    by a run at its end; the planned one where no run ended.
    """
    pinned = found.spec.pinned
    placed = found.calibration.placed if found.calibration else ()
    told = run or found.accuracy
    ended = (told.ended if told else None) or {}
    return {
        "instances": found.spec.instances,
        "threads": found.spec.threads,
        "max_batch": found.spec.max_batch,
        "cores": found.spec.cores,
        "owns_cores": found.spec.owns_cores,
        "pinned": [list(cpus) for cpus in pinned] or None,
        "issuer": list(ended.get("issuer", found.spec.issuer)) or None,
        "placed": [{"threads": t, "outside": o} for t, o in placed] or None,
        "dispatch": found.config.dispatch,
        "batch_wait_ns": found.config.batch_wait_ns,
        "dispatcher": run.ended.get("dispatcher") if run and run.ended else None,
    }


def _calibration(found: Calibration | None) -> CalibrationEntry | None:
    if found is None:
        return None
    return {
        "rate_per_s": found.rate_per_s,
        "latency_ns": found.latency_ns,
        "slowest_batch_ns": found.slowest_batch_ns,
        "batch_latency_ns": [list(point) for point in found.batch_latency_ns] or None,
        "seconds": found.seconds,
    }
