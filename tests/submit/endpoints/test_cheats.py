"""The witness finds runs whose files were edited together so that result, snapshot and events agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.submit.endpoints.runs import RUN, Attempt
from harness.submit.endpoints.witness.doubts import REFUSED
from harness.submit.endpoints.witness.known import Known
from harness.submit.endpoints.witness.records import CONFIG, SNAPSHOT
from harness.submit.endpoints.witness.report import witness
from tests.builders.submit.endpoints import put_json
from tests.builders.submit.endpoints_events import (
    CONCURRENCY,
    INDEX,
    SCORED,
    SEED,
    SIZE,
    STEP_NS,
    Event,
    event,
    made_attempt,
    right,
)

KNOWN = Known(
    {"scheduler_rng_seed": 5, "sample_index_rng_seed": SEED, "model_seed": 3},
    [f"sample {number}" for number in range(SIZE)],
    {SCORED: [f"{right(number)} answer" for number in range(SIZE)]},
)
Cheat = Callable[[Attempt], None]


def codes(work: Path, attempt: Attempt, known: Known = KNOWN) -> set[str]:
    found = witness(work, attempt, CONCURRENCY, SIZE, "", known)
    return {one.code for one in found.doubts}


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    put_json(path, content)


def again(change: Callable[[list[Event]], None]) -> Cheat:
    """Writes the run again from edited events."""

    def cheat(attempt: Attempt) -> None:
        made_attempt(attempt.folder, change)

    return cheat


def of_run(**changes: Any) -> Cheat:
    return lambda attempt: edited(attempt.folder / RUN, lambda run: run.update(changes))


def tracked(events: list[Event]) -> list[Event]:
    return [one for one in events if one["sample_uuid"].startswith("u")]


def number(one: Event) -> int:
    return int(one["sample_uuid"][1:])


def later(events: list[Event]) -> None:
    for one in events:
        if one["timestamp_ns"] > 100 * STEP_NS:
            one["timestamp_ns"] += 5_000 * STEP_NS


def second_session(events: list[Event]) -> None:
    events.insert(2, event("session.started", 11))
    events.insert(3, event("session.start_performance_tracking", 12))


def completed_again(events: list[Event]) -> None:
    ends = [one for one in tracked(events) if one["event_type"] == "sample.complete"]
    events.insert(events.index(ends[9]), dict(ends[9]))


def copied_pass(events: list[Event]) -> None:
    """Gives the requests of the second pass the times of the first pass."""
    at = {(one["sample_uuid"], one["event_type"]): one for one in tracked(events)}
    for uuid in range(SIZE, 2 * SIZE):
        source, to = f"u{uuid - SIZE}", f"u{uuid}"
        shift = (
            at[to, "sample.issued"]["timestamp_ns"] - at[source, "sample.issued"]["timestamp_ns"]
        )
        for kind in ("sample.recv_first", "sample.complete"):
            at[to, kind]["timestamp_ns"] = at[source, kind]["timestamp_ns"] + shift


def easy_prompts(events: list[Event]) -> None:
    for one in tracked(events):
        if one["event_type"] == "sample.issued":
            one["data"] = ["PromptData", "sample 0"]


def early_answer(events: list[Event]) -> None:
    for one in tracked(events):
        if one["event_type"] == "sample.recv_first":
            one["timestamp_ns"] -= 5 * STEP_NS


def other_seed(attempt: Attempt) -> None:
    """Edits the seed in every record, but leaves the order of the samples unchanged."""

    def change(content: dict[str, Any]) -> None:
        content["settings"]["runtime"]["scheduler_random_seed"] = 42

    edited(attempt.report / CONFIG, change)
    edited(attempt.folder / RUN, lambda run: change(run["asked"]))


def hotter(attempt: Attempt) -> None:
    edited(attempt.report / CONFIG, lambda c: c["model_params"].update(temperature=0.7))


def other_snapshot(attempt: Attempt) -> None:
    edited(attempt.report / SNAPSHOT, lambda c: c["metrics"][3].update(value=1))


def no_snapshot(attempt: Attempt) -> None:
    (attempt.report / SNAPSHOT).unlink()


def entry(**changes: Any) -> Cheat:
    def change(attempt: Attempt) -> None:
        edited(attempt.accuracy, lambda c: c["accuracy_scores"][0].update(changes))

    return change


def fewer_answers(attempt: Attempt) -> None:
    edited(attempt.report / INDEX, lambda c: c[SCORED].pop("a3"))


def served(seconds: float, count: int) -> dict[str, Any]:
    """Returns two readings of a server; between them, `count` first tokens took `seconds` in all."""
    name = "vllm:time_to_first_token_seconds"
    first = {f"{name}_sum": 1.0, f"{name}_count": 10.0}
    last = {f"{name}_sum": 1.0 + seconds, f"{name}_count": 10.0 + count}
    return {"first": first, "last": last}


CHEATS: dict[str, tuple[Cheat, str]] = {
    "times of half the run": (of_run(server={"active_s": 400.0}), "clock"),
    "events after the run": (of_run(monotonic_ns=[0, 5]), "clock"),
    "answers before their requests": (again(early_answer), "clock"),
    "a hole of requests that were removed": (again(later), "clock"),
    "the better part of two sessions": (again(second_session), "several-sessions"),
    "an answer twice": (again(completed_again), "requests-repeated"),
    "a pass from another pass": (again(copied_pass), "times-repeated"),
    "only the easiest prompt": (again(easy_prompts), "prompts-differ"),
    "another seed in every record": (other_seed, "seeds-differ"),
    "another temperature": (hotter, "config-differs"),
    "another duration in the snapshot": (other_snapshot, "snapshot-differs"),
    "no snapshot": (no_snapshot, "snapshot-differs"),
    "the score of another run": (entry(score=0.9), "accuracy-differs"),
    "more scored answers than requests": (fewer_answers, "accuracy-differs"),
    "an earlier first token than the server's": (of_run(server=served(2.0, 100)), "faster-than-server"),
}  # fmt: skip


def test_an_honest_run_has_no_doubt(attempt: Attempt, tmp_path: Path) -> None:
    assert codes(tmp_path, attempt) == set()
    edited(attempt.folder / RUN, lambda run: run.update(server=served(0.3, 100)))
    assert codes(tmp_path, attempt) == set()


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_has_its_doubt_and_is_not_packed(
    name: str, attempt: Attempt, tmp_path: Path
) -> None:
    cheat, code = CHEATS[name]
    cheat(attempt)
    assert code in codes(tmp_path, attempt)
    assert code in REFUSED


def test_prompts_need_no_data_set_to_differ(attempt: Attempt, tmp_path: Path) -> None:
    def every_other_pass(events: list[Event]) -> None:
        for one in tracked(events):
            if one["event_type"] == "sample.issued" and number(one) >= 2 * SIZE:
                one["data"] = ["PromptData", "sample 0"]

    again(every_other_pass)(attempt)
    assert codes(tmp_path, attempt, Known()) == {"prompts-differ"}


def test_events_of_another_point_are_found(attempt: Attempt, tmp_path: Path) -> None:
    other = made_attempt(tmp_path / "runs/r8/attempt-1")
    assert codes(tmp_path, attempt) == set()
    assert codes(tmp_path, other) == {"events-copied"}


def test_answers_above_the_limit_are_found(attempt: Attempt, tmp_path: Path) -> None:
    from harness.submit.endpoints.witness import session
    from harness.submit.endpoints.witness.events import read_events

    events = read_events(attempt.events, lambda parts: [len(str(part).split()) for part in parts])
    assert list(session.lengths(events, 6)) == []
    assert [one.code for one in session.lengths(events, 3)] == ["answers-too-long"]
