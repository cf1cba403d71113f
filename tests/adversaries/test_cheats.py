"""Each cheat and each broken backend ends as docs/adversaries.md says, and `check` finds the same reasons."""

import importlib
import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.backends.ort import OrtBackend
from harness.core import registry
from harness.core.codes import CODES
from harness.results.recheck import check
from tests.faults.command import ROOT, Ended, codes, doubts, only_all, result, run
from tests.stand_ins.clock import clock_library

HERE = Path(__file__).parent
FILES = ("answers", "broken", "loadgens_files", "tables", "times")
PAGE = (ROOT / "docs" / "adversaries.md").read_text(encoding="utf-8")

SCENARIOS = {
    "server": ("--target-qps", "200", "--queries", "800", "--slo", "p99=50ms"),
    "single-stream": ("--queries", "600"),
    "offline": ("--queries", "20000"),
}
OF_ACCURACY = ("answers-differ", "accuracy-below-target", "too-good")
"""Codes that need an accuracy run, which takes as long as the performance run."""


class Row(NamedTuple):
    """One row in a table of the page."""

    backend: str
    file: str
    scenario: str
    about: str
    found: str
    """Code of the expected reason or doubt, or several codes if any one of them suffices; in the other tables, plain
    text.
    """

    @property
    def codes(self) -> set[str]:
        return set(re.findall(r"[\w-]{3,}", self.found))


def rows(heading: str) -> list[Row]:
    """Returns the rows below this heading of the page."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip("`") for cell in row)) for row in cells]


INVALID, DOUBTED, REFUSED = (rows(h) for h in ("INVALID", "Doubted", "Refused before the run"))
VALID = [*rows("VALID, and rightly"), *rows("Not found")]
QUICK = ("IndexCache",)
"""Rows that `./test.sh` also runs."""


def cases(table: list[Row]) -> list[Any]:
    quick = [row for row in table if row.backend in QUICK]
    return [*quick, *only_all(*((row,) for row in table if row not in quick))]


def classes() -> Iterator[tuple[str, str, str]]:
    """Yields (backend, file, docstring) for every backend class that is not a base class."""
    for file in FILES:
        module = importlib.import_module(f"tests.adversaries.{file}")
        for name, cls in vars(module).items():
            ours = isinstance(cls, type) and issubclass(cls, OrtBackend)
            if ours and cls.__module__ == module.__name__ and not name.startswith("_"):
                yield name, f"{file}.py", " ".join((inspect.getdoc(cls) or "").split())


def run_of(row: Row, out: Path, *more: str) -> Ended:
    is_found_without = row in (*INVALID, *DOUBTED) and not row.codes & set(OF_ACCURACY)
    mode = ("--mode", "performance") if is_found_without else ()
    return run(
        *("--scenario", row.scenario, *SCENARIOS[row.scenario], *mode, *more),
        *("--backend", f"{HERE / row.file}:{row.backend}", "--out", str(out)),
    )


def test_the_page_lists_every_backend_with_its_docstring() -> None:
    listed = [(row.backend, row.file, row.about) for row in (*INVALID, *DOUBTED, *REFUSED, *VALID)]
    special = {"EditsResultLater"}
    assert sorted(listed) == sorted(one for one in classes() if one[0] not in special)
    assert len(listed) >= 40
    for kind, table in (("reason", INVALID), ("doubt", DOUBTED)):
        assert all(CODES[code].kind == kind for row in table for code in row.codes)


@pytest.mark.parametrize("row", cases(INVALID), ids=lambda row: row.backend)
def test_a_cheat_is_invalid_for_its_listed_reason(row: Row, tmp_path: Path) -> None:
    """Bug: most of these runs were VALID, and `check` agreed."""
    # The time limit is long, because a busy machine needs most of it to load the model.
    hang = ("--hang-timeout", "20s")
    assert run_of(row, tmp_path / "r", *hang).status in (4, 5)
    (folder,) = (path for path in tmp_path.iterdir() if path.name in ("r", "r.partial"))
    assert row.codes & {reason["code"] for reason in result(folder)["reasons"]}
    assert not any("reasons" in line for line in check(folder))


@pytest.mark.parametrize("row", cases(DOUBTED), ids=lambda row: row.backend)
def test_a_cheat_is_doubted_with_its_listed_code(row: Row, tmp_path: Path) -> None:
    """Bug: these runs were VALID and caused no doubt."""
    run_of(row, tmp_path / "r")
    assert row.codes <= {*doubts(tmp_path / "r")}


@pytest.mark.slow
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.backend)
def test_a_broken_backend_is_refused_with_the_listed_message(row: Row, tmp_path: Path) -> None:
    done = run_of(row, tmp_path / "r")
    assert (done.status, row.found in done.said) == (3, True)


@pytest.mark.slow
@pytest.mark.parametrize("row", VALID, ids=lambda row: row.backend)
def test_undetected_cheats_of_the_page_stay_undetected(row: Row, tmp_path: Path) -> None:
    """If a check ever finds this cheat, its row must move to a different table."""
    assert run_of(row, tmp_path / "r").status == 0 or row.backend == "WrongOneIn1000"
    found = {*doubts(tmp_path / "r")} & {"cached", "close-raised"}
    assert not found


@pytest.mark.slow
def test_check_finds_edits_of_a_process_after_the_run(tmp_path: Path) -> None:
    done = run(
        *("--scenario", "single-stream", "--queries", "600"),
        *("--backend", f"{HERE}/loadgens_files.py:EditsResultLater", "--out", f"{tmp_path}/r"),
    )
    assert done.status == 4, done.said + done.printed
    deadline_s = time.monotonic() + 10
    while '"verdict": "VALID"' not in (tmp_path / "r/result.json").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert any(line.startswith("verdict") for line in check(tmp_path / "r"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", registry.SCENARIOS)
def test_official_runs_compare_answers_too(scenario: str, tmp_path: Path) -> None:
    """Bug: the answers of official performance runs were never compared. The full performance run takes 600 s, so the
    test compares answers in the short run beside each accuracy run, which has the same settings.
    """
    done = run(
        *("--mlperf", "--mode", "accuracy", "--scenario", scenario),
        *("--backend", f"{HERE / 'answers.py'}:AccOnlyBurn", "--backend-option", "processes=off"),
        *("--out", f"{tmp_path}/r"),
    )
    assert done.status == 4, done.said + done.printed
    assert "answers-differ" in codes(tmp_path / "r")


@pytest.mark.slow
def test_a_clock_that_runs_slowly_is_invalid(tmp_path: Path) -> None:
    """Bug: with a slowed-down clock, a run that seemed four times as fast was VALID."""
    done = run(
        *("--scenario", "single-stream", "--queries", "40000", "--mode", "performance"),
        *("--out", f"{tmp_path}/r"),
        env={**clock_library(tmp_path), "SLOW_CLOCK": "1"},
    )
    assert done.status == 4, done.said + done.printed
    assert "clock-differs" in codes(tmp_path / "r")
