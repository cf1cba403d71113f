"""`submit check --raw` verifies the untruncated logs, and finds impossible rows and different answers in these logs.

The hashes of logs and texts agree, as if the faults had existed before the logs were truncated.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.loadgen.logs import ACCURACY
from harness.submit.pack.pack import truncate
from harness.submit.rules.findings import Finding
from harness.submit.rules.raw_logs import raw_logs
from harness.submit.rules.rows import CUT, has_whole_answer, shown_answers, wrong_end
from harness.submit.rules.tree.submission import Result, results, submitters
from harness.submit.rules.tree.tree import Tree
from tests.builders.submission.trees import (
    ACC,
    MULTI,
    ROUND,
    SERVER,
    accuracy_log,
    all_of,
    log,
    sub,
    write,
)

SAMPLES, ANSWERS = 500, 400
TEXT = f"{SERVER}/TEST01/verify_accuracy.txt"
MATCHED = {"num_perf_log_entries": ANSWERS, "num_perf_log_qsl_idx_match": ANSWERS}


def with_raw_logs(
    tree: Path, raw: Path, accuracy: str, answers: str, scenario: str = SERVER
) -> None:
    """Writes both raw logs, their truncated copies and hashes; the accuracy run states SAMPLES."""
    counts = {"effective_accuracy_sample_count": SAMPLES, "qsl_reported_total_count": SAMPLES}
    log(f"{scenario}/{ACC}", **counts)(tree)
    for name, content in zip((ACC, f"TEST01/{ACC}"), (accuracy, answers), strict=True):
        folder = f"{scenario}/{name}"
        write(raw / folder / ACCURACY, content)
        (tree / folder / ACCURACY).unlink()
        digest = truncate(raw / folder / ACCURACY, tree / folder / ACCURACY, ROUND)
        sub(f"{folder}/accuracy.txt", r"^hash=.*", f"hash={digest}")(tree)


def stating(text: str = TEXT, /, **counts: int) -> Callable[[Path], None]:
    """Sets the number of rows that the text of TEST01's answers states."""
    return all_of(*(sub(text, rf"^{key} = .*", f"{key} = {n}") for key, n in counts.items()))


def found(tree: Path, raw: Path, scenario: str = SERVER) -> list[Finding]:
    by_path: dict[str, Result] = {
        result.path: result for who in submitters(Tree(tree), ROUND) for result in results(who)
    }
    return list(raw_logs(by_path[scenario], raw))


@pytest.fixture
def good(tree: Path) -> Path:
    stating(num_acc_log_entries=SAMPLES, **MATCHED)(tree)
    return tree


def test_good_raw_logs_have_no_finding(good: Path, tmp_path: Path) -> None:
    with_raw_logs(good, tmp_path, accuracy_log(SAMPLES), accuracy_log(ANSWERS))
    assert found(good, tmp_path) == []


def one_sample(text: str) -> str:
    return re.sub(r'"qsl_idx" : \d+', '"qsl_idx" : 7', text)


