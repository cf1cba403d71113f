"""Each cheat without a backend ends as docs/adversaries.md says, and `check` finds the same codes."""

import inspect
from pathlib import Path

import pytest

from harness.results.recheck import check
from tests.adversaries.surroundings import CASES
from tests.adversaries.test_cheats import SCENARIOS, Row, rows
from tests.faults.command import result, run

ROWS = rows("Around the run")


def test_the_page_lists_every_case_with_its_docstring() -> None:
    cases = {name: " ".join((inspect.getdoc(case) or "").split()) for name, case in CASES.items()}
    assert {row.backend: row.about for row in ROWS} == cases


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.backend)
def test_a_cheat_around_the_run_gets_its_listed_code(row: Row, tmp_path: Path) -> None:
    prepared = CASES[row.backend](tmp_path)
    out = tmp_path / "r"
    options = ("--scenario", row.scenario, *SCENARIOS[row.scenario], "--out", str(out))
    run(*options, *prepared.words, env=dict(prepared.variables))
    found = result(out)
    assert row.codes <= {one["code"] for one in [*found["reasons"], *found["doubts"]]}
    assert not check(out)


@pytest.mark.slow
def test_a_run_with_start_up_code_is_not_isolated(tmp_path: Path) -> None:
    """Bug: `isolated` was true, and environment.json did not name the start-up code."""
    prepared = CASES["hook_of_python"](tmp_path)
    options = ("--scenario", "single-stream", "--queries", "100", "--mode", "performance")
    done = run(*options, "--out", f"{tmp_path}/r", env=dict(prepared.variables))
    assert done.status == 0, done
    assert result(tmp_path / "r")["isolated"] is False
    (found,) = [
        one for one in result(tmp_path / "r")["environment"]["code"]["startup"] if not one["owner"]
    ]
    assert found["name"] == "sitecustomize"
