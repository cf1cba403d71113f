"""The log that the harness writes itself agrees with LoadGen's log about the same queries."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen.plan import LoadPlan
from harness.machine.power.energy import window_ns
from harness.results.evidence.own_log import HARNESS, detail_log, early_stopping_text
from harness.results.evidence.stages import Completions
from harness.types import Array
from tests.builders.loadgen_trace import trace
from tests.builders.result import configured, findings, result
from tests.builders.support import early_stopping_table, evidence, golden_completions, plan

NOT_OURS = ("power_begin", "power_end", "result_invalid_reason")
"""Keys that our log omits: the times of the machine's clock, and the advice, which harness/results/verdict/reasons.py
gives instead.
"""

STRANGERS = ("effective_test_mode", "effective_scenario")


def completions(scheduled_ns: Array, latency_ns: Array) -> Completions:
    count = len(scheduled_ns)
    columns = {
        "order": np.arange(count),
        "scheduled_ns": scheduled_ns,
        "completed_ns": scheduled_ns + latency_ns,
    }
    return Completions(columns, count, answered_once=True)


def of(queries: int, **more: Any) -> LoadPlan:
    given = {"query_count": queries, "target_qps": None, "schedule": "x", **more}
    return plan("server", **{"latency_bound_ns": 20 * NS_PER_MS, "percentile": 0.99, **given})


def _rounded(value: object) -> object:
    """Rounds to six digits, as LoadGen writes rates."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("queries", "late"), [(2000, 0), (2010, 10), (2010, 11), (700, 2), (458, 0), (500, 50)]
)
def test_every_value_is_loadgens_for_the_same_latencies(
    queries: int, late: int, tmp_path: Path
) -> None:
    traced = trace(tmp_path, queries, late=late, qps=5000)
    ours = detail_log(of(queries), completions(traced.scheduled_ns, traced.latency_ns), "Server")
    compared = [
        k for k in traced.log.values if k.startswith(("result_", "early_")) if k not in NOT_OURS
    ]
    assert len(compared) > 15
    assert {k: _rounded(ours.get(k)) for k in compared} == {k: traced.log.get(k) for k in compared}
    assert traced.log.get("result_overlatency_query_count") >= late
    settings = ("latency_ns", "latency_percentile")
    for key in (*STRANGERS, *(f"effective_target_{name}" for name in settings)):
        assert ours.get(key) == traced.log.get(key)


@pytest.mark.parametrize(
    "said",
    [said for said in early_stopping_table() if said["scenario"] == "Server"],
    ids=lambda said: f"{said['queries']}-{said['late']}",
)
def test_early_stopping_text_equals_that_of_loadgen(said: dict[str, Any]) -> None:
    assert early_stopping_text(said["late"], said["queries"], 0.99) == said["text"]


def test_golden_latencies_of_the_journal_are_near_loadgens() -> None:
    run = evidence("server")
    ours = detail_log(run.plan, golden_completions("server"), "Server")
    for key, value in run.log.values.items():
        if key.startswith("result_") and key.endswith("_latency_ns"):
            assert ours.get(key) == pytest.approx(value, rel=0.05), key


def test_run_without_answers_has_an_empty_log() -> None:
    empty = completions(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for done in (None, empty):
        log = detail_log(of(1), done, "Server")
        assert (log.values, log.complete, log.source) == ({}, False, HARNESS)


def test_the_window_for_meters_is_from_the_first_query_to_the_last_answer() -> None:
    start_ns = 1_795_253_000 * NS_PER_S
    done = completions(start_ns + np.array([0, 10**9]), np.array([5 * 10**9, 10**6]))
    window = window_ns(detail_log(of(2), done, "Server").values)
    assert window == (start_ns, start_ns + 5 * 10**9)


def judged(latency_ns: Array, due_ns: Array | None = None, **more: Any) -> Any:
    """Returns result.json of a replayed run with these latencies; by default, one query is due per millisecond."""
    scheduled_ns = 10**18 + (np.arange(len(latency_ns)) * NS_PER_MS if due_ns is None else due_ns)
    golden = golden_completions("server").columns
    columns = {name: np.resize(golden[name], len(latency_ns)) for name in golden}
    columns |= completions(scheduled_ns, latency_ns).columns
    for name in ("entry_ns", "taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns"):
        columns[name] = scheduled_ns
    each = np.arange(len(latency_ns))  # each query is a separate batch on a separate worker
    columns |= {"batch": each, "worker": each, "batch_size": np.ones_like(each)}
    done = Completions(columns, len(latency_ns), answered_once=True)
    made = of(len(latency_ns), **more)
    log = detail_log(made, done, "Server")
    found = findings("server", replace(evidence("server"), plan=made, log=log, done=done))
    arrivals = Path("x.csv") if made.schedule else None
    return result(configured(found, arrivals=arrivals, concurrency=made.concurrency))


def test_own_log_is_judged_like_loadgens_and_names_its_source() -> None:
    content = judged(np.full(3000, NS_PER_MS), arrivals_sha256="abc")
    assert (content["verdict"], content["reasons"]) == ("VALID", [])
    assert content["headline"]["source"] == f"{HARNESS} result_completed_samples_per_sec"
    assert content["latency_ns"]["source"] == content["throughput_per_s"]["source"] == HARNESS
    assert content["latency_ns"]["p99.9"] == NS_PER_MS
    assert content["queries"]["counted_by_loadgen"] is None
    assert content["arrivals"] == {"source": HARNESS, "schedule_sha256": "abc", "concurrency": None}
    assert any("no MLPerf scenario" in note for note in content["not_for_submission"])
    assert result(findings("server", evidence("server")))["arrivals"]["source"] == "LoadGen"


def test_too_many_late_queries_are_counted() -> None:
    latency_ns = np.where(np.arange(3000) % 50 == 0, 30 * NS_PER_MS, NS_PER_MS)
    (reason,) = judged(latency_ns)["reasons"]
    assert reason["code"] == "slo-missed"
    assert reason["text"].endswith(", but p99 allows at most 29")


def test_too_few_queries_are_invalid_although_none_was_late() -> None:
    assert [r["code"] for r in judged(np.full(100, NS_PER_MS))["reasons"]] == ["early-stopping"]


def test_latency_that_follows_a_changing_load_is_not_a_drift() -> None:
    latency_ns = np.linspace(NS_PER_MS, 5 * NS_PER_MS, 3000).astype(np.int64)
    ramp_ns = np.cumsum(np.linspace(2, 1, 3000) * NS_PER_MS).astype(np.int64)
    drifted = [
        "drift" in [d["code"] for d in judged(latency_ns, **given)["doubts"]]
        for given in ({}, {"due_ns": ramp_ns}, {"schedule": None, "concurrency": 1})
    ]
    assert drifted == [True, False, True]
