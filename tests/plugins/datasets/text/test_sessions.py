"""Sessions: turns, the turns that they wait for, and delays; an unusable session is reported with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.units import NS_PER_MS
from harness.datasets.text.sessions import SessionsDataset
from harness.types import DatasetSetup, HasSessions, TensorSpec
from tests.builders.refusals import refusals

REQUEST = TensorSpec("request", "string", ("batch",))
TRIP = {
    "turns": [
        {"id": "plan", "prompt": "Plan"},
        {"id": "a", "prompt": "A", "after": ["plan"], "delay_ms": 200},
        {"id": "b", "prompt": "B", "after": ["plan"], "model": "small"},
        {"prompt": "Book", "after": ["a", "b"], "delay_ms": 1.5, "max_tokens": 64},
    ]
}
CHAT = {"turns": [{"prompt": "Hi"}, {"prompt": "Hi again", "reference": "yes"}]}


def setup(folder: Path, *sessions: Any) -> DatasetSetup:
    path = folder / "sessions.jsonl"
    lines = (one if isinstance(one, str) else json.dumps(one) for one in sessions)
    path.write_text("".join(f"{line}\n" for line in lines))
    return DatasetSetup(inputs=(REQUEST,), data_dir=path)


def test_turns_wait_for_what_they_name_else_for_the_turn_before(tmp_path: Path) -> None:
    dataset = SessionsDataset(setup(tmp_path, TRIP, CHAT))
    assert isinstance(dataset, HasSessions)
    found = dataset.sessions()
    assert found.session.tolist() == [0, 0, 0, 0, 1, 1]
    assert [*found.after] == [(), (0,), (0,), (1, 2), (), (4,)]
    assert (found.delay_ns / NS_PER_MS).tolist() == [0, 200, 0, 1.5, 0, 0]


def test_turns_are_samples_with_their_prompts(tmp_path: Path) -> None:
    dataset = SessionsDataset(setup(tmp_path, TRIP, CHAT))
    dataset.load(range(6))
    (rows,) = dataset.batch([2, 3]).inputs.values()
    assert rows.tolist() == [
        b'{"fields":["model","prompt"],"model":"small","prompt":"B"}',
        b'{"max_tokens":64,"prompt":"Book"}',
    ]
    assert dataset.label(5) == "yes"
    about = dataset.describe()
    assert (about["sessions"], about["count"]) == (2, 6)


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        ("{", ":1: it is not valid JSON"),
        ({"turns": []}, "a session needs `turns`, a list of at least one turn"),
        ([1], ":1: it is not a JSON object"),
        ({"turns": [{"prompt": ""}]}, "turn 1: prompt must be a non-empty string"),
        (
            {"turns": [{"prompt": "a", "after": ["b"]}, {"id": "b", "prompt": "b"}]},
            "turn 1: after names 'b', which is not an earlier turn",
        ),
        ({"turns": [{"prompt": "a"}, {"prompt": "b", "after": "0"}]}, "but must be a list of ids"),
        (
            {"turns": [{"prompt": "a", "delay": 100}]},
            "turn 1: the key 'delay' is unknown: a turn has id, after, delay_ms and the keys of prompts; put",
        ),
        ({"turns": [{"prompt": "a", "delay_ms": -1}]}, "delay_ms is -1, but must be from 0"),
        (
            {"turns": [{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}]},
            "turn 2: the id 'x' appears twice",
        ),
    ],
)
def test_a_session_that_cannot_be_used_is_reported(
    session: Any, problem: str, tmp_path: Path
) -> None:
    (found,) = refusals(SessionsDataset, setup(tmp_path, session))
    assert problem in found


def test_a_file_without_sessions_is_refused(tmp_path: Path) -> None:
    (found,) = refusals(SessionsDataset, setup(tmp_path, ""))
    assert found.endswith("has no sessions: nothing can be measured")
