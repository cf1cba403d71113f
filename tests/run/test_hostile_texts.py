"""A plug-in's output reaches the terminal as plain text, so it cannot clear the screen or fake a verdict."""

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.explain.profile.tables import folder
from harness.results.pages.tables import Column, Table

PLUGINS = r"""
from harness.backends.null import NullBackend
from harness.types import Score

RED, C1, BACK = "\x1b[31m", "\x9b2J", "\rVALID"

class Odd(NullBackend):
    def describe(self):
        return {**super().describe(), "note": RED, C1: BACK}

class Raises(NullBackend):
    def __enter__(self):
        raise type(f"Evil{RED}", (Exception,), {})(f"{C1} went wrong {BACK}")

class Metric:
    def __init__(self, dtype):
        pass

    def score(self, answers, labels):
        return Score(metric=f"top{RED}", value=1.0, unit=C1, samples=len(labels), line=f"a={RED}{BACK}")
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    path = tmp_path / "odd.py"
    path.write_text(PLUGINS)
    return path


def run(tmp_path: Path, *words: str) -> int:
    more = ("--scenario", "offline", "--queries", "500", "--no-metrics", "--no-report")
    return main([*more, "--out", str(tmp_path / "run"), *words])


def test_descriptions_and_scores_reach_the_terminal_as_text(
    plugins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: escape sequences from a plug-in reached the terminal and accuracy.txt."""
    words = ("--backend", f"{plugins}:Odd", "--metric", f"{plugins}:Metric")
    assert run(tmp_path, *words) in (0, 4)
    assert main(["check", str(tmp_path / "run"), "--trust", f"{plugins}:Metric"]) == 0
    printed = "".join(capsys.readouterr())
    assert r"top\x1b[31m" in printed
    assert not {"\x1b", "\x9b", "\r"} & {*printed}
    assert (tmp_path / "run/accuracy/accuracy.txt").read_text() == "a=\\x1b[31m\\rVALID\n"
    layers = Table("layers", "Layers", "of a model", (Column("layer"),), [("=a\x1b[31m",)])
    folder.write(folder.read(tmp_path / "run"), [layers], tmp_path)
    assert r"=a\x1b[31m" in (tmp_path / "tables.txt").read_text()
    assert (tmp_path / "tables/layers.csv").read_text() == "layer\n'=a\\x1b[31m\n"


def test_an_exception_reaches_the_terminal_as_text(
    plugins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--backend", f"{plugins}:Raises", "--mode", "performance") == 3
    printed = "".join(capsys.readouterr())
    assert r"Evil\x1b[31m: \x9b2J went wrong" in printed
    assert not {"\x1b", "\x9b", "\r"} & {*printed}
