"""LoadGen is not there, or is another one than the round's."""

from pathlib import Path

from tests.faults.command import SERVER, SHORT, run

BREAK = "raise ImportError('no LoadGen here')\n"


def without_loadgen(folder: Path) -> dict[str, str]:
    (folder / "mlperf_loadgen.py").write_text(BREAK)
    return {"PYTHONPATH": str(folder)}


def test_without_loadgen_the_line_says_what_to_install(tmp_path: Path) -> None:
    done = run(*SERVER, *SHORT, "--out", f"{tmp_path}/r", env=without_loadgen(tmp_path))
    assert done.status == 3
    assert done.said == (
        "harness: LoadGen cannot be imported: pip install mlcommons-loadgen==6.0.17\n"
    )
    assert not list(tmp_path.glob("r*"))


def with_version(folder: Path, version: str) -> dict[str, str]:
    """Metadata of another version, found before the installed one's."""
    info = folder / f"mlcommons_loadgen-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: mlcommons-loadgen\nVersion: {version}\n"
    )
    return {"PYTHONPATH": str(folder)}


def test_another_version_is_said_and_the_quick_run_goes_on(tmp_path: Path) -> None:
    env = with_version(tmp_path, "6.0.12")
    done = run(*SERVER, *SHORT, "--mode", "performance", "--out", f"{tmp_path}/r", env=env)
    assert done.status == 0, done.said
    assert done.said.splitlines()[0] == (
        "harness: LoadGen 6.0.12 is installed, this harness was tried with 6.0.17: "
        "pip install mlcommons-loadgen==6.0.17"
    )


def test_another_version_is_refused_under_the_official_rules(tmp_path: Path) -> None:
    env = with_version(tmp_path, "6.0.12")
    done = run(*SERVER, "--mlperf", "--out", f"{tmp_path}/r", env=env)
    assert done.status == 2
    assert done.said == (
        "harness: --mlperf needs LoadGen 6.0.17, 6.0.12 is installed: "
        "pip install mlcommons-loadgen==6.0.17\n"
    )
