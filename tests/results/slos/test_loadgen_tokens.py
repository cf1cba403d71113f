"""LoadGen's token counts are compared with the journal's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen.logs import DetailLog
from harness.results.evidence.stages import Completions
from harness.results.tokens.loadgen import contradictions, told
from harness.types import Array
from tests.builders.support import plan, present

COUNT, TOKENS = 600, 5
PERCENTS = {"50.00": 0.5, "90.00": 0.9, "99.00": 0.99}
TTFT, TPOT = (
    "result_first_token_{}_percentile_latency_ns",
    "result_time_per_output_token_{}_percentile_ns",
)


def columns() -> dict[str, Array]:
    scheduled_ns = np.arange(COUNT) * 10 * NS_PER_MS
    first_ns = scheduled_ns + (20 + np.arange(COUNT) % 7) * NS_PER_MS
    return {
        "order": np.arange(COUNT),
        "failed": np.zeros(COUNT, np.uint16),
        "scheduled_ns": scheduled_ns,
        "entry_ns": scheduled_ns,
        "first_token_ns": first_ns,
        "tokens": np.full(COUNT, TOKENS, np.int32),
        "completed_ns": first_ns + (40 + np.arange(COUNT) % 5) * NS_PER_MS,
    }


def log(told_ns: int = NS_PER_MS // 2) -> DetailLog:
    """Returns LoadGen's log. told_ns: time from the arrival of a first token until LoadGen is notified of it."""
    known = columns()
    first_ns = np.sort(known["first_token_ns"] + told_ns - known["scheduled_ns"])
    each_ns = np.sort((known["completed_ns"] - known["first_token_ns"] - told_ns) // (TOKENS - 1))
    took_ns = int(known["completed_ns"][-1])
    values: dict[str, Any] = {
        "result_completed_tokens_per_second": COUNT * TOKENS * NS_PER_S / took_ns
    }
    for text, share in PERCENTS.items():
        values[TTFT.format(text)] = percentile_ns(first_ns, share)
        values[TPOT.format(text)] = percentile_ns(each_ns, share)
    return DetailLog(values=values)


def found(changed: DetailLog, **more: Array) -> list[str]:
    return [*contradictions(changed, Completions({**columns(), **more}, COUNT, True))]


def test_an_honest_log_agrees() -> None:
    assert found(log()) == []
    assert found(log(told_ns=0)) == []


def test_few_completions_stamped_late_are_not_a_contradiction() -> None:
    """Bug: an honest run was INVALID if a thread was preempted between the journal's time stamp and LoadGen's."""
    stamped = columns()["first_token_ns"] + (40 + np.arange(COUNT)) * NS_PER_MS
    each_ns = (stamped - columns()["first_token_ns"]) // (TOKENS - 1)
    told_late = log(told_ns=0)
    for text, share in PERCENTS.items():
        told_late.values[TPOT.format(text)] = percentile_ns(each_ns, share)
    stamped[-6:] = columns()["first_token_ns"][-6:] + NS_PER_MS
    assert found(told_late, completed_ns=stamped) == []
    stamped[-60:] = columns()["first_token_ns"][-60:] + NS_PER_MS
    assert len(found(told_late, completed_ns=stamped)) == 3


CHANGES: list[tuple[str, Callable[[float], float], str]] = [
    (TTFT.format("50.00"), lambda v: v - 5 * NS_PER_MS, "cannot know a first token before it arrives"),
    (TPOT.format("99.00"), lambda v: v * 2, "cannot take longer than the time since the first token"),
    (TPOT.format("50.00"), lambda v: v * 4, "is above result_time_per_output_token_90.00"),
    ("result_completed_tokens_per_second", lambda v: v * 1.5, "the journal's rate"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "change", "text"), CHANGES)
def test_each_number_has_a_witness(key: str, change: Callable[[float], float], text: str) -> None:
    changed = log()
    changed.values[key] = change(changed.values[key])
    assert any(text in line for line in found(changed))


def test_log_with_an_answer_of_one_token_is_not_compared() -> None:
    changed = log()
    changed.values[TTFT.format("50.00")] = 0
    tokens = columns()["tokens"]
    tokens[3] = 1
    assert found(changed, tokens=tokens) == []


def test_section_has_loadgens_numbers_if_they_are_right() -> None:
    counted = plan("server", token_latencies=True)
    made = present(told(log(), counted, 0, 0))
    assert made["tpot_ns"] is not None
    assert made["tpot_ns"]["p90"] == log().values[TPOT.format("90.00")]
    alone = present(told(log(), counted, 1, 0))
    assert (alone["tpot_ns"], alone["tokens_per_s"]) == (None, None)
    assert alone["ttft_ns"] is not None
    assert told(log(), plan("server"), 0, 0) is None


BOUNDS = {
    "requested_server_ttft_latency": 2000 * NS_PER_MS,
    "requested_server_tpot_latency": 200 * NS_PER_MS,
}


@pytest.mark.parametrize(
    ("scenario", "changed", "percentile"),
    [
        ("server", {"model_key": "llama2-70b", "percentile": 0.99}, "p99"),
        ("server", {"model_key": "llama2-70b", "percentile": 0.999}, None),
        ("server", {"percentile": 0.99}, None),
        ("single-stream", {"model_key": "llama3_1-8b-edge", "percentile": 0.9}, None),
    ],
)
def test_the_bounds_equal_loadgens_bounds_of_an_official_run(
    scenario: str, changed: dict[str, Any], percentile: str | None
) -> None:
    logged = log()
    logged.values |= BOUNDS
    made = present(told(logged, plan(scenario, token_latencies=True, **changed), 0, 0))
    assert made["bounds"] == (
        percentile
        and {"percentile": percentile, "ttft_ns": 2000 * NS_PER_MS, "tpot_ns": 200 * NS_PER_MS}
    )
