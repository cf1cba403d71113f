"""SHA256SUMS reveals every changed, added or removed file, and sha256sum can read it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.results.run_folder import ResultFolder
from harness.results.seal import digests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a finished result folder."""
    new = ResultFolder(tmp_path / "run")
    (new.path / "result.json").write_text("{}")
    (new.subfolder("performance") / "run.json").write_text("{}")
    (new.path / "name with spaces.txt").write_text("")
    return new.finish()


def test_sha256sum_checks_the_seal(folder: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    words = ["sha256sum", "--check", "--strict", digests.SEAL]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == [
        "name with spaces.txt: OK",
        "performance/run_1/run.json: OK",
        "result.json: OK",
    ]
    assert list(digests.differences(folder)) == []


def test_each_change_is_named(folder: Path) -> None:
    (folder / "result.json").write_text("{ }")
    (folder / "performance/run_1/run.json").unlink()
    (folder / "more").symlink_to("/etc/passwd")
    assert list(digests.differences(folder)) == [
        f"{folder}/more was added after the run: SHA256SUMS does not list it",
        f"{folder}/performance/run_1/run.json is missing, but SHA256SUMS lists it",
        f"{folder}/result.json was changed after the run: its SHA-256 differs from SHA256SUMS",
    ]


def test_the_page_may_be_made_again(folder: Path) -> None:
    (folder / digests.PAGE).write_text("made later")
    assert list(digests.differences(folder)) == []


def test_a_writer_of_the_page_that_was_killed_breaks_no_seal(folder: Path) -> None:
    """Bug: `check` reported .report.html.6b4e6d69.partial, which a killed supervisor had left behind."""
    (folder / f".{digests.PAGE}.6b4e6d69.partial").write_text("half a page")
    (folder / ".added.json.6b4e6d69.partial").write_text("")
    (line,) = digests.differences(folder)
    assert ".added.json" in line


@pytest.mark.parametrize("line", ["no digest", "../x", ""])
def test_invalid_line_of_a_seal_is_named(line: str, folder: Path) -> None:
    with (folder / digests.SEAL).open("a") as file:
        file.write(f"{line}\n")
    (found,) = digests.differences(folder)
    assert (
        f"SHA256SUMS has a line that is not from sha256sum, or that repeats a file: {line!r}"
        in found
    )


def test_file_listed_twice_is_named(folder: Path) -> None:
    path = folder / digests.SEAL
    path.write_text(path.read_text() * 2)
    assert len(list(digests.differences(folder))) == 3


def test_a_folder_without_a_result_has_no_seal(tmp_path: Path) -> None:
    """A study seals its folder only at its end, because the folder grows until then."""
    new = ResultFolder(tmp_path / "sweep")
    assert not (new.finish() / digests.SEAL).exists()


def test_files_that_report_makes_again_are_not_sealed(folder: Path) -> None:
    """Bug: `report` on a run inside a search broke the seal of the search, and the seal omitted every report.html."""
    (folder / "report.html").write_text("")
    (folder / "plotly-7.1.0.min.js").write_text("")
    assert list(digests.differences(folder)) == []
    (folder / "performance/run_1/report.html").write_text("")
    (line,) = digests.differences(folder)
    assert "report.html was added after the run" in line
