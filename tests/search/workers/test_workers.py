"""`sweep --models`: one run per number of workers, and the cost of a cache that every request misses."""

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.models.cache import misses
from harness.search.options import parse_workers
from harness.search.workers import table
from tests.builders.refusals import Said

SET = """
models:
  - model: NET
    copies: 3
capacity: 600kB
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "set.yaml"
    path.write_text(SET.replace("NET", "digits"))
    return path


def test_numbers_of_workers_are_a_list_in_ascending_order() -> None:
    assert parse_workers("4,1, 2,2") == (1, 2, 4)
    for wrong in ("0", "1,x", "65", ""):
        with pytest.raises(ValueError, match=r"\S"):
            parse_workers(wrong)


def test_overhead_is_the_time_of_the_cache_beyond_a_plain_load() -> None:
    """Checks requirement TR8: the mean difference of the pairs, divided by the mean of the plain loads."""
    found = table.overhead_of([100, 100, 100, 100], [110, 112, 108, 110])
    assert found.share == pytest.approx(0.10)
    assert 0 < found.half < 0.05
    assert table.overhead_of([100, 200], [90, 180]).share == pytest.approx(-0.10)


def test_every_request_of_the_worst_case_misses(models: Path) -> None:
    """Checks requirement TR8: the models take turns in a cache with room for one."""
    pytest.importorskip("onnxruntime")
    config = {"scenario": "server", "backend": "ort", "models": str(models), "mode": "performance"}
    found = misses.measure({"config": config, "threads": 1, "pairs": 4})
    assert found["hits"] == 0
    assert [len(found[name]) for name in ("plain_ns", "cached_ns")] == [4, 4]
    assert min(found["plain_ns"] + found["cached_ns"]) > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "1"], "--workers is for a set of models: pass --models FILE"),
        (
            ["--models", "set.yaml", "--rate", "1"],
            "--rate applies only to a sweep of rates, not of workers",
        ),
        (
            ["--models", "set.yaml", "--batch", "1"],
            "--batch applies only to a sweep of a grid, not of work",
        ),
        (
            ["--models", "set.yaml", "--instances", "2"],
            "--instances sets a single number of workers: sw",
        ),
        (
            ["--pairs", "3"],
            "--pairs applies only to a sweep of the workers of --models FILE: drop it",
        ),
    ],
)
def test_options_of_another_sweep_are_refused(
    words: list[str], line: str, models: Path, monkeypatch: pytest.MonkeyPatch, refuses: Said
) -> None:
    monkeypatch.chdir(models.parent)
    assert line in refuses("sweep", "--scenario", "server", *words)


@pytest.mark.slow
def test_a_sweep_of_workers_is_stored_shown_again_and_published(
    models: Path, tmp_path: Path, prints: Said
) -> None:
    """Checks requirement TR9. Bug: for a published run of a model set, `check` looked for the set's file."""
    pytest.importorskip("onnxruntime")
    net = tmp_path / "private/net.onnx"
    net.parent.mkdir()
    net.write_bytes((Path(misses.__file__).parents[1] / "shipped/digits.onnx").read_bytes())
    models.write_text(SET.replace("NET", str(net)) + "popularity: {law: zipf}\n")
    words = ["sweep", "--scenario", "server", "--models", str(models), "--workers", "1,2"]
    words += ["--duration", "500ms", "--slo", "p50=10s", "--pairs", "4", "--quiet"]
    shown = prints(*words, "--out", tmp_path / "s")
    content = json.loads((tmp_path / "s/workers.json").read_text())
    assert [row["workers"] for row in content["workers"]] == [1, 2]
    for row in content["workers"]:
        assert row["completed_per_s"] > 0
        assert row["p99_ns"] >= row["p50_ns"] > 0
        assert (tmp_path / "s" / row["folder"] / "result.json").is_file()
    assert "if every request misses, a load takes " in shown
    assert prints("sweep", "--from", tmp_path / "s") == shown
    one = tmp_path / "s" / content["workers"][0]["folder"]
    assert main(["report", str(one)]) == 0
    assert "Hit rate by capacity" in (one / "report.html").read_text()
    assert main(["publish", str(one), str(tmp_path / "public")]) == 0
    assert "private" not in (tmp_path / "public/model/set.yaml").read_text()
    assert main(["check", str(tmp_path / "public")]) == 0
