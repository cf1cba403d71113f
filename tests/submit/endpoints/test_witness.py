"""The witness recomputes the client's numbers from events, and finds events that contradict them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.submit.endpoints import runs
from harness.submit.endpoints.witness import doubts
from harness.submit.endpoints.witness.answers import Part, read_answer
from harness.submit.endpoints.witness.events import Events, Sample, read_events
from harness.submit.endpoints.witness.numbers import compare
from harness.submit.endpoints.witness.report import (
    kept_witness,
    own_verdict,
    steady_block,
    witness,
)
from tests.builders.submit.endpoints import put_json
from tests.builders.submit.endpoints_events import (
    CONCURRENCY,
    PASSES,
    SEED,
    SIZE,
    STEP_NS,
    Event,
    event,
    made_events,
    summary,
    written,
)


def words(parts: Sequence[Part]) -> list[int]:
    """Counts words, as a tokenizer would count tokens."""
    return [len(str(part).split()) for part in parts]


def tokenizer(folder: Path) -> str:
    """Writes a tokenizer whose tokens are words; skips the test if the package is missing."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def codes(found: Iterator[doubts.Doubt]) -> list[str]:
    return [one.code for one in found]


def test_every_number_is_recomputed_from_the_events(attempt: runs.Attempt, tmp_path: Path) -> None:
    found = witness(tmp_path, attempt, CONCURRENCY, SIZE, tokenizer(tmp_path / "tokenizer"))
    assert [row.name for row in found.rows if not row.agrees and row.published is not None] == []
    assert len(found.rows) > 30
    assert found.doubts == []
    assert found.tokens_absent == ""
    assert kept_witness(attempt)["metrics"] == found.metrics


def test_without_a_tokenizer_the_reason_is_kept(attempt: runs.Attempt, tmp_path: Path) -> None:
    found = witness(tmp_path, attempt, CONCURRENCY, SIZE, "")
    assert not found.passed
    assert found.disagreements == []
    assert found.tokens_absent == "no --tokenizer was given"
    assert next(row for row in found.rows if row.name == "tpot.total").recomputed is None


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("duration_ns", 5, "duration_ns"),
        ("n_samples_failed", 3, "n_samples_failed"),
        ("ttft", {"percentiles": {"90": 1.0}}, "ttft.p90"),
        ("latency", {"total": 1}, "latency.total"),
        ("output_sequence_lengths", {"total": 7200}, "output_sequence_lengths.total"),
        ("tps", 1e6, "tps"),
    ],
)
def test_a_changed_number_differs_from_the_events(
    key: str, value: Any, name: str, tmp_path: Path
) -> None:
    events = read_events(written(tmp_path, made_events()), words)
    changed = {**summary(), key: value}
    rows = {row.name: row for row in compare(events, changed)}
    assert not rows[name].agrees
    assert all(row.agrees for row in compare(events, summary()) if row.published is not None)


