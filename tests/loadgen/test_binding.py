"""The binding passes settings and answers to LoadGen unchanged."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.loadgen.answers import AnswerRow, Ragged
from harness.loadgen.binding import (
    RaggedResponder,
    Responder,
    responder_for,
    settings_for,
)
from harness.loadgen.official import official_load
from harness.loadgen.versions import PINNED_VERSION, ROUNDS, installed_version
from tests.builders.support import SCENARIOS, plan


class Taken:
    """Receives responses in place of LoadGen: ids, and the bytes at their pointers."""

    def __init__(self, responder: Responder | RaggedResponder) -> None:
        self.calls: list[list[tuple[int, bytes]]] = []
        responder._complete = self._take

    def _take(self, responses: Sequence[Any]) -> None:
        self.calls.append([(r.id, ctypes.string_at(r.data, r.size)) for r in responses])


@pytest.mark.parametrize(("dtype", "shape"), [("int64", ()), ("float32", (10,)), ("uint8", (2, 3))])
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_each_id_gets_its_row_whatever_the_batches_before(
    dtype: str, shape: tuple[int, ...], sizes: list[int]
) -> None:
    responder = Responder(8, AnswerRow(shape, np.dtype(dtype)))
    taken = Taken(responder)
    expected = []
    for n, size in enumerate(sizes):
        rows = np.random.default_rng(n).integers(0, 99, (size, *shape)).astype(dtype)
        ids = [2**63 + 100 * n + i for i in range(size)]
        responder.complete(ids, rows)
        expected.append([(i, row.tobytes()) for i, row in zip(ids, rows, strict=True)])
    assert taken.calls == expected


@pytest.mark.parametrize(("dtype", "trailing"), [("float32", (7,)), ("uint8", ()), ("int64", ())])
@given(batches=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), max_size=6))
def test_answers_of_different_lengths_keep_their_ids_and_bytes(
    dtype: str, trailing: tuple[int, ...], batches: list[list[int]]
) -> None:
    responder = responder_for(8, AnswerRow((None, *trailing), np.dtype(dtype)))
    taken = Taken(responder)
    expected = []
    for n, lengths in enumerate(batches):
        random = np.random.default_rng(n)
        rows = [random.integers(0, 99, (k, *trailing)).astype(dtype) for k in lengths]
        rows[0] = rows[0][::-1]  # this row is not contiguous
        ids = [2**63 + 100 * n + i for i in range(len(rows))]
        assert isinstance(responder, RaggedResponder)
        responder.complete(ids, Ragged(rows))
        expected.append([(i, row.tobytes()) for i, row in zip(ids, rows, strict=True)])
    assert taken.calls == expected


def test_answers_of_one_length_get_the_faster_responder() -> None:
    assert isinstance(responder_for(1, AnswerRow((3,), np.dtype(np.int64))), Responder)


@pytest.mark.parametrize("shape", [(), (None, 7)])
def test_an_empty_answer_has_the_id_and_no_bytes(shape: tuple[int | None, ...]) -> None:
    responder = responder_for(2, AnswerRow(shape, np.dtype(np.int64)))
    taken = Taken(responder)
    responder.complete_empty([7, 8])
    assert taken.calls == [[(7, b""), (8, b"")]]


def test_the_installed_loadgen_is_the_pinned_one() -> None:
    assert installed_version() == PINNED_VERSION
    assert set(ROUNDS) == {PINNED_VERSION}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_quick_settings_follow_the_plan(scenario: str) -> None:
    made = plan(scenario, percentile=0.95, latency_bound_ns=7, samples_per_query=3)
    settings = settings_for(made)
    assert settings.scenario.name == SCENARIOS[scenario]
    assert settings.mode.name == "PerformanceOnly"
    assert settings.min_query_count == made.query_count
    seeds = (settings.qsl_rng_seed, settings.sample_index_rng_seed, settings.schedule_rng_seed)
    assert seeds == tuple(made.seeds)
    if scenario == "server":
        assert settings.server_target_qps == made.target_qps
        assert settings.server_target_latency_percentile == 0.95
        assert settings.server_target_latency_ns == 7
        assert settings.server_coalesce_queries
    if scenario == "single-stream":
        assert settings.single_stream_target_latency_percentile == 0.95
    if scenario == "multi-stream":
        assert settings.multi_stream_target_latency_percentile == 0.95
        assert settings.multi_stream_samples_per_query == 3


def test_an_accuracy_plan_is_accuracy_only() -> None:
    assert settings_for(plan("offline", accuracy=True)).mode.name == "AccuracyOnly"


@pytest.mark.parametrize(
    ("scenario", "text", "queries", "bound_ms"),
    [
        ("server", "*.Server.target_qps = 20", 12_001, 15),
        ("offline", "*.Offline.target_qps = 100", 66_001, None),
        ("offline", "*.Offline.target_qps = 1", 24_576, None),
        ("single-stream", "*.SingleStream.target_latency = 10", 120_001, None),
        ("multi-stream", "*.MultiStream.target_latency = 100", 12_001, None),
    ],
)
def test_the_official_load_of_resnet50_is_600_seconds(
    scenario: str, text: str, queries: int, bound_ms: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "user.conf"
    path.write_text(text + "\n")
    found = official_load(scenario, "resnet50", str(path), 50_000, 50_000)
    assert found.queries == pytest.approx(queries, abs=1)
    assert found.expected_s == 600
    assert found.performance_count == 1024
    assert found.samples_per_query == (8 if scenario == "multi-stream" else 1)
    assert found.latency_bound_ns == (bound_ms * 10**6 if bound_ms else None)


def test_loadgen_issues_whole_sets_of_samples_with_equal_issue(tmp_path: Path) -> None:
    path = tmp_path / "user.conf"
    path.write_text("*.Server.target_qps = 20\n")
    found = official_load("server", "qwen3-vl-235b-a22b", str(path), 48_289, 48_289)
    assert found.expected_s == pytest.approx(48_289 / 20, rel=1e-3)


def test_a_user_conf_that_loadgen_refuses_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.conf"
    message = rf"^LoadGen refused {path} \(FromConfig returned -2\): correct the file$"
    with pytest.raises(ConfigError, match=message):
        official_load("server", "resnet50", str(path), 10, 10)


@pytest.mark.parametrize(
    "arguments",
    [
        "--scenario single-stream --queries 64",
        "--scenario server --queries 700 --target-qps 1000000",
    ],
)
def test_a_quick_run_issues_exactly_the_planned_queries(arguments: str, tmp_path: Path) -> None:
    """Bug: min_duration_ms = 1 added queries at more than 1000 queries per ms, and the journal was too short."""
    out = tmp_path / "run"
    fixed = f"--backend null --mode performance --slo p90=1s --hang-timeout 2s --quiet --out {out}"
    command = [sys.executable, "-m", "harness", *arguments.split(), *fixed.split()]
    subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    (found,) = (json.loads(p.read_text()) for p in tmp_path.glob("run*/result.json"))
    assert found["queries"]["samples_issued"] == found["queries"]["planned"]
    assert "loadgen-errors" not in [r["code"] for r in found["reasons"]]
