"""Reports of `advise`, `bricks`, `cold` and `machine`: each report is a folder whose JSON file contains all data shown."""

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from harness.errors import ConfigError, HarnessError, RunInvalid
from harness.explain.advise import job as advise
from harness.explain.bricks import job as bricks
from harness.explain.cold import job as cold
from harness.explain.machine import job as machine
from harness.explain.report import Content, Report

VERBS = [job.REPORT for job in (advise, bricks, cold, machine)]


@pytest.mark.parametrize("report", VERBS, ids=[one.verb for one in VERBS])
@pytest.mark.parametrize("version", [None, 0, 1, 99])
def test_a_file_of_another_version_or_shape_is_refused_in_one_line(
    report: Report, version: int | None, tmp_path: Path
) -> None:
    file = tmp_path / report.file
    file.write_text(json.dumps(dict.fromkeys(report.schema, version)))
    with pytest.raises(ConfigError) as refusal:
        report.show_again(tmp_path, as_json=False)
    if version == 1:
        assert f"{report.file} is not valid `{report.verb}` output: no entry " in str(refusal.value)
        return
    assert str(refusal.value) == (
        f"{file} was written by another version of `{report.verb}`: its schema differs"
    )


def _no_page(_: Content, folder: Path) -> Path:
    (folder / "gone" / "page.html").write_text("")
    raise AssertionError


SUM = Report("sum", "sum.json", {"schema": 1}, lambda content: [f"a {content['a']}"], _no_page)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(
    ("error", "raised", "logged", "kept"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, True, False),
        (ConfigError("no such layer"), ConfigError, True, False),
        (HarnessError("the process died"), HarnessError, True, True),
        (HarnessError("the process died"), HarnessError, False, False),
        (OSError(28, "No space left on device"), RunInvalid, False, False),
    ],
)
def test_a_failed_measurement_keeps_a_useful_folder(
    error: BaseException,
    raised: type[BaseException],
    logged: bool,
    kept: bool,
    saved: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "out.partial"

    def measure() -> None:
        with SUM.measuring(tmp_path / "out", "ort", "net") as new:
            (new.path / "log").write_text("a line" * logged)
            if saved:
                SUM.save({"schema": 1, "a": 2}, new.path)
            raise error

    with pytest.raises(raised) as ended:
        measure()
    if raised is RunInvalid:
        text = f"{folder} cannot be written (No space left on device): free some space there"
        assert str(ended.value) == text
    assert folder.exists() == (kept or saved)
    note = f"harness: stopped: sum --from {folder} shows the results so far\n"
    expected = note if saved and raised is KeyboardInterrupt else ""
    assert capsys.readouterr().err == expected


def test_without_a_page_the_tables_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SUM.save({"schema": 1, "a": 2}, tmp_path)
    SUM.show_again(tmp_path, as_json=False)
    shown = capsys.readouterr()
    assert shown.out == f"a 2\n\nresults     {tmp_path}\n"
    assert shown.err.startswith("harness: no page was written: No such file or directory: ")
    SUM.show_again(tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "a": 2}
