"""The user's checkout of MLCommons' checkers is run unchanged, and the checkers' output is compared with the harness's
output.

The checkouts in these tests are stand-ins that print what the real checkers print (b66003e).
"""

import textwrap
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.submit.rules.findings import Finding
from harness.submit.rules.official import (
    agreement,
    lines,
    read_outcome,
    refuses,
    run_checkers,
    verify_audit,
    verify_test06,
)
from harness.submit.rules.tree.verify import PASS, TEST01
from harness.submit.rules.validate import Checked

A, B = (f"closed/LabOrg/results/box/resnet/{name}" for name in ("Offline", "Server"))
NEW = f"""\
[2026-11-21 04:00:00,000 loader.py:189 INFO] Loading Performance log from {A}
[2026-11-21 04:00:01,000 performance_check.py:170 ERROR] {B} qsl_rng_seed is wrong, expected=1, found=2
[2026-11-21 04:00:01,000 main.py:200 INFO] ---
[2026-11-21 04:00:01,000 main.py:204 INFO] Results {A}/performance/run_1/mlperf_log_detail.txt 90542.8
[2026-11-21 04:00:01,000 main.py:209 ERROR] NoResults {B}/performance/run_1/mlperf_log_detail.txt
[2026-11-21 04:00:01,000 main.py:270 INFO] Results=1, NoResults=1, Power Results=0
[2026-11-21 04:00:01,000 main.py:300 ERROR] SUMMARY: submission has errors
"""
LEGACY = f"""\
INFO:main:Target latency: None, Latency: 5, Scenario: Offline
INFO:main:Results {A} 90542.8
INFO:main:Results {B} 2023.1
INFO:main:Results=2, NoResults=0, Power Results=0
INFO:main:SUMMARY: submission looks OK
"""
CRASH = """\
Traceback (most recent call last):
  File "main.py", line 1, in <module>
AttributeError: 'NoneType' object has no attribute 'get'
"""


def test_the_new_checker_is_understood() -> None:
    found = read_outcome("new", 1, NEW)
    assert found.results == {A: True, B: False}
    assert (found.passed, found.crash) == (False, "")
    assert found.summary == (
        "Results=1, NoResults=1, Power Results=0; SUMMARY: submission has errors"
    )
    assert found.errors[0] == f"{B} qsl_rng_seed is wrong, expected=1, found=2"


def test_the_legacy_checker_is_understood() -> None:
    found = read_outcome("legacy", 0, LEGACY)
    assert found.passed
    assert found.results == {A: True, B: True}


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (1, CRASH),
        (0, ""),
        (0, "INFO:main:Results=0, NoResults=0\nINFO:main:SUMMARY: submission OK"),
    ],
)
def test_crash_or_empty_check_does_not_pass(status: int, output: str) -> None:
    assert not read_outcome("new", status, output).passed


def test_agreement_is_reported_per_result() -> None:
    seed = Finding("wrong-seed", f"{B}/performance/run_1/mlperf_log_detail.txt", "2", "1")
    short = Finding("too-short", f"{A}/performance/run_1/mlperf_log_detail.txt", "5 s", "600 s")
    theirs = read_outcome("new", 1, NEW)
    words = [a.word for a in agreement(Checked([seed], [A, B]), theirs)]
    assert words == ["agree", "agree"]
    found = list(agreement(Checked([seed, short], [A, B]), theirs))
    assert (found[0].word, found[0].why) == ("stricter", "too-short")
    weaker = list(agreement(Checked([], [A, B]), theirs))[1]
    assert weaker.word == "weaker"
    assert weaker.why == f"{B} qsl_rng_seed is wrong, expected=1, found=2"
    crashed = read_outcome("legacy", 1, "Traceback\nTypeError: '<' not supported")
    assert crashed.crash.startswith("TypeError")
    assert not list(agreement(Checked([], [A, B]), crashed))
    mark = Finding("rehearsal", "REHEARSAL.md", "x", "y")
    passed = read_outcome("legacy", 0, LEGACY)
    assert [a.word for a in agreement(Checked([mark], [A, B]), passed)] == ["agree", "agree"]


def test_a_checker_that_does_not_know_the_benchmark_is_not_counted() -> None:
    """Bug: no e2e-rag tree could pass `check --official`, because the legacy checker always crashes on such a tree."""
    crashed = read_outcome("legacy", 1, "KeyError: 'E2E_ACCURACY'")
    known, unknown = Checked([], [A]), Checked([], [A], unknown_to={"legacy"})
    assert [refuses(known, crashed), refuses(unknown, crashed)] == [True, False]
    assert refuses(unknown, read_outcome("new", 1, CRASH))
    assert next(lines(unknown, crashed)) == (
        "official (legacy): crashed, not counted, because it does not know a benchmark of the tree: "
        "KeyError: 'E2E_ACCURACY'"
    )


