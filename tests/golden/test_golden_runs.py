"""The harness still reads the golden result folders and prints what was recorded."""

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.files import read_json
from harness.results import recheck
from harness.results.result_json import result
from tests.builders.result import VALIDATOR
from tests.golden.make_runs import EXPECTED, FOLDERS, RUNS, TINY, expected

MOST_BYTES = 400_000
AGAIN = "the format has changed: python tests/golden/make_runs.py makes the folders again"


def test_check_report_and_compare_match_the_stored_output() -> None:
    assert expected() == read_json(EXPECTED), AGAIN


@pytest.mark.parametrize("name", RUNS)
def test_every_number_can_be_derived_from_the_files(name: str) -> None:
    stored = dict(read_json(FOLDERS / name / "result.json"))
    VALIDATOR.validate(stored)
    findings = recheck.findings(FOLDERS / name, recheck.configuration(FOLDERS / name), [TINY])
    derived = json.loads(json.dumps(result(findings), default=str))
    assert list(derived) == list(stored), AGAIN
    del stored["environment"], derived["environment"]  # this key repeats environment.json
    assert derived == stored, AGAIN


@pytest.mark.parametrize("name", RUNS)
def test_the_command_checks_a_golden_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(FOLDERS / name, tmp_path / "moved")
    assert main(["check", str(run), "--trust", TINY]) == 0
    assert capsys.readouterr().out == (
        f"{run}: result.json agrees with the files; the run is VALID\n"
    )


def test_the_golden_folders_are_small_and_name_no_machine() -> None:
    files = [path for path in FOLDERS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        private = re.findall(
            r"(?:/home|/root|/work|/tmp|/Users)/?[^\s\"']*", path.read_text("latin-1")
        )
        assert private == [], path
