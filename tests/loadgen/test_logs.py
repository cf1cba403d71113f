"""The harness reads LoadGen's logs, including logs of killed or broken runs."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.loadgen.logs import (
    ACCURACY,
    DETAIL,
    SUMMARY,
    AccuracyLogError,
    DetailLog,
    read_answers,
    read_detail,
)
from harness.types import Answer
from tests.builders.support import GOLDEN, SAMPLES, SCENARIOS, golden_log

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)
SERVER = (GOLDEN / "server/performance" / DETAIL).read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "log"


def written(file: Path, content: bytes) -> DetailLog:
    file.write_bytes(content)
    return read_detail(file)


@each_scenario
def test_a_golden_performance_log_is_complete(scenario: str) -> None:
    log = golden_log(scenario)
    assert log.complete
    assert (log.errors, log.warnings, log.malformed_lines, log.repeated) == ([], [], 0, 1)
    assert log.get("effective_scenario") == SCENARIOS[scenario]
    assert log.get("effective_test_mode") == "PerformanceOnly"
    assert log.get("result_validity") == "VALID"


@each_scenario
def test_a_golden_accuracy_log_is_complete_without_results(scenario: str) -> None:
    log = golden_log(scenario, "accuracy")
    assert log.complete
    assert log.get("effective_test_mode") == "AccuracyOnly"
    assert not [key for key in log.values if key.startswith("result_")]


def test_an_accuracy_log_of_several_sets_ends_with_the_last_set(file: Path) -> None:
    """LoadGen loads as many samples at once as the performance run uses."""
    content = (GOLDEN / "offline/accuracy" / DETAIL).read_text()
    marks = re.findall(r"^.*\"power_(?:begin|end)\".*$", content, re.MULTILINE)
    later = "\n".join(re.sub(r"20\d\d \d\d", "2099 23", mark) for mark in marks)
    log = written(file, f"{content.rstrip()}\n{later}\n".encode())
    assert log.complete
    assert not log.contradicted
    assert log.values["power_begin"] in marks[0]
    assert log.values["power_end"][6:13] == "2099 23"


@each_scenario
def test_values_equal_those_in_loadgens_summary(scenario: str) -> None:
    summary = (GOLDEN / scenario / "performance" / SUMMARY).read_text()
    per = "per_query_latency" if scenario == "multi-stream" else "latency"
    shown = re.findall(r"^(\d\d\.\d\d) percentile latency \(ns\) +: (\d+)$", summary, re.MULTILINE)
    log = golden_log(scenario)
    assert len(shown) == 6
    for percent, ns in shown:
        assert log.get(f"result_{percent}_percentile_{per}_ns") == int(ns)
    assert f"Result is : {log.get('result_validity')}" in summary


@each_scenario
@pytest.mark.parametrize("run", ["performance", "accuracy"])
def test_a_log_with_a_cut_last_line_keeps_the_lines_before(
    scenario: str, run: str, file: Path
) -> None:
    whole = (GOLDEN / scenario / run / DETAIL).read_bytes().rstrip()
    log = written(file, whole[:-1])
    assert not log.complete
    assert log.malformed_lines == 1
    assert log.get("effective_scenario") == SCENARIOS[scenario]


@given(st.integers(0, SERVER.rindex(b"num_errors")))
def test_a_log_cut_before_its_end_is_never_complete(file: Path, size: int) -> None:
    assert not written(file, SERVER[:size]).complete


@given(st.binary(max_size=200))
@example(b":::MLLOG ")
@example(b":::MLLOG []")
@example(b':::MLLOG {"key": 1, "value": 2, "metadata": {}}')
@example(b':::MLLOG {"key": "a", "value": 2, "metadata": []}')
@example(b':::MLLOG {"key": "a", "value": 2}')
@example(b":::MLLOG " + b"[" * 100_000)
def test_garbage_is_never_complete_and_never_an_exception(file: Path, content: bytes) -> None:
    log = written(file, content)
    assert not log.complete
    assert log.values == {}


def test_a_missing_log_holds_nothing(tmp_path: Path) -> None:
    assert read_detail(tmp_path / DETAIL) == DetailLog()
    assert read_detail(tmp_path) == DetailLog()


def test_garbage_between_good_lines_makes_a_log_incomplete(file: Path) -> None:
    log = written(file, SERVER.replace(b"\n", b"\nnoise\n", 1))
    assert not log.complete
    assert log.malformed_lines == 1
    assert log.get("num_errors") == 0


def test_the_first_of_two_runs_in_one_log_counts_and_the_second_is_counted(file: Path) -> None:
    """The first value of a key wins, as in MLCommons' parser."""
    other = (GOLDEN / "offline/performance" / DETAIL).read_bytes()
    log = written(file, SERVER + other)
    assert log.repeated == 2
    assert log.get("effective_scenario") == "Server"


