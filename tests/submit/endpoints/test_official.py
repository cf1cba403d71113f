"""MLCommons' checker and mlperf-viz: the tests parse their output, and compare it with our findings for each break."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.submit.endpoints.rules import official
from harness.submit.endpoints.rules.validate import validate
from tests.builders.submit.endpoints import made_tree
from tests.builders.submit.endpoints_breaks import BREAKS, Break

STAND_IN = """\
#!{python}
import json, pathlib, sys
rows = json.loads('''{rows}''')
if "-o" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text(json.dumps({{"results": rows}}))
sys.exit({status})
"""
ROWS: list[dict[str, object]] = [
    {"rule": "point-count", "severity": "error", "path": "results", "message": "Only 6"},
    {"rule": "point-duration", "severity": "warning", "path": None, "message": "too short"},
    {"rule": "docs", "severity": "info", "path": None, "message": "fine"},
]


def stand_in(folder: Path, rows: list[dict[str, object]], status: int, viz: int = 0) -> Path:
    """Makes an environment whose python prints what the checker prints."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name, code in (("python", status), ("mlperf-viz", viz)):
        path = programs / name
        path.write_text(STAND_IN.format(python=sys.executable, rows=json.dumps(rows), status=code))
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_tree(tmp_path_factory.mktemp("endpoints"))


def test_errors_and_warnings_of_the_checker_are_read(made: Path, tmp_path: Path) -> None:
    environment = stand_in(tmp_path / "env", ROWS, 1)
    checker, viz = official.run_tools(environment, made, validate(made))
    assert not checker.passed
    assert checker.errors == [("point-count", "results", "Only 6")]
    assert [row[0] for row in checker.warnings] == ["point-duration"]
    assert viz.passed


def test_a_checker_that_does_not_answer_has_not_passed(made: Path, tmp_path: Path) -> None:
    environment = stand_in(tmp_path / "env", ROWS, 0)
    (environment / "bin/python").write_text(f"#!{sys.executable}\nraise SystemExit('broken')\n")
    (environment / "bin/mlperf-viz").unlink()
    outcomes = official.run_tools(environment, made, validate(made))
    assert [one.passed for one in outcomes] == [False, False]
    assert all(one.crash for one in outcomes)


def test_a_failed_official_check_fails_the_verb(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = stand_in(tmp_path / "env", ROWS, 1, viz=3)
    assert main(["endpoints", "check", str(made), "--official", str(environment)]) == 4
    out = capsys.readouterr().out
    assert "official (submission-checker): failed: 1 errors, 1 warnings" in out
    assert "    error point-count results: Only 6" in out
    assert "official (mlperf-viz): failed" in out
    words = ["endpoints", "check", str(made), "--official", str(environment), "--rehearsal"]
    assert main(words) == 0


def test_a_missing_environment_is_refused(tmp_path: Path, made: Path) -> None:
    with pytest.raises(ConfigError, match="add --install to create one with uv"):
        official.ensure(tmp_path / "none", install=False)


@pytest.mark.slow
def test_a_tree_of_our_pack_passes_the_official_tools_without_warnings(
    made: Path, checker: Path
) -> None:
    outcomes = official.run_tools(checker, made, validate(made))
    assert [(one.passed, one.crash) for one in outcomes] == [(True, ""), (True, "")]


@pytest.mark.slow
@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_the_checker_answers_each_break_as_listed(
    one: Break, made: Path, checker: Path, tmp_path: Path
) -> None:
    tree = shutil.copytree(made, tmp_path / "tree", symlinks=True)
    one.change(tree)
    outcome = official.run_tools(checker, tree, validate(tree))[0]
    answer = "E" if outcome.errors or outcome.crash else "W" if outcome.warnings else "P"
    assert answer == one.official, outcome
