"""For the same logs, our verification of audits agrees with MLCommons' scripts."""

import json
from pathlib import Path

import pytest

from harness.loadgen.logs import ACCURACY, AccuracyLogError
from harness.submit.rules.tree.verify import PASS, TEST01, compare_answers, verify
from tests.builders.submission.audit_cases import CASES, RIGHT, Case, build
from tests.builders.support import GOLDEN

OFFICIAL = json.loads((GOLDEN / "audits.json").read_text())


def test_every_case_was_given_to_the_official_scripts() -> None:
    assert set(OFFICIAL) == set(CASES)
    passed = [words for words in OFFICIAL.values() if all(words.values())]
    assert 20 < len(passed) < len(OFFICIAL) - 20


@pytest.mark.parametrize("name", CASES)
def test_each_text_passes_or_fails_as_theirs(name: str, tmp_path: Path) -> None:
    found = verify(CASES[name].audit, *build(CASES[name], tmp_path), "int64")
    ours = {file: PASS in text for file, text in found.texts.items()}
    assert ours == OFFICIAL[name], found.texts
    assert found.passed == all(ours.values())


def test_repeated_sample_must_have_equal_answers(tmp_path: Path) -> None:
    """An answer of the audit replaces the answer of the accuracy run, as in MLCommons' script."""
    case = Case(TEST01, "Server", 2000, 2000, answers={1: RIGHT})
    _, accuracy, test = build(case, tmp_path)
    rows = [{"seq_id": i, "qsl_idx": 1, "data": data} for i, data in enumerate([RIGHT, "00" * 8])]
    (test / ACCURACY).write_text(json.dumps(rows))
    lines = compare_answers(accuracy / ACCURACY, test / ACCURACY, "int64").splitlines()
    assert {"num_perf_log_qsl_idx_match = 2", "num_perf_log_data_mismatch = 1"} <= set(lines)


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    performance, accuracy, test = build(Case(TEST01, "Server", 2000, 2000), tmp_path)
    (accuracy / ACCURACY).write_text("[{")
    with pytest.raises(AccuracyLogError, match="not the JSON that LoadGen writes"):
        verify(TEST01, performance, accuracy, test, "int64")
