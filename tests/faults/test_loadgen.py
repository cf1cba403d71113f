"""LoadGen is missing, or its version is not the one that the MLPerf round requires."""

import os
from pathlib import Path

import pytest

from harness.core.extras import how_to_install_packages
from tests.faults.command import FAULTY, NOBODY, SERVER, SHORT, codes, run, unprivileged

PINNED = how_to_install_packages("mlcommons-loadgen==6.0.17")
BREAK = "raise ImportError('no LoadGen here')\n"


def without_loadgen(folder: Path) -> dict[str, str]:
    (folder / "mlperf_loadgen.py").write_text(BREAK)
    return {"PYTHONPATH": str(folder)}


def test_without_loadgen_the_line_says_what_to_install(tmp_path: Path) -> None:
    done = run(*SERVER, *SHORT, "--out", f"{tmp_path}/r", env=without_loadgen(tmp_path))
    assert done.status == 3
    assert done.said == f"harness: LoadGen cannot be imported: {PINNED}\n"
    assert not list(tmp_path.glob("r*"))


def with_version(folder: Path, version: str) -> dict[str, str]:
    """Writes metadata of a different version, which Python finds before the metadata of the installed version."""
    info = folder / f"mlcommons_loadgen-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: mlcommons-loadgen\nVersion: {version}\n"
    )
    return {"PYTHONPATH": str(folder)}


def test_another_version_is_reported_and_the_quick_run_continues(tmp_path: Path) -> None:
    env = with_version(tmp_path, "6.0.12")
    done = run(*SERVER, *SHORT, "--mode", "performance", "--out", f"{tmp_path}/r", env=env)
    assert done.status == 0, done.said
    assert done.said.splitlines()[0] == (
        f"harness: LoadGen 6.0.12 is installed, but this harness was tested with 6.0.17: {PINNED}"
    )


def test_another_version_is_refused_under_the_official_rules(tmp_path: Path) -> None:
    env = with_version(tmp_path, "6.0.12")
    done = run(*SERVER, "--mlperf", "--out", f"{tmp_path}/r", env=env)
    assert done.status == 2
    assert done.said == (
        f"harness: --mlperf needs LoadGen 6.0.17, but 6.0.12 is installed: {PINNED}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "code"),
    [
        ("CutsTheLog", "log-incomplete"),
        ("AddsAnError", "loadgen-errors"),
        ("AddsAnotherRun", "log-mixed"),
        ("SwapsTheLog", "wrong-run"),
        ("RemovesTheLog", "log-missing"),
    ],
)
def test_a_log_that_is_not_what_loadgen_wrote_is_invalid(
    backend: str, code: str, tmp_path: Path
) -> None:
    """The backend changes the file when it closes, after LoadGen has ended and before the harness reads the file."""
    done = run(
        *SERVER, *SHORT, "--backend", f"{FAULTY}:{backend}", "--out", f"{tmp_path}/r",
        "--mode", "performance", "--backend-option", f"run={tmp_path}/r.partial",
    )  # fmt: skip
    assert done.status == 4
    assert code in codes(tmp_path / "r")
    assert done.printed.startswith("INVALID")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_log_folder_without_permission_is_invalid(tmp_path: Path) -> None:
    """In a folder without permission, LoadGen runs nothing and reports nothing. Runs as an unprivileged user, because
    root can write anywhere.
    """
    unprivileged(tmp_path)
    done = run(
        *SERVER, *SHORT, "--backend", f"{FAULTY}:LocksTheFolder", "--out", f"{tmp_path}/r",
        "--mode", "performance", "--backend-option", f"run={tmp_path}/r.partial",
        prefix=NOBODY,
    )  # fmt: skip
    assert done.status == 4, done.said + done.printed
    assert done.printed.startswith("INVALID")
    assert "log-missing" in done.printed, done.said + done.printed
    assert "must be able to write" in done.printed
