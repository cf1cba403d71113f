"""The rules of a language task, which is judged by its tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.loadgen.logs import DetailLog
from harness.submit.rules import run as run_rules
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.tree.submission import RunLog


@pytest.mark.parametrize(("benchmark", "found"), [("llama2-70b-99.9", 0), ("resnet", 1)])
def test_a_task_of_tokens_has_no_bound_of_the_latency(benchmark: str, found: int) -> None:
    """Bug: real submissions of llama2-70b log an `effective_target_latency_ns` of 0."""
    logged = {"effective_scenario": "Server", "effective_target_latency_ns": 0}
    run = RunLog("run_1", DetailLog(values=logged), {})
    result: Any = SimpleNamespace(scenario="Server")
    rules = load_round().benchmarks[benchmark]
    assert len([*run_rules._latency(result, run, "detail", rules)]) == found