def test_a_witness_of_another_result_is_refused(attempt: runs.Attempt, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `endpoints witness` first"):
        kept_witness(attempt)
    witness(tmp_path, attempt, CONCURRENCY, SIZE, "")
    put_json(attempt.summary, {**summary(), "duration_ns": 1})
    with pytest.raises(ConfigError, match="belongs to another result"):
        kept_witness(attempt)


@pytest.mark.parametrize("asked", ["x", {"settings": []}, {"settings": {"load_pattern": "x"}}])
def test_a_run_without_a_readable_configuration_is_witnessed(
    asked: object, attempt: runs.Attempt, tmp_path: Path
) -> None:
    put_json(attempt.folder / runs.RUN, {"status": 0, "asked": asked})
    assert witness(tmp_path, attempt, CONCURRENCY, SIZE, "").rows


@pytest.mark.parametrize(
    ("code", "passed"), [("client-slow", True), ("order-differs", False), ("clock", False)]
)
def test_a_doubt_for_which_pack_refuses_a_run_fails_the_witness(
    code: str, passed: bool, attempt: runs.Attempt, tmp_path: Path
) -> None:
    found = witness(tmp_path, attempt, CONCURRENCY, SIZE, "")
    doubt = doubts.Doubt(code, "text")
    assert replace(found, rows=[], doubts=[doubt]).passed == passed


def test_another_order_than_the_seeds_is_a_doubt(attempt: runs.Attempt) -> None:
    path = attempt.report / "sample_idx_map.json"
    assert codes(doubts.order(path, SEED, SIZE)) == []
    assert codes(doubts.order(path, SEED + 1, SIZE)) == ["order-differs"]
    path.unlink()
    assert codes(doubts.order(path, SEED, SIZE)) == ["order-unknown"]


def test_a_map_of_other_requests_is_a_doubt(attempt: runs.Attempt) -> None:
    events = read_events(attempt.events, words)
    path = attempt.report / "sample_idx_map.json"
    assert codes(doubts.events_and_map(events, path, is_agentic=False)) == []
    put_json(path, {"performance": {f"v{n}": n for n in range(3)}})
    assert codes(doubts.events_and_map(events, path, is_agentic=False)) == ["map-differs"]


def test_a_map_of_an_agentic_run_continues_after_its_tracking(attempt: runs.Attempt) -> None:
    events = read_events(attempt.events, words)
    path = attempt.report / "sample_idx_map.json"
    assert events.stop_ns is not None
    events.others = [
        Sample(uuid, events.stop_ns + n, is_tracked=False)
        for n, uuid in enumerate(("late-1", "late-2", "scored"))
    ]
    named = [s.uuid for s in events.samples]
    for further, found in (
        ([], []),
        (["late-1", "late-2"], []),
        (["late-2"], ["map-differs"]),
        (["unknown"], ["map-differs"]),
    ):
        put_json(path, {"performance": dict.fromkeys([*named, *further], 0)})
        assert codes(doubts.events_and_map(events, path, is_agentic=True)) == found
    put_json(path, {"performance": dict.fromkeys([*named, "late-1"], 0)})
    assert codes(doubts.events_and_map(events, path, is_agentic=False)) == ["map-differs"]


def changed(change: Callable[[list[Event]], None], tmp_path: Path) -> Events:
    events = made_events()
    change(events)
    return read_events(written(tmp_path, events), words)


def test_fewer_queries_in_flight_are_a_doubt(tmp_path: Path) -> None:
    events = read_events(written(tmp_path, made_events()), words)
    assert codes(doubts.in_flight(events, CONCURRENCY)) == []
    assert codes(doubts.in_flight(events, 2 * CONCURRENCY)) == ["below-concurrency"]
    assert codes(doubts.in_flight(events, CONCURRENCY - 1)) == ["above-concurrency"]


def test_a_slow_client_is_a_doubt(tmp_path: Path) -> None:
    def delay(events: list[Event]) -> None:
        for one in events:
            if one["event_type"] == "sample.complete":
                one["timestamp_ns"] -= 2 * STEP_NS

    assert codes(doubts.lag(changed(lambda _: None, tmp_path), CONCURRENCY)) == []
    assert codes(doubts.lag(changed(delay, tmp_path), CONCURRENCY)) == ["client-slow"]


def test_negative_tpot_is_counted(tmp_path: Path) -> None:
    def late(events: list[Event]) -> None:
        for one in [e for e in events if e["event_type"] == "sample.recv_first"][:9]:
            one["timestamp_ns"] += 8 * STEP_NS

    found = list(doubts.negative_tpot(changed(late, tmp_path)))
    assert [one.code for one in found] == ["tpot-negative"]
    assert found[0].text.startswith("9 of 120 samples")


def test_tpot_by_the_last_chunk_is_shown_beside(tmp_path: Path) -> None:
    def chunks(events: list[Event]) -> None:
        events += [
            event("sample.recv_non_first", e["timestamp_ns"] + 3 * STEP_NS, e["sample_uuid"])
            for e in events
            if e["event_type"] == "sample.recv_first"
        ]
        events.sort(key=lambda one: one["timestamp_ns"])

    assert codes(doubts.negative_tpot(changed(chunks, tmp_path))) == ["tpot-by-chunk"]


@pytest.mark.parametrize(("tokens", "found"), [(720, []), (840, []), (1500, ["tokens-differ"]), (100, ["tokens-differ"])])  # fmt: skip
def test_tokens_are_compared_with_the_servers(
    tokens: int, found: list[str], tmp_path: Path
) -> None:
    events = read_events(written(tmp_path, made_events()), words)
    server = {"first": {"generated_tokens": 1000.0}, "last": {"generated_tokens": 1000.0 + tokens}}
    assert codes(doubts.server_tokens(events, server)) == found


def test_failed_and_lost_requests_are_doubts(tmp_path: Path) -> None:
    def break_two(events: list[Event]) -> None:
        ends = [e for e in events if e["event_type"] == "sample.complete"]
        events.remove(ends[3])
        index = events.index(ends[5])
        events.insert(
            index,
            event(
                "error.client", ends[5]["timestamp_ns"], ends[5]["sample_uuid"], ["ErrorData", "x"]
            ),
        )

    assert codes(doubts.errors(changed(break_two, tmp_path))) == [
        "failed-requests",
        "lost-requests",
    ]


def test_requests_before_the_tracking_are_the_warm_up(tmp_path: Path) -> None:
    early = [
        event("session.started", 0),
        event("sample.issued", 1, "w1"),
        event("sample.issued", 2, "w2"),
        event("sample.complete", 3, "w1", ["TextModelOutput", "one two"]),
    ]
    events = read_events(written(tmp_path, [*early, *made_events()[1:]]), words)
    assert (events.warm_up_issued, events.warm_up_completed, events.other_tokens) == (2, 1, 2)
    assert len(events.samples) == SIZE * PASSES


CALL = {"index": 0, "id": "c", "function": {"name": "sort", "arguments": '{"digits":'}}
MORE = {"index": 0, "function": {"arguments": " 42}"}}
WHOLE = {
    "type": "function",
    "id": "c",
    "function": {"name": "sort", "arguments": '{"digits": 42}'},
}
SECOND = {"type": "function", "function": {"arguments": " 42}"}}


@pytest.mark.parametrize(
    ("data", "whole", "rest"),
    [
        (["all at once"], "all at once", ""),
        ([["a", "b", "c"]], "abc", "bc"),
        ([["a", "b"], None, []], "ab", "b"),
        ([["a"], ["so", " then"]], ("a", "so then", []), ("a", " then", [])),
        ([[], ["so"]], ("", "so", []), ("", "", [])),
        (["a", "so"], ("a", "so", []), ("", "", [])),
        (["a", ["so"]], ("a", "so", []), ("a", "", [])),
        ([["a", "b"], "so"], ("ab", "so", []), ("ab", "", [])),
        (["", None, [[CALL], [MORE]]], ("", "", [WHOLE]), ("", "", [SECOND])),
        ([["a"], None, [[CALL], [MORE]]], ("a", "", [WHOLE]), ("", "", [WHOLE])),
        (["", ["so"], [WHOLE]], ("", "so", [WHOLE]), ("", "", [WHOLE])),
        ([], "", ""),
    ],
)
def test_parts_of_an_answer_follow_its_chunks(data: list[Any], whole: Part, rest: Part) -> None:
    found = read_answer(["TextModelOutput", *data])
    assert (found.whole, found.rest) == (whole, rest)
    assert found.is_structured == isinstance(whole, tuple)


def test_the_scored_text_has_reasoning_and_calls() -> None:
    found = read_answer(["TextModelOutput", ["a", "b"], ["so"], [[{"function": {"name": "é"}}]]])
    call = '{"type":"function","function":{"arguments":"","name":"é"}}'
    assert found.text == f"soab[{call}]"


def test_an_answer_of_another_kind_has_no_parts() -> None:
    assert read_answer(None) == read_answer(["ErrorData", "x"]) == ("", "", "")


@pytest.mark.parametrize("text", ["{", "[1]", '{"event_type": "sample.issued"}', "\x00"])
def test_a_file_that_is_not_the_clients_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match="line 1 is not an event"):
        read_events(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="has no start event of performance tracking"):
        read_events(path)


def test_the_official_window_needs_its_600_seconds(tmp_path: Path) -> None:
    short = read_events(written(tmp_path, made_events()), words)
    assert steady_block(short, SIZE)["status"] == "insufficient_duration"
    for one in short.samples:  # the loop makes the same run ten thousand times slower
        for name in ("issued_ns", "first_ns", "complete_ns"):
            setattr(one, name, getattr(one, name) * 1000 * 10)
    found = steady_block(short, SIZE)
    assert (found["status"], found["verdict"]) == ("windowable", "STEADY STATE")
    assert found["window"]["super_pass_start"] == 2
    assert found["window"]["super_pass_end"] == PASSES


def test_a_late_slow_down_is_seen_beside_the_official_window(
    attempt: runs.Attempt, tmp_path: Path
) -> None:
    events = read_events(attempt.events, words)
    for number, one in enumerate(events.samples):
        late = STEP_NS * 4 if number > len(events.samples) * 0.6 else 0
        one.complete_ns = (one.complete_ns or 0) + late
    found = own_verdict(events, attempt.report / "sample_idx_map.json")
    assert (found["verdict"], found["series"]) == ("not steady", "latency")
    assert own_verdict(events, tmp_path / "none.json") == {}