def _line(key: str, value: object, **metadata: bool) -> bytes:
    entry = {"key": key, "value": value, "metadata": metadata}
    return b":::MLLOG " + json.dumps(entry).encode() + b"\n"


def test_error_and_warning_lines_are_kept_in_order(file: Path) -> None:
    lines = [
        _line("error_runtime", "Attempted to complete a sample twice.", is_error=True),
        _line("warning_generic", "Slow.", is_error=False, is_warning=True),
        _line("error_invalid", "Ran out of generated queries.", is_error=True),
    ]
    log = written(file, b"".join(lines) + SERVER)
    assert log.errors == [
        "error_runtime: Attempted to complete a sample twice.",
        "error_invalid: Ran out of generated queries.",
    ]
    assert log.warnings == ["warning_generic: Slow."]
    assert log.complete


@each_scenario
def test_a_golden_accuracy_log_has_an_answer_for_every_sample(scenario: str) -> None:
    answers = list(read_answers(GOLDEN / scenario / "accuracy" / ACCURACY))
    assert {a.sample for a in answers} == set(range(SAMPLES))
    assert {len(a.payload) for a in answers} == {8}
    # Multi-stream fills its last query up with earlier samples.
    assert len(answers) == (24 if scenario == "multi-stream" else SAMPLES)


def test_an_answer_has_its_sample_and_its_bytes(file: Path) -> None:
    file.write_text('[\n{ "seq_id" : 0, "qsl_idx" : 7, "data" : "0500FF" }\n]\n')
    assert list(read_answers(file)) == [Answer(7, b"\x05\x00\xff")]


def test_the_accuracy_log_of_a_performance_run_is_empty(file: Path) -> None:
    file.write_text("[\n]\n")
    assert list(read_answers(file)) == []


def _refusal(file: Path) -> str:
    with pytest.raises(AccuracyLogError) as caught:
        list(read_answers(file))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_accuracy_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / ACCURACY
    assert _refusal(path) == f"{path} cannot be read: No such file or directory"


ROW = '{ "seq_id" : 0, "qsl_idx" : 1, "data" : "00" }'


@pytest.mark.parametrize(
    "content",
    [
        *("", "[", "[\n{ ", '[{"a": 1}', "\x00", "[" * 100_000),
        *(f"[\n{ROW}\n", f"[\n{ROW},\n]\n", f"[\n{ROW}\n{ROW}\n]\n", f"[\n{ROW}\n]\n1", "[\n,\n]\n"),
    ],
)  # fmt: skip
def test_a_cut_accuracy_log_is_refused(content: str, file: Path) -> None:
    file.write_text(content)
    assert _refusal(file).startswith(f"{file} is not the JSON that LoadGen writes: ")


def test_rows_of_a_large_log_are_read_one_by_one(file: Path) -> None:
    """Bug: a log of images was read into memory three times."""
    row = ROW.replace('"00"', f'"{"00" * 10_000}"')
    file.write_text("[\n" + ",\n".join([row] * 1000) + "\n]\n")
    tracemalloc.start()
    count = sum(len(answer.payload) == 10_000 for answer in read_answers(file))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 1000
    assert peak_bytes < 1_000_000


def test_accuracy_log_without_a_list_is_refused(file: Path) -> None:
    file.write_text("{}")
    assert _refusal(file) == f"{file} is not a list of answers"


@pytest.mark.parametrize(
    "row",
    [
        "1",
        "null",
        "{}",
        '{"seq_id": 0, "qsl_idx": 1}',
        '{"seq_id": 0, "qsl_idx": null, "data": ""}',
        '{"seq_id": 0, "qsl_idx": "x", "data": ""}',
        '{"seq_id": 0, "qsl_idx": 1, "data": 5}',
        '{"seq_id": 0, "qsl_idx": 1, "data": "0"}',
        '{"seq_id": 0, "qsl_idx": 1, "data": "zz"}',
        '{"seq_id": 0, "qsl_idx": Infinity, "data": ""}',
    ],
)
def test_message_shows_the_row_that_is_not_an_answer(row: str, file: Path) -> None:
    file.write_text(f"[{row}]")
    shown = repr(json.loads(row))
    assert _refusal(file) == f"{file} has a row that is not an answer: {shown}"


def test_a_key_with_two_values_is_named_and_a_message_may_repeat(file: Path) -> None:
    """Bug: the reader used a forged line inserted before the real one, because the first value wins."""
    line = b':::MLLOG {"key": "result_validity", "value": "INVALID", "metadata": {}}\n'
    assert written(file, SERVER).contradicted == []
    assert written(file, line + SERVER).contradicted == ["result_validity"]
    message = b':::MLLOG {"key": "generic_message", "value": "one", "metadata": {}}\n'
    other = message.replace(b"one", b"two")
    assert written(file, message + other + SERVER).contradicted == []
