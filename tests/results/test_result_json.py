"""result.json made from golden evidence: LoadGen's numbers, with null for each number that was not measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.core.codes import Reason
from harness.loadgen.plan import InstanceGroup
from harness.results.evidence import performance
from harness.results.findings import NOT_STORED
from harness.results.verdict.score import Scoring
from harness.types import Score
from tests.builders.result import CALIBRATION, LOADED, configured, findings, result
from tests.builders.support import ENDED, SCENARIOS, evidence, golden_log

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


@each_scenario
def test_a_golden_run_is_valid_with_loadgens_numbers(scenario: str) -> None:
    found = result(findings(scenario, evidence(scenario)))
    log = golden_log(scenario)
    per = "per_query_latency" if scenario == "multi-stream" else "latency"
    assert (found["verdict"], found["reasons"]) == ("VALID", [])
    assert found["latency_ns"]["p99"] == log.get(f"result_99.00_percentile_{per}_ns")
    assert found["latency_ns"]["source"] == "LoadGen mlperf_log_detail.txt"
    assert found["headline"]["value"] == log.get(found["headline"]["source"].split()[1])
    assert found["power"] is None
    assert found["power_reason"]
    # The golden Offline run has only 15 batches, which are too few for a verdict.
    verdict = (found["steady"] or {}).get("verdict")
    assert (verdict is None) == (scenario == "offline")
    assert ("drift" in [d["code"] for d in found["doubts"]]) == (verdict == "not steady")
    intervals = found["latency_intervals_ns"]
    assert (intervals is None) == (scenario == "offline")


def test_official_run_notes_that_its_backend_waited() -> None:
    """Bug: only `submit pack`, after all runs, reported that the backend had waited, and it counted waiting for a core
    as sleep.
    """
    used = {**ENDED["used"], "cpu_s": 0.0, "run_queue_s": 0.0}

    def notes(**changed: Any) -> list[str]:
        run = evidence("offline", ended={**ENDED, "used": {**used, **changed}})
        official = configured(findings("offline", run), mlperf=True, mlperf_model="resnet50")
        return list(result(official)["not_for_submission"])

    assert len(notes()) == 1
    assert notes()[0].startswith(
        "its backend waited instead of computing: it computed or waited for a core for 0.0 % of its"
    )
    assert notes(cpu_s=1e3) == []
    assert notes(run_queue_s=1e3) == []


@each_scenario
def test_latencies_of_a_run_that_died_are_marked_as_from_the_journal(scenario: str) -> None:
    died = Reason("died", "the measured process was killed by SIGSEGV in the run")
    found = result(findings(scenario, evidence(scenario, failure=died, ended=None)))
    assert found["verdict"] == "INVALID"
    assert found["reasons"] == [{"code": died.code, "text": died.text}]
    assert found["headline"] is None
    assert found["latency_ns"]["source"] == "interrupted, from the journal"
    assert found["latency_ns"]["p99"] > 0


@each_scenario
def test_latencies_without_a_usable_log_name_the_log_and_no_interruption(scenario: str) -> None:
    """Bug: `check` reported a run with a truncated log as interrupted."""
    run = evidence(scenario)
    cut = replace(run, log=replace(run.log, complete=False))
    found = result(findings(scenario, cut))
    assert found["latency_ns"]["source"] == "log unusable, from the journal"
    assert found["throughput_per_s"]["source"] == "log unusable, from the journal"


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream"])
def test_an_estimate_that_loadgen_did_not_make_is_absent_and_not_zero(scenario: str) -> None:
    """LoadGen writes 0 if there were too few queries for early stopping."""
    run = evidence(scenario)
    key = registry.load("scenario", scenario).early_stopping_key
    values = {**run.log.values, key: 0, "early_stopping_met": False, "result_validity": "INVALID"}
    found = result(findings(scenario, replace(run, log=replace(run.log, values=values))))
    assert found["headline"] is None or found["headline"]["value"] is None
    assert "loadgen-invalid" in [r["code"] for r in found["reasons"]]


@pytest.mark.parametrize(
    ("ended", "issuer"),
    [({**ENDED, "issuer": [0]}, [0]), ({**ENDED, "issuer": []}, None), (ENDED, [3]), (None, [3])],
)
def test_plan_shows_the_actual_cores_of_loadgens_thread(
    ended: Any, issuer: list[int] | None
) -> None:
    """Bug: the plan listed the remaining cores for LoadGen's thread, although with a shared dispatcher this thread runs
    the first instance.

    A run that died did not report its cores, so the planned cores are shown.
    """
    spec = InstanceGroup(1, 1, 8, pinned=((0,),), issuer=(3,))
    found = findings("server", evidence("server", ended=ended))
    found.resolved = replace(found.resolved, instances=spec)
    found.calibration = replace(CALIBRATION, placed=((1, 0),))
    plan = result(found)["plan"]
    assert plan["issuer"] == issuer


@pytest.mark.parametrize(
    ("more", "growth", "reason"),
    [
        ({"rss_run_peak_bytes": 130_000_000, "rss_run_peak_reason": None}, 30_000_000, None),
        ({"rss_run_peak_bytes": None, "rss_run_peak_reason": "refused"}, None, "refused"),
    ],
)
def test_growth_of_memory_is_the_runs_or_absent(
    more: dict[str, Any], growth: int | None, reason: str | None
) -> None:
    ended = {**ENDED, "used": {**ENDED["used"], **more}}
    told = result(findings("server", evidence("server", ended=ended)))["measured_process"]
    assert (told["rss_growth_bytes"], told["rss_growth_reason"]) == (growth, reason)


def test_time_in_the_run_queue_counts_as_busy() -> None:
    """Bug: on a busy machine, an honest backend had a busy share of 0.15, as if it had slept."""
    run = evidence("offline")
    numbers = performance.Performance(run, None)
    process = result(findings("offline", run))["measured_process"]
    assert process["run_queue_s_per_query"] == pytest.approx(0.5 / 500)
    assert process["busy_over_infer"] == pytest.approx(1.5 / numbers.infer_s)
    used = {name: value for name, value in ENDED["used"].items() if name != "run_queue_s"}
    unknown = findings("offline", evidence("offline", ended={**ENDED, "used": used}))
    process = result(unknown)["measured_process"]
    assert (process["run_queue_s_per_query"], process["busy_over_infer"]) == (None, None)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_batches_of_no_samples_are_a_reason_and_no_division_by_zero(scenario: str) -> None:
    """Bug: NumPy warned about a division by zero, and the time in the backend was infinite."""
    run = evidence(scenario)
    assert run.done is not None
    sizes = np.zeros_like(run.done.columns["batch_size"])
    done = replace(run.done, columns={**run.done.columns, "batch_size": sizes})
    content = result(findings(scenario, replace(run, done=done)))
    assert content["queries"]["mean_batch"] == 1.0
    assert "journal-impossible" in {reason["code"] for reason in content["reasons"]}


def test_run_without_evidence_did_not_finish() -> None:
    found = result(findings("server", None))
    assert [r["code"] for r in found["reasons"]] == ["did-not-finish"]
    for name in ("headline", "latency_ns", "throughput_per_s", "stages_ns", "queries"):
        assert found[name] is None


def test_score_below_the_target_is_a_reason_and_a_missing_score_has_one() -> None:
    low = Score(metric="top1", value=10.0, unit="%", samples=500, line="")
    with_score = result(findings("server", evidence("server"), scoring=Scoring(low)))
    assert [r["code"] for r in with_score["reasons"]] == ["accuracy-below-target"]
    assert with_score["accuracy"]["target"] == 98.5
    other = findings("server", evidence("server"), scoring=Scoring(low))
    other.resolved = replace(other.resolved, dataset="my.py:Mine")
    found = result(other)
    assert (found["reasons"], found["accuracy"]["target"]) == ([], None)
    assert "the run used the dataset 'my.py:Mine'" in "".join(
        d["text"] for d in found["doubts"] if d["code"] == "target-not-checked"
    )
    without = result(findings("server", evidence("server")))
    assert without["accuracy"] == {"value": None, "reason": "performance run only"}


@pytest.mark.parametrize(
    ("config", "notes"),
    [
        ({}, ["a quick run, not under the official rules"]),
        ({"backend": "null"}, ["a quick run, not under the official rules", "null backend: the harness's own cost, no model"]),
        ({"mlperf": True}, ["digits is not an MLPerf model: its manifest has no mlperf_model"]),
        ({"mlperf": True, "mlperf_model": "resnet50"}, []),
    ],
)  # fmt: skip
def test_run_that_cannot_be_submitted_lists_its_reasons(
    config: dict[str, Any], notes: list[str]
) -> None:
    found = configured(findings("server", evidence("server")), **config)
    assert result(found)["not_for_submission"] == notes


def test_meter_without_stored_readings_is_not_reported_as_missing() -> None:
    found = findings("server", evidence("server"))
    assert result(found)["power_reason"].startswith("no meter was requested")
    assert result(configured(found, meter=(("rapl", ""),)))["power_reason"] == NOT_STORED


@each_scenario
def test_a_result_saved_again_repeats_no_computation(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: between its steps, a run of a million queries was sorted and simulated four times."""
    found = findings(scenario, evidence(scenario))
    first = result(found)
    monkeypatch.delattr(performance, "latency_intervals")
    monkeypatch.delattr(performance, "steady_state")
    for name in ("stages.summarise", "stages.percentiles", "reference.report"):
        monkeypatch.delattr(f"harness.results.evidence.{name}")
    assert result(found) == first
    found.ceiling_per_s = 1e6  # the ceiling is a number that is known only at the end
    told = result(found)["reference"]
    assert told == first["reference"] or told["null_backend_per_s"] == 1e6
    found.performance = evidence(scenario)
    # Numbers from one run must not be used for another run.
    with pytest.raises((AttributeError, NameError)):
        result(found)


