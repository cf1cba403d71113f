"""Recorded sessions from other tools: each format is recognised, and yields the prompts, the dependencies and the
delays.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.datasets.parts.sessions.timeline import Interval, waits
from harness.datasets.text.sessions import SessionsDataset
from harness.errors import ConfigError
from harness.types import DatasetSetup, TensorSpec
from tests.builders.refusals import refusals

REQUEST = TensorSpec("request", "string", ("batch",))
SYSTEM, USER = {"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}
ANSWER, NEXT = {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "And?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a.py"}


def setup(folder: Path, *rows: Any, name: str = "x.jsonl", **options: str) -> DatasetSetup:
    path = folder / name
    text = (
        "".join(f"{json.dumps(row)}\n" for row in rows)
        if name.endswith("l")
        else json.dumps(rows[0])
    )
    path.write_text(text)
    return DatasetSetup(inputs=(REQUEST,), data_dir=path, options=options, seed=3)


def read(folder: Path, *rows: Any, **more: str) -> SessionsDataset:
    return SessionsDataset(setup(folder, *rows, **more))


def prompts(dataset: SessionsDataset) -> list[Any]:
    dataset.load(range(len(dataset)))
    return [
        json.loads(row[0])
        for row in (dataset.batch([i]).inputs["request"] for i in range(len(dataset)))
    ]


def shape(dataset: SessionsDataset) -> tuple[list[int], list[Sequence[int]], list[float]]:
    found = dataset.sessions()
    return found.session.tolist(), [*found.after], (found.delay_ns / NS_PER_MS).tolist()


def test_sharegpt_has_one_turn_per_answer(tmp_path: Path) -> None:
    chat = {
        "id": "x",
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello"},
            {"from": "human", "value": "And?"},
            {"from": "gpt", "value": "No"},
        ],
    }
    dataset = read(tmp_path, [chat, chat], name="chats.json")
    assert dataset.describe()["format"] == "sharegpt"
    assert shape(dataset)[:2] == ([0, 0, 1, 1], [(), (0,), (), (2,)])
    assert prompts(dataset)[1] == {"messages": [USER, ANSWER, NEXT]}
    assert [dataset.label(i) for i in range(2)] == ["Hello", "No"]


def test_messages_with_calls_of_tools_have_one_turn_per_answer(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "ls"}}]
    trace = {"instance_id": "a", "messages": [SYSTEM, USER, CALL, RESULT, ANSWER], "tools": tools}
    dataset = read(tmp_path, trace, {"messages": json.dumps([USER])})
    assert dataset.describe()["format"] == "messages"
    assert shape(dataset)[1] == [(), (0,), ()]
    first, second, alone = prompts(dataset)
    assert first["tools"] == tools
    assert second["messages"] == [SYSTEM, USER, CALL, RESULT]
    assert alone == {"messages": [USER]}


def test_swe_agents_steps_wait_for_the_execution_of_the_step_before(tmp_path: Path) -> None:
    steps = [
        {"query": [SYSTEM, USER], "response": "Hello", "action": "ls", "execution_time": 0.25},
        {"query": [SYSTEM, USER, ANSWER, {**NEXT, "message_type": "observation"}], "response": ""},
    ]
    dataset = read(tmp_path, {"trajectory": steps, "info": {}}, name="a.traj")
    assert dataset.describe()["format"] == "swe-agent"
    assert shape(dataset) == ([0, 0], [(), (0,)], [0, 250])
    assert prompts(dataset)[1]["messages"] == [SYSTEM, USER, ANSWER, NEXT]
    (problem,) = refusals(
        SessionsDataset, setup(tmp_path, {"trajectory": [{"response": "a"}]}, name="b.traj")
    )
    assert problem.endswith("step 1 has no `query`, which SWE-agent records from version 1.1 on")


def dag(*, background: bool = False) -> list[Any]:
    fork: Any = {"child": "fork", "background": True} if background else "fork"
    turns = [
        {"messages": [SYSTEM, USER], "max_tokens": 9, "spawns": ["agent"], "extra": {"seed": 1}},
        {"messages": [NEXT], "delay": 40, "forks": [fork]},
    ]
    if background:
        turns.append({"messages": [NEXT], "model": "large"})
    return [
        {"session_id": "root", "turns": turns},
        {"session_id": "agent", "turns": [{"messages": [USER], "delay": 5}, {"messages": [NEXT]}]},
        {"session_id": "fork", "turns": [{"messages": [USER]}]},
    ]


def test_aiperfs_dag_spawns_join_and_forks_inherit(tmp_path: Path) -> None:
    dataset = read(tmp_path, *dag())
    about = dataset.describe()
    assert (about["format"], about["history"], about["sessions"]) == ("aiperf-dag", "live", 1)
    # The requests are listed in this order: root 0, agent 0, agent 1, root 1 (which waits for the agent), fork 0.
    assert shape(dataset) == ([0] * 5, [(), (0,), (1,), (0, 2), (3,)], [0, 5, 0, 40, 0])
    dataset.load(range(5))
    dataset.continue_with(4, {0: b"one", 1: b"two", 3: b'fo"ur'})
    sent = json.loads(dataset.batch([4]).inputs["request"][0])["messages"]
    given = [{"role": "assistant", "content": text} for text in ("one", 'fo"ur')]
    assert sent == [SYSTEM, USER, given[0], NEXT, given[1], USER]
    assert prompts(dataset)[0]["seed"] == 1


def test_a_background_fork_lets_its_parent_go_on(tmp_path: Path) -> None:
    dataset = read(tmp_path, *dag(background=True))
    assert shape(dataset)[1] == [(), (0,), (1,), (0, 2), (3,), (3,)]
    assert dataset.describe()["models"] == {"": 5, "large": 1}


def test_an_orchestrator_paces_its_rounds(tmp_path: Path) -> None:
    rows = [
        {
            "session_id": "o",
            "orchestrator": True,
            "spawns": ["a", "b"],
            "rounds": 2,
            "think_time_ms": 30,
        },
        {
            "session_id": "a",
            "turns": [{"messages": [USER]}],
            "context_mode": "message_array_with_responses",
        },
        {
            "session_id": "b",
            "turns": [{"messages": [NEXT]}],
            "context_mode": "message_array_with_responses",
        },
    ]
    dataset = read(tmp_path, *rows)
    assert dataset.describe()["history"] == "recorded"
    assert shape(dataset) == ([0] * 4, [(), (), (0, 1), (0, 1)], [30, 30, 30, 30])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"forks": ["none"]}, "this file has no conversation 'none'"),
        (
            {"spawns": [{"children": ["agent"], "join_at": 1}]},
            "join_at is 1: it must be a later turn",
        ),
        ({"forks": ["agent"]}, "a turn after a fork is never sent: add background to the fork"),
    ],
)
def test_a_dag_that_cannot_run_is_refused(
    change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    rows = [
        {"session_id": "root", "turns": [{"messages": [USER], **change}, {"messages": [NEXT]}]},
        {"session_id": "agent", "turns": [{"messages": [USER]}]},
    ]
    if "join_at" in problem:
        del rows[0]["turns"][1]  # type: ignore[attr-defined]
    (found,) = refusals(SessionsDataset, setup(tmp_path, *rows))
    assert found.endswith(problem)


def test_conversations_that_begin_each_other_are_no_session(tmp_path: Path) -> None:
    rows = [
        {"session_id": "root", "turns": [{"messages": [USER], "spawns": ["a"]}]},
        {"session_id": "a", "turns": [{"messages": [USER], "spawns": ["a"]}]},
    ]
    (found,) = refusals(SessionsDataset, setup(tmp_path, *rows))
    assert found.endswith("conversation 'a' starts itself")


def weka(number: int, t: float, took: float, blocks: list[int], tokens: int) -> dict[str, Any]:
    kind = "s" if number % 2 else "n"
    return {
        "t": t,
        "type": kind,
        "model": "m",
        "in": tokens,
        "out": 7,
        "hash_ids": blocks,
        "api_time": took,
    }


def test_wekas_calls_wait_for_what_had_ended(tmp_path: Path) -> None:
    agent = {
        "t": 3.0,
        "type": "subagent",
        "agent_id": "a",
        "subagent_type": "Explore",
        "status": "completed",
        "models": [],
        "requests": [weka(0, 3.5, 1, [9], 4), weka(1, 5.0, 2, [9, 10], 9)],
    }
    trace = {
        "id": "x",
        "models": ["m"],
        "block_size": 4,
        "hash_id_scope": "local",
        "requests": [
            weka(0, 0, 2, [1], 6),
            agent,
            weka(1, 4.0, 1, [1, 2], 8),
            weka(2, 9.0, 1, [1, 2, 3], 13),
        ],
    }
    dataset = read(tmp_path, trace, {**trace, "id": "y"}, name="t.jsonl", tokens="10:1000000")
    assert dataset.describe()["format"] == "weka"
    _, after, delays = shape(dataset)
    # The calls start at 0 s, at 3.5 s and 4 s (these two overlap), at 5 s (after the subagent's first and the parent's
    # second call), and at 9 s (after all calls).
    assert after[:5] == [(), (0,), (0,), (1, 2), (3,)]
    assert delays[:5] == [0, 1500, 2000, 0, 2000]
    ids = [prompt["prompt"] for prompt in prompts(dataset)]
    assert [len(one) for one in ids[:5]] == [6, 4, 8, 9, 13]
    assert ids[4][:8] == ids[2]
    assert ids[0][:4] == ids[2][:4]
    assert ids[0][4:] != ids[2][4:6]
    assert ids[3][:4] == ids[1]
    # Equal ids in different traces mean different tokens.
    assert not {*ids[5][:4]} & {*ids[0][:4]}
    assert prompts(dataset)[0]["max_tokens"] == 7


def test_mooncakes_hash_ids_are_blocks_of_equal_tokens(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [46, 47, 48]},
        {"timestamp": 30, "input_length": 9, "output_length": 0, "hash_ids": [46, 47, 50]},
        {"session_id": "s", "input_length": 4, "output_length": 1, "hash_ids": [46]},
        {"session_id": "s", "input_length": 3, "output_length": 1, "delay": 12.5},
    ]
    dataset = read(tmp_path, *rows, block="4", tokens="10:1000000")
    assert dataset.describe()["format"] == "mooncake"
    assert shape(dataset) == ([0, 1, 2, 2], [(), (), (), (2,)], [0, 0, 0, 12.5])
    found = prompts(dataset)
    assert [one["max_tokens"] for one in found] == [5, 1, 1, 1]
    first, second, third, last = (one["prompt"] for one in found)
    assert first[:8] == second[:8]
    assert first[8:9] != second[8:]
    assert third == first[:4]
    assert len(last) == 3
    again = read(tmp_path, *rows, block="4", tokens="10:1000000")
    assert prompts(again) == found


def test_aiperfs_mooncake_lines_may_have_whole_prompts(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "messages": [USER], "output_length": 4},
        {
            "session_id": "a",
            "messages": [USER, ANSWER, NEXT],
            "output_length": 4,
            "extra": {"top_k": 1},
        },
        {"payload": {"prompt": "x", "max_tokens": 2, "stream": True, "seed": 5}},
        {"text_input": "y", "output_length": 3},
    ]
    dataset = read(tmp_path, *rows)
    assert shape(dataset)[:2] == ([0, 0, 1, 2], [(), (0,), (), ()])
    found = prompts(dataset)
    assert found[1]["messages"] == [USER, ANSWER, NEXT]
    assert found[1]["top_k"] == 1
    assert (found[2]["prompt"], found[2]["seed"], found[2]["max_tokens"]) == ("x", 5, 2)
    assert found[3] == {"max_tokens": 3, "prompt": "y"}
    (problem,) = refusals(SessionsDataset, setup(tmp_path, {"input_length": 4, "text_input": "x"}))
    assert "but has input_length and text_input" in problem


PARTS = [
    {"role": "system", "parts": [{"type": "text", "content": "Be brief"}]},
    {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
]
TOOL = {"type": "tool_call", "id": "c1", "name": "ls", "arguments": {}}
LATER = [
    *PARTS,
    {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, TOOL]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "a.py"}]},
]


def otlp(name: str, start_s: float, end_s: float, messages: Any, **more: Any) -> dict[str, Any]:
    values = {
        "gen_ai.operation.name": {"stringValue": "chat"},
        "gen_ai.input.messages": {"stringValue": json.dumps(messages)},
        "gen_ai.usage.output_tokens": {"intValue": "11"},
        **more,
    }
    return {
        "traceId": "t1",
        "spanId": name,
        "startTimeUnixNano": str(int(start_s * NS_PER_S)),
        "endTimeUnixNano": str(int(end_s * NS_PER_S)),
        "attributes": [{"key": key, "value": value} for key, value in values.items()],
    }


def test_spans_in_otlp_are_turns_and_spans_of_tools_are_time(tmp_path: Path) -> None:
    tool = otlp("t", 12, 14, [], **{"gen_ai.operation.name": {"stringValue": "execute_tool"}})
    failed = {**otlp("f", 12, 13, PARTS), "status": {"code": 2}}
    spans = [otlp("b", 14.5, 16, LATER), otlp("a", 10, 12, PARTS), tool, failed]
    content = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    dataset = read(tmp_path, content)
    assert dataset.describe()["format"] == "opentelemetry"
    assert shape(dataset) == ([0, 0], [(), (0,)], [0, 2500])
    first, second = prompts(dataset)
    assert first == {"max_tokens": 11, "messages": [SYSTEM, USER]}
    assert second["messages"] == [SYSTEM, USER, CALL, RESULT]
    assert shape(read(tmp_path, *spans)) == shape(dataset)  # the file has one span per line


def test_spans_are_grouped_by_conversation_else_by_trace(tmp_path: Path) -> None:
    def span(trace: str, start: str, end: str, **more: Any) -> dict[str, Any]:
        attributes = {
            "gen_ai.input.messages": [USER],
            "gen_ai.system_instructions": [{"type": "text", "content": "Be brief"}],
            "gen_ai.tool.definitions": json.dumps([{"name": "ls"}]),
            **more,
        }
        times = {"start_time": f"2026-01-01T00:00:{start}", "end_time": f"2026-01-01T00:00:{end}"}
        return {"trace_id": trace, "span_id": start, **times, "attributes": attributes}

    talk = {"gen_ai.conversation.id": "talk"}
    rows = [
        span("a", "00Z", "02Z", **talk),
        span("b", "03Z", "04Z"),
        span("c", "02.5Z", "05Z", **talk),
    ]
    dataset = read(tmp_path, *rows)
    assert shape(dataset) == ([0, 0, 1], [(), (0,), ()], [0, 500, 0])
    first = prompts(dataset)[0]
    assert first["messages"] == [SYSTEM, USER]
    assert first["tools"] == [{"type": "function", "function": {"name": "ls"}}]
    nested = read(
        tmp_path, {"session_id": "x", "spans": rows[:1]}, {"session_id": "y", "spans": rows[1:2]}
    )
    assert shape(nested)[0] == [0, 1]


def test_answers_are_found_in_later_prompts_and_replaced(tmp_path: Path) -> None:
    chat = {"messages": [USER, ANSWER, NEXT, {"role": "assistant", "content": "No"}, USER]}
    dataset = read(tmp_path, chat, history="live")
    assert dataset.live_history
    assert prompts(dataset)[2]["messages"][1] == ANSWER
    dataset.load(range(3))
    dataset.continue_with(2, {0: b"mine", 1: "ä".encode()})
    sent = json.loads(dataset.batch([2]).inputs["request"][0])["messages"]
    assert [one["content"] for one in sent] == ["Hi", "mine", "And?", "ä", "Hi"]


def test_an_answer_that_is_not_waited_for_stays_as_recorded(tmp_path: Path) -> None:
    turns = [
        {"id": "a", "messages": [USER]},
        {"id": "b", "messages": [NEXT], "after": []},
        {"messages": [USER, ANSWER, NEXT], "after": ["b"]},
    ]
    dataset = read(tmp_path, {"turns": turns}, history="live")
    dataset.load(range(3))
    dataset.continue_with(2, {0: b"mine", 1: b"other"})
    assert json.loads(dataset.batch([2]).inputs["request"][0])["messages"] == [USER, ANSWER, NEXT]


def test_answers_that_were_not_recorded_cannot_be_sent(tmp_path: Path) -> None:
    (problem,) = refusals(SessionsDataset, setup(tmp_path, *dag(), history="recorded"))
    assert "does not record the model's answers: drop the option" in problem


def test_prompts_are_sessions_of_one_turn(tmp_path: Path) -> None:
    dataset = read(tmp_path, {"prompt": "a", "max_tokens": 3}, {"input_ids": [1, 2]})
    assert dataset.describe()["format"] == "prompts"
    assert shape(dataset)[0] == [0, 1]
    assert prompts(dataset) == [{"max_tokens": 3, "prompt": "a"}, {"prompt": [1, 2]}]


def test_a_folder_is_read_as_one_file(tmp_path: Path) -> None:
    for name in ("b.traj", "a.traj"):
        (tmp_path / name).write_text(
            json.dumps({"trajectory": [{"query": [{"role": "user", "content": name}]}]})
        )
    (tmp_path / "notes.txt").write_text("x")
    dataset = SessionsDataset(DatasetSetup(inputs=(REQUEST,), data_dir=tmp_path))
    assert [one["messages"][0]["content"] for one in prompts(dataset)] == ["a.traj", "b.traj"]


def test_long_delays_are_cut_and_counted(tmp_path: Path) -> None:
    turns = [{"prompt": "a"}, {"prompt": "b", "delay_ms": 500}, {"prompt": "c", "delay_ms": 10}]
    dataset = read(tmp_path, {"turns": turns}, most_delay_ms="100")
    assert shape(dataset)[2] == [0, 100, 10]
    assert dataset.describe()["cut_delays"] == 1


def test_the_format_can_be_named(tmp_path: Path) -> None:
    row = {"prompt": "a", "timestamp": 1, "input_length": 3}
    assert read(tmp_path, row).describe()["format"] == "mooncake"
    assert read(tmp_path, row, format="prompts").describe()["format"] == "prompts"
    with pytest.raises(ConfigError, match="format=weka2 is not one of auto, opentelemetry"):
        read(tmp_path, row, format="weka2")


def test_a_file_without_a_known_format_is_refused_with_the_formats(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r":1 has no known format: .*format=NAME \(opentelemetry, weka"
    ):
        read(tmp_path, {"text": "a"})


def test_the_digest_depends_on_what_changes_the_prompts(tmp_path: Path) -> None:
    row = {"input_length": 9, "output_length": 5, "hash_ids": [1]}
    found = [read(tmp_path, row, block=block).describe()["digest"] for block in ("4", "4", "8")]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("calls", "after"),
    [
        ([(0, 5), (5, 6), (7, 8)], [(), (0,), (1,)]),
        ([(0, 9), (1, 2), (3, 4), (9, 10)], [(), (), (1,), (0, 2)]),
        ([(0, 0), (0, 0), (0, 3), (3, 4)], [(), (), (), (0, 1, 2)]),
        ([(0, 4), (1, 4), (4, 5)], [(), (), (0, 1)]),
    ],
)
def test_a_call_waits_for_the_last_calls_that_had_ended(
    calls: list[tuple[int, int]], after: list[tuple[int, ...]]
) -> None:
    found = waits([Interval(*call) for call in calls])
    assert [one.after for one in found] == after


def test_every_wait_follows_from_the_times() -> None:
    """Compares with the definition: a call waits, directly or through another call, for every call that had ended
    before it.
    """
    random = np.random.default_rng(5)
    for _ in range(30):
        starts = np.sort(random.integers(0, 60, 25))
        calls = [Interval(int(s), int(s + random.integers(0, 12))) for s in starts]
        reached: list[set[int]] = []
        for number, (call, wait) in enumerate(zip(calls, waits(calls), strict=True)):
            reached.append({*wait.after}.union(*(reached[one] for one in wait.after)))
            ended = {
                n
                for n in range(number)
                if calls[n].end_ns <= call.start_ns and calls[n].start_ns < call.start_ns
            }
            assert reached[-1] == ended
            last_ns = max((calls[n].end_ns for n in wait.after), default=calls[0].start_ns)
            assert wait.delay_ns == call.start_ns - last_ns >= 0
