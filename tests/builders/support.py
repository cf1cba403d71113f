"""Helpers for several test files: LoadGen's golden logs, and evidence made from them."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from harness.core.clock import ClockWatch
from harness.core.units import NS_PER_MS
from harness.loadgen.answers import Answers
from harness.loadgen.logs import DETAIL, DetailLog, read_detail
from harness.loadgen.plan import LoadPlan
from harness.loadgen.versions import PINNED_VERSION, ROUNDS
from harness.models.steps.postprocess import Postprocess, not_finite
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.run.journal import Journal
from harness.run.supervisor.completions import read_completions

T = TypeVar("T")

GOLDEN = Path(__file__).parents[1] / "golden"
SCENARIOS = {
    "single-stream": "SingleStream",
    "multi-stream": "MultiStream",
    "server": "Server",
    "offline": "Offline",
}
SAMPLES = 20
"""Number of samples in the golden runs' dataset (tests/golden/tiny.py)."""

UNCHANGED = Postprocess(lambda outputs, _: cast("Answers", outputs), not_finite)
"""Passes a model's outputs on as its answers."""

ENDED: Mapping[str, Any] = {
    "used": {
        "cpu_s": 1.0,
        "wall_s": 2.0,
        "wall_offset_ns": 0,
        "voluntary_switches": 1,
        "involuntary_switches": 1,
        "run_queue_s": 0.5,
        "rss_before_bytes": 10**8,
        "rss_peak_bytes": 2 * 10**8,
        "rss_run_peak_bytes": 2 * 10**8,
        "rss_run_peak_reason": None,
        "cyclic_garbage_objects": 0,
    },
    "failed_samples": 0,
    "first_failure": "",
    "close_error": "",
    "client": None,
    "files": {},
}


def plan(scenario: str, **changed: Any) -> LoadPlan:
    """Returns the plan of the golden performance run of `scenario`, with some changes."""
    queries = {"multi-stream": 662, "offline": 500}.get(scenario, 700)
    samples = 8 if scenario == "multi-stream" else 1
    server = scenario == "server"
    made = LoadPlan(
        scenario=scenario,
        accuracy=False,
        query_count=queries,
        journal_samples=queries * samples,
        total_count=SAMPLES,
        performance_count=SAMPLES,
        seeds=ROUNDS[PINNED_VERSION].seeds,
        samples_per_query=samples,
        target_qps=2000.0 if server else None,
        percentile=0.99 if server else None,
        latency_bound_ns=50 * NS_PER_MS if server else None,
    )
    return dataclasses.replace(made, **changed)


def journal(capacity: int, workers: int) -> Journal:
    """Returns an empty journal that need not be closed."""
    fd = Journal.create()
    try:
        Journal.resize(fd, capacity, workers)
        return Journal(fd)
    finally:
        os.close(fd)


def golden_log(scenario: str, run: str = "performance") -> DetailLog:
    return read_detail(GOLDEN / scenario / run / DETAIL)


def golden_columns(scenario: str) -> dict[str, Any]:
    """Returns completions.npz of the golden run."""
    with np.load(GOLDEN / scenario / "performance/completions.npz") as file:
        return dict(file)


def golden_journal(scenario: str) -> Journal:
    """Fills a journal with the golden run, batch by batch."""
    columns = golden_columns(scenario)
    count, workers = len(columns["order"]), int(columns["worker"].max()) + 1
    made = journal(count, workers)
    issuer = made.issuer()
    for entry_ns in columns["entry_ns"].tolist():
        issuer.issued(1, entry_ns)
    writers = [made.writer(w) for w in range(workers)]
    for batch in range(int(columns["batch"].max()) + 1):
        (rows,) = np.nonzero(columns["batch"] == batch)
        names = ("taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns", "completed_ns")
        stamps = [int(columns[name][rows[0]]) for name in names]
        indices = columns["index"][rows].tolist()
        writers[columns["worker"][rows[0]]].batch(int(rows[0]), indices, 0, *stamps)
    return made


def golden_completions(scenario: str) -> Completions:
    shortest_ns = golden_log(scenario).get("result_min_latency_ns")
    return read_completions(golden_journal(scenario), plan(scenario), shortest_ns)


def evidence(scenario: str, **changed: Any) -> Evidence:
    """Returns the golden performance run as the supervisor saw it, with some changes."""
    made = Evidence(
        plan=plan(scenario),
        loadgen_scenario=SCENARIOS[scenario],
        log=golden_log(scenario),
        done=golden_completions(scenario),
        ended=ENDED,
        failure=None,
        clock=ClockWatch(),
    )
    return dataclasses.replace(made, **changed)


def early_stopping_table() -> list[dict[str, Any]]:
    """Returns LoadGen's verdicts on runs of known length with a known number of late queries."""
    table: list[dict[str, Any]] = json.loads((GOLDEN / "early_stopping.json").read_text())
    return table


def present(value: T | None) -> T:
    """Returns the value, which is never None although its declared type allows None."""
    assert value is not None
    return value