@pytest.mark.parametrize(
    ("changed", "wait_ns"),
    [
        ({}, 0),
        ({"batch_wait_ns": 7}, 7),
        ({"batch_wait_ns": 7, "dispatch": "deadline"}, 7),
        ({"batch_wait_ns": 10**9, "dispatch": "deadline"}, 44 * 10**6),
    ],
)
def test_reference_waits_as_long_as_the_run(
    changed: dict[str, Any], wait_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --dispatch deadline, the wait ends early enough for a batch of 1 ms to end within 0.9 of the SLO of 50 ms."""
    given: list[int] = []

    def note(*_: object, wait_ns: int) -> dict[str, Any]:
        given.append(wait_ns)
        return {"reason": "noted"}

    monkeypatch.setattr("harness.results.evidence.reference.report", note)
    run = evidence("server")
    assert run.ended is not None
    found = findings("server", replace(run, ended={**run.ended, "bare": {}}))
    result(configured(found, **changed))
    assert given == [wait_ns]


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({}, "synthetic data"),
        ({"zero_or_one": ["ids", "mask"]}, "synthetic data, with only 0 and 1 in ids and mask"),
    ],
)
def test_result_names_synthetic_integers(about: dict[str, Any], told: str) -> None:
    loaded = replace(LOADED, synthetic=True, dataset=about)
    found = result(findings("offline", evidence("offline"), loaded=loaded))
    assert told in found["not_for_submission"]


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ([10], "float32", ["but nothing was scored: top1 needs labels, but each answer has 10 float32 scores"]),
        ([3, 7], "int64", ["but nothing was scored: top1 needs one label per answer"]),
        ([], "int64", []),
    ],
)  # fmt: skip
def test_answers_of_a_performance_run_have_the_shape_that_the_metric_takes(
    shape: list[int], dtype: str, told: list[str]
) -> None:
    """Bug: only an accuracy run detected that the target's metric cannot score the answers."""
    run = evidence("server", ended={**ENDED, "answer_shape": shape, "answer_dtype": dtype})
    found = result(findings("server", run, loaded=LOADED))
    texts = [d["text"] for d in found["doubts"] if d["code"] == "target-not-checked"]
    assert len(texts) == len(told)
    assert all(part in text for part, text in zip(told, texts, strict=True))