def checkout(folder: Path, new: str, legacy: str) -> Path:
    """Writes two scripts with preset output and exit status."""
    tools = folder / "tools" / "submission"
    (tools / "submission_checker").mkdir(parents=True)
    (tools / "submission_checker" / "__init__.py").touch()
    (tools / "submission_checker" / "main.py").write_text(new)
    (tools / "submission_checker_old.py").write_text(legacy)
    return folder


def prints(text: str, status: int) -> str:
    return f"import sys\nroot = sys.argv[2]\nprint({text!r}.replace('closed/', root + '/closed/'))\nsys.exit({status})\n"


def test_both_checkers_of_a_checkout_are_run(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "c", prints(NEW, 1), prints(LEGACY, 0))
    new, legacy = run_checkers(folder, tmp_path, "v6.1")
    assert (new.checker, new.results) == ("new", {A: True, B: False})
    assert (legacy.checker, legacy.passed) == ("legacy", True)
    assert not list(folder.rglob("__pycache__"))


def test_command_exits_4_if_a_checker_crashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkout(tmp_path / "c", "raise AttributeError('boom')", prints(LEGACY, 0))
    (tmp_path / "tree" / "closed").mkdir(parents=True)
    words = ["submit", "check", str(tmp_path / "tree"), "--official", str(folder)]
    assert main(words) == 4
    out = capsys.readouterr().out
    assert "official (new): crashed: AttributeError: boom" in out
    assert "official (legacy): passed: Results=2" in out
    assert main([*words, "--quiet"]) == 4
    assert capsys.readouterr().err == ""


def test_folder_that_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass a checkout of mlcommons/inference"):
        run_checkers(tmp_path, tmp_path, "v6.1")


def test_audits_are_verified_by_the_checkouts_scripts(tmp_path: Path) -> None:
    script = tmp_path / "c" / "compliance" / TEST01 / "run_verification.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        textwrap.dedent("""\
        import argparse
        from pathlib import Path
        parser = argparse.ArgumentParser()
        for name in ("-r", "-c", "-o", "--dtype"):
            parser.add_argument(name)
        given = parser.parse_args()
        assert (Path(given.r) / "performance/run_1/mlperf_log_detail.txt").is_file()
        assert (Path(given.r) / "accuracy/mlperf_log_accuracy.json").is_file()
        out = Path(given.o) / "TEST01"
        out.mkdir(parents=True)
        (out / "verify_accuracy.txt").write_text(f"{given.dtype}\\nTEST PASS\\n")
        (out / "verify_performance.txt").write_text("TEST PASS\\n")
        """)
    )
    folders = (tmp_path / "performance", tmp_path / "accuracy", tmp_path / "test")
    for folder in folders:
        folder.mkdir()
    (folders[0] / "mlperf_log_detail.txt").touch()
    (folders[1] / "mlperf_log_accuracy.json").touch()
    found = verify_audit(tmp_path / "c", TEST01, *folders, "int64")
    assert found.passed
    assert found.texts["verify_accuracy.txt"] == f"int64\n{PASS}\n"
    script.write_text("raise SystemExit('no numpy')")
    with pytest.raises(ConfigError, match="wrote nothing: no numpy"):
        verify_audit(tmp_path / "c", TEST01, *folders, "int64")
    with pytest.raises(ConfigError, match="has no compliance/TEST04"):
        verify_audit(tmp_path / "c", "TEST04", *folders, "int64")


def test_test06_is_verified_from_its_own_logs_alone(tmp_path: Path) -> None:
    script = tmp_path / "c/compliance/TEST06/run_verification.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        "import pathlib, sys\n"
        "assert pathlib.Path('test/mlperf_log_accuracy.json').is_file()\n"
        "pathlib.Path('out/TEST06').mkdir(parents=True)\n"
        "pathlib.Path('out/TEST06/verify_accuracy.txt').write_text(' '.join(sys.argv[1:]))\n"
    )
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "mlperf_log_accuracy.json").touch()
    found = verify_test06(tmp_path / "c", tmp_path / "test", "int32", "Interactive")
    assert found.texts == {"verify_accuracy.txt": "-s Interactive --dtype int32 -c test -o out"}