FAULTS: dict[str, tuple[str, str, str]] = {
    "fewer rows than samples": (accuracy_log(200), accuracy_log(200), "200 different samples"),
    "one sample in every row": (
        one_sample(accuracy_log(SAMPLES)),
        accuracy_log(ANSWERS),
        "499 samples answered more than once",
    ),
    "sample beyond the data set": (
        accuracy_log(SAMPLES).replace('"qsl_idx" : 250,', '"qsl_idx" : 500,'),
        accuracy_log(ANSWERS),
        "qsl_idx 500 is outside the data set of 500",
    ),
    "one number twice": (
        accuracy_log(SAMPLES).replace('"seq_id" : 250,', '"seq_id" : 9,'),
        accuracy_log(ANSWERS),
        "seq_id is repeated in 1 row",
    ),
    "no JSON": (accuracy_log(SAMPLES)[:-9], accuracy_log(ANSWERS), "not a list of answers"),
    "answer of TEST01 beyond the data set": (
        accuracy_log(SAMPLES),
        accuracy_log(ANSWERS).replace('"qsl_idx" : 250,', '"qsl_idx" : 50000,'),
        "qsl_idx 50,000",
    ),
    "every answer of TEST01 differs": (
        accuracy_log(SAMPLES),
        accuracy_log(ANSWERS, "0700000000000000"),
        "num_perf_log_data_mismatch = 0",
    ),
    "TEST01 has fewer answers than its text": (
        accuracy_log(SAMPLES),
        accuracy_log(300),
        "num_perf_log_entries = 400",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_a_raw_log_is_found(name: str, good: Path, tmp_path: Path) -> None:
    """Bug: only the hashes were compared even if raw logs were available."""
    accuracy, answers, actual = FAULTS[name]
    with_raw_logs(good, tmp_path, accuracy, answers)
    assert any(actual in finding.actual for finding in found(good, tmp_path)), found(good, tmp_path)


def test_answers_that_differ_may_be_stated_for_any_type(good: Path, tmp_path: Path) -> None:
    """One answer differs in its second byte; the difference shows as int64, but not in the bytes that the script
    compares by default.
    """
    ninth = '"qsl_idx" : 9, "data" : "080'
    answers = accuracy_log(ANSWERS).replace(f"{ninth}0", f"{ninth}1")
    with_raw_logs(good, tmp_path, accuracy_log(SAMPLES), answers)
    assert found(good, tmp_path) == []
    stating(num_perf_log_data_mismatch=1)(good)
    assert found(good, tmp_path) == []
    stating(num_perf_log_data_mismatch=2)(good)
    assert [finding.rule for finding in found(good, tmp_path)] == ["audit-failed"]


def test_the_truncated_log_is_the_two_ends_of_the_raw_one(good: Path, tmp_path: Path) -> None:
    with_raw_logs(good, tmp_path, accuracy_log(SAMPLES), accuracy_log(ANSWERS))
    path = f"{SERVER}/{ACC}/{ACCURACY}"
    sub(path, "0800000000000000", "0700000000000000")(good)
    assert [(f.rule, f.file) for f in found(good, tmp_path)] == [("accuracy-log", path)]


def test_multi_stream_fills_the_last_query_of_each_set(good: Path, tmp_path: Path) -> None:
    """LoadGen requests some samples twice, so 500 samples in sets of 20 become 600 rows."""
    log(f"{MULTI}/{ACC}", effective_performance_sample_count=20)(good)
    rows = [
        f'{{ "seq_id" : {i}, "qsl_idx" : {min(i // 24 * 20 + i % 24, i // 24 * 20 + 19)}, "data" : "08" }}'
        for i in range(600)
    ]
    counts = {"num_acc_log_entries": 600, "num_acc_log_duplicate_keys": 100, **MATCHED}
    stating(f"{MULTI}/TEST01/verify_accuracy.txt", **counts)(good)
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    with_raw_logs(good, tmp_path, text, accuracy_log(ANSWERS, "08"), MULTI)
    assert found(good, tmp_path, MULTI) == []


def test_answers_larger_than_an_end_show_no_last_row() -> None:
    """Bug: an honest result with images was refused, because the ends of its log show only one row."""
    row = b'[\n{ "seq_id" : 0, "qsl_idx" : 7, "data" : "'
    log = row + b"00" * 2000 + CUT + b"00" * 2000 + b'" }\n]\n'
    assert wrong_end(log, 5000, "SingleStream") == ""


def test_a_few_slow_answers_may_end_a_server_log() -> None:
    head, tail = accuracy_log(60).encode(), accuracy_log(100).encode()[-1000:]
    assert wrong_end(head + CUT + tail, 5000, "Server") == ""
    assert wrong_end(head + CUT + tail, 5000, "MultiStream") != ""


def test_a_stalled_batch_may_end_a_short_server_log() -> None:
    """Bug: a rehearsal on a busy machine ended with a batch from its beginning, and the check called the log forged."""
    head, tail = accuracy_log(60).encode(), accuracy_log(113).encode()[-2000:]
    assert wrong_end(head + CUT + tail, 300, "Server") == ""
    assert wrong_end(head + CUT + tail, 10_000, "Server") != ""


def test_log_cut_within_an_answer_shows_the_answers_around_it() -> None:
    """Bug: the two halves around the cut were read as one answer, which was not hexadecimal."""
    head, tail = (
        f'{{"qsl_idx" : {n}, "data" : "{data * 9}"}}' for n, data in ((1, "AB"), (2, "CD"))
    )
    cut = f'{head}, {{"qsl_idx" : 5, "data" : "ABAB'.encode() + CUT + f'ABAB"}}, {tail}]'.encode()
    assert shown_answers(cut) == {1: b"\xab" * 9, 2: b"\xcd" * 9}


def test_equal_ends_of_large_answers_are_not_a_copied_log() -> None:
    """Bug: two 3D-UNet runs that began with the same volume had equal truncated logs, and the check called the logs
    copies.
    """
    begin = b'[\n{ "seq_id" : 0, "qsl_idx" : 2, "data" : "' + b"00" * 2000
    end = b"00" * 2000 + b'", "token_count" : 0 }\n]\n'
    assert not has_whole_answer(begin + CUT + end)
    row = b'{ "seq_id" : 0, "qsl_idx" : 2, "data" : "AB", "token_count" : 0 },\n'
    assert has_whole_answer(b"[\n" + row + CUT + row)
