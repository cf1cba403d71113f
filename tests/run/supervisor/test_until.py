"""`--until` ends a run of the harness's own scheduler when its verdict or its interval is good enough."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.config.parse import parse_until, until_share
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.plan import Calibration, LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.results.outcome import Finished
from harness.results.recheck import check
from harness.run.journal import Journal
from harness.run.supervisor.completions import completions_so_far
from harness.run.supervisor.job import measure
from harness.run.supervisor.load_plan import UNTIL_TIMES, performance_plan
from harness.run.supervisor.until import GROWTH, Until, decision
from harness.run.supervisor.watchdog import Now
from harness.types import Array
from tests.builders.result import LOADED
from tests.builders.support import journal, plan

MS = 1_000_000
SLEEPS = """\
import os
import time
from harness.backends.null import NullBackend

class Slows(NullBackend):
    "Takes 4 ms per batch, and 12 ms after 300 batches of the run."
    batches = 0

    def infer(self, batch):
        Slows.batches += batch.size == 1
        time.sleep(0.012 if Slows.batches > AFTER else 0.004)
        return super().infer(batch)
"""


def load(queries: int, **changed: Any) -> LoadPlan:
    made = plan("server", target_qps=None, concurrency=1, query_count=queries, least_queries=200)
    return replace(made, **{"until": "steady", **changed})


def answered(view: Journal, latency_ns: Array) -> None:
    """Writes answers to the queries, one after the other."""
    issuer, writer = view.issuer(), view.writer(0)
    at = view.start_ns = 10**18
    for i, spent in enumerate(latency_ns.astype(np.int64).tolist()):
        issuer.issued(1, at)
        at += spent
        writer.batch(i, [i % 20], 0, *([at] * 5))


def now(completed: int) -> Now:
    return Now(completed, completed, 0, None, 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("steady", "steady"), ("2%", "2%"), (" 0.50 %", "0.5%"), ("Steady", "steady")],
)
def test_the_value_is_a_word_or_a_width(text: str, value: str) -> None:
    assert parse_until(text) == value
    assert value == "steady" or 0 < until_share(value) < 0.5


@pytest.mark.parametrize("text", ["", "2", "0%", "90%", "flat", "nan%", "%"])
def test_another_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither 'steady' nor a width"):
        parse_until(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scenario": "server"}, "LoadGen, which fixes the length of a run before its first query"),
        (
            {"scenario": "offline"},
            "LoadGen, which fixes the length of a run before its first query",
        ),
        ({"scenario": "server", "streams": 4}, "would end --streams in the middle"),
        (
            {"scenario": "server", "arrivals": "a.csv", "load_hosts": "2"},
            "--until watches one measured process",
        ),
    ],
)
def test_runs_that_cannot_end_early_refuse_it(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunConfig.of(until="steady", **options)


def test_the_limit_is_a_multiple_of_the_duration() -> None:
    config = RunConfig.of(scenario="server", concurrency=4, until="2%", queries=100)
    calibration = Calibration(slowest_batch_ns=1)
    found = performance_plan(scenario_named("server"), config, None, LOADED, calibration)
    assert (found.least_queries, found.query_count) == (100, 100 * UNTIL_TIMES)
    assert found.journal_samples == found.query_count
    assert found.until == "2%"


def test_an_even_run_is_ended_at_the_second_check() -> None:
    view = journal(1000, 1)
    answered(view, np.full(1000, MS))
    until = Until(view, load(1000))
    until.check(now(150))
    assert not view.ends, "before the fewest queries"
    until.check(now(1000))
    assert not view.ends, "one check decides nothing"
    until.check(now(1001))
    assert not view.ends, "the run must have grown"
    until.check(now(int(1000 * GROWTH) + 1))
    assert view.ends


def test_a_noisy_run_goes_on() -> None:
    rng = np.random.default_rng(1)
    view = journal(300, 1)
    answered(view, MS * rng.lognormal(sigma=1.0, size=300))
    until = Until(view, load(1000))
    for completed in (300, 400, 600):
        until.check(now(completed))
    assert not view.ends


def test_a_width_is_reached_with_more_queries() -> None:
    rng = np.random.default_rng(2)
    noisy = MS * rng.lognormal(sigma=0.3, size=20_000)
    few, many = journal(20_000, 1), journal(20_000, 1)
    answered(few, noisy[:300])
    answered(many, noisy)
    made = load(20_000, until="1%")
    assert decision(completions_so_far(few, made), made) == ""
    assert decision(completions_so_far(many, made), made) == "precise"


def ended(folder: Path, until: str, after: int) -> Finished:
    """Returns a run of at least 600 queries whose backend slows down after `after` queries."""
    path = folder / "sleeps.py"
    path.write_text(SLEEPS.replace("AFTER", str(after)))
    config = RunConfig.of(
        scenario="server",
        backend=f"{path}:Slows",
        concurrency=1,
        until=until,
        queries=600,
        mode="performance",
        slo="p99=1s",
        out=str(folder / "run"),
    )
    return measure(config)


@pytest.mark.slow
def test_a_run_that_slows_down_ends_as_not_steady(tmp_path: Path) -> None:
    finished = ended(tmp_path, "steady", after=500)
    result = finished.result
    assert result["verdict"] == "VALID", result["reasons"]
    assert result["steady"]["verdict"] == "not steady"
    assert "drift" in [doubt["code"] for doubt in result["doubts"]]
    assert result["steady"]["change"]["size"] > 0.5
    queries = result["queries"]
    assert 600 <= queries["planned"] == queries["samples_answered"] < UNTIL_TIMES * 600
    assert result["arrivals"]["until"] == "steady"
    assert check(finished.folder) == []


@pytest.mark.slow
def test_a_run_ends_once_its_rate_is_known(tmp_path: Path) -> None:
    finished = ended(tmp_path, "40%", after=10**9)
    result = finished.result
    assert result["verdict"] == "VALID", result["reasons"]
    assert 600 <= result["queries"]["planned"] < UNTIL_TIMES * 600
    assert result["steady"]["series"]["rate"]["half_width"] < 0.5
    assert check(finished.folder) == []
