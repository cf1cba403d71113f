"""`sweep` over a grid: its options, runs, skipped cells, resumption, and its statements about cells."""

import csv
import json
import math
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.browse.index import Entry
from harness.browse.studies import summary
from harness.cli.main import main
from harness.core.config.parse import parse_price, words_of
from harness.core.extras import how_to_install
from harness.core.formats.strict_yaml import load_mapping
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.model import MODELS_DIR
from harness.models.network.network import Structure
from harness.models.precision.ways import PRECISIONS
from harness.results.numbers import Number
from harness.results.seal import digests
from harness.search.grid.cells.cells import Cell, Row, labels, spread
from harness.search.grid.cells.options import GridOptions, parse_batches
from harness.search.grid.job import _left_s
from harness.search.grid.same_network.divergence import divergence
from harness.search.grid.view import tables
from harness.search.grid.view.page import Look, _is_flat, all_points, articles, key, looks_of
from harness.search.grid.view.report import _in_words, headline
from harness.search.grid.view.view import View, stored_view, strangers
from tests.builders.edited import edit
from tests.builders.refusals import Said
from tests.builders.support import present
from tests.stand_ins.fake_grid import Calls, Runs, row

GRID = ("sweep", "--backend", "ort", "--threads", "1", "--duration", "1s", "--quiet")

Swept = Callable[..., tuple[int, Runs, Calls]]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Swept:
    def run(runs: Runs, *arguments: str, calls: Calls | None = None) -> tuple[int, Runs, Calls]:
        calls = calls or Calls(tmp_path)
        monkeypatch.setattr("harness.run.supervisor.job.measure", runs)
        monkeypatch.setattr("harness.search.grid.variants.call", calls)
        return main([*arguments, "--out", "grid"]), runs, calls

    return run


def rows() -> list[dict[str, str]]:
    with Path("grid/grid.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("1,2,4..64", (1, 2, 4, 8, 16, 32, 64)), ("8,1", (1, 8)), ("3..13", (3, 6, 12)), ("1", (1,))],
)
def test_batch_sizes_are_parsed(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_batches(text) == sizes


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_batches, text) for text in ("", "0", "4..2", "1,,2", "a", "1..", "70000")),
        *((words_of(PRECISIONS), text) for text in ("", "int4", "fp32,")),
        *((parse_price, text) for text in ("", "free", "0/h", "-1", "nan", "inf")),
    ],
)
def test_invalid_batch_sizes_are_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_every_cell_is_a_run_of_its_own(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    status, runs, calls = swept(Runs(), *GRID, "--precision", "fp32,int8")
    assert status == 0
    asked = [(c.max_batch, c.model_file is not None) for c in runs.configs]
    # Requirement LV4 asks for the batch sizes 1, 2 and 4.
    assert asked == [(b, int8) for b in (1, 2, 4) for int8 in (False, True)]
    assert {(c.scenario, c.mode, c.instances, c.threads) for c in runs.configs} == {
        ("offline", "both", 1, 1)
    }
    assert [t.rpartition(":")[2] for t in calls.targets] == ["probe", "make", "probe"]
    pinned = [c.model_sha256 for c in runs.configs]
    # The later cells use the digest that the first cell found.
    assert pinned == [None, None, *["a" * 64] * 4]
    found = rows()
    assert [r["accuracy"] for r in found] == ["99.2", "99.0"] * 3
    assert {"uncertainty", "jitter", "same_answers", "relative_l2", "not_ranked"} <= set(found[0])
    assert [r["relative_l2"] != "" for r in found] == [False, True] * 3  # checks requirement LV2
    out = capsys.readouterr().out
    # Checks requirement LV3.
    assert re.search(r"^int8 / fp32 +2\.00 +2\.00 +2\.00$", out, re.MULTILINE)
    maps = json.loads(Path("grid/heatmaps.json").read_text())["maps"]
    assert maps[0]["z"] == [[1000.0, 2000.0, 4000.0], [2000.0, 4000.0, 8000.0]]
    assert "no energy: no meter was requested" in out
    fastest = "8,000 samples/s with int8 batch 4"
    assert re.search(rf"^fastest +{fastest}$", out, re.MULTILINE)
    assert summary(Path.cwd(), Entry("grid", "", study="grid"))[1] == fastest
    # Bug: to serve the winner, a user had to copy lines out of the cell's config.yaml.
    assert "--config grid/fastest.yaml  # backend, model and data" in out
    winner = load_mapping(Path("grid/fastest.yaml"))
    assert (winner["backend"], winner["model"], winner["model_sha256"]) == (
        "ort",
        "digits",
        "a" * 64,
    )
    assert "int8" in winner["model_file"]
    assert not {"scenario", "threads", "max_batch", "duration", "queries"} & set(winner)


def test_stopped_grid_resumes(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    status, runs, _ = swept(Runs({2: ("interrupted", 130)}), *GRID, "--batch", "1,2,4")
    assert (status, len(runs.configs)) == (130, 2)
    assert "--resume grid continues it" in capsys.readouterr().err
    status, runs, calls = swept(Runs(), *GRID, "--batch", "1,2,4")
    assert (status, [c.max_batch for c in runs.configs]) == (0, [2, 4])
    # The model is not examined again, because the first command examined it.
    assert calls.targets == []
    assert runs.configs[0].model_sha256 == "a" * 64
    status, runs, _ = swept(Runs(), *GRID, "--batch", "1..8")  # a second command may extend an axis
    assert [c.max_batch for c in runs.configs] == [8]
    assert [r["batch"] for r in rows()] == ["1", "2", "4", "8"]


def test_ctrl_c_while_a_precision_is_made_stops_the_grid(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Calls):
        def __call__(self, target: str, *rest: Any) -> dict[str, Any]:
            if target.endswith(":make"):
                signal.raise_signal(signal.SIGINT)
            return super().__call__(target, *rest)

    arguments = (*GRID, "--batch", "1", "--precision", "fp32,int8")
    status, runs, _ = swept(Runs(), *arguments, calls=Interrupted(tmp_path))
    assert (status, len(runs.configs)) == (130, 1)
    assert "--resume grid continues it" in capsys.readouterr().err
    status, runs, _ = swept(Runs(), *arguments)
    assert (status, [c.model_file is not None for c in runs.configs]) == (0, [True])


def test_generated_model_is_made_before_it_is_read(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: when a grid used light/squeezenet for the first time, the message claimed that its file was missing."""
    pytest.importorskip("onnx")
    made: list[str] = []
    monkeypatch.setattr(
        "harness.search.grid.variants.obtain_model", lambda config, model: made.append(model.name)
    )
    arguments = ("sweep", "--model", "light/squeezenet", "--threads", "1", "--quiet")
    assert swept(Runs(), *arguments, "--batch", "1")[0] == 0
    assert made == ["light-squeezenet"]


def test_int8_calibrated_with_noise_is_not_used_for_real_data(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*GRID, "--batch", "1", "--precision", "fp32,int8")
    swept(Runs(), *arguments, "--data", "synthetic")
    _, runs, _ = swept(Runs(), *arguments, "--data", "real")
    assert [c.model_file for c in runs.configs] == [None]
    told = "this grid has int8 for synthetic data, but real data need int8 calibrated"
    assert told in capsys.readouterr().out


def test_time_left_counts_only_cells_that_take_time(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [a for a in GRID if a != "--quiet"]
    swept(Runs(), *arguments, "--batch", "1,2", "--precision", "bf16,fp32")
    told = capsys.readouterr().err
    assert "cell 1 of 4: digits ort bf16 real threads 1 batch 1: absent: " in told
    assert told.count(" s left") == 3
    every = [row(batch=b, precision=p).cell for b in (1, 2) for p in ("bf16", "fp32")]
    # One cell took all the time so far, and one cell is left.
    assert _left_s(every, 2, 10.0) == 10.0
    assert _left_s(every, 3, 10.0) == 10.0
    assert _left_s(every, 4, 20.0) == 0.0


def test_resume_takes_everything_from_the_folder(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, prints: Said, refuses: Said
) -> None:
    swept(Runs({2: ("interrupted", 130)}), *GRID, "--batch", "1,2")
    runs = Runs()
    monkeypatch.setattr("harness.run.supervisor.job.measure", runs)
    prints("sweep", "--resume", "grid", "--quiet")
    assert [(c.max_batch, c.threads, c.duration_ns) for c in runs.configs] == [(2, 1, 10**9)]
    told = "--resume takes all options from its folder: drop --batch"
    assert told in refuses("sweep", "--resume", "grid", "--batch", "4")
    assert refuses("sweep", "--resume", "nowhere") == "nowhere does not exist"


def test_stored_sweep_that_is_missing_is_not_called_a_grid(refuses: Said) -> None:
    """Bug: `sweep --from` asked for the folder of a grid, although the folder did not exist."""
    assert refuses("sweep", "--from", "nowhere") == "nowhere does not exist"
    Path("here").mkdir()
    told = "here contains no result of `sweep`: pass a folder that `sweep` wrote"
    assert refuses("sweep", "--from", "here") == told
    Path("file").touch()
    told = "file is not a folder: pass a folder that `sweep` wrote"
    assert refuses("sweep", "--from", "file") == told


def test_resume_names_the_code_of_the_folder_first(
    swept: Swept, capsys: pytest.CaptureFixture[str], refuses: Said
) -> None:
    """Bug: `sweep --resume` ran the plug-ins of a folder that may come from someone else."""
    swept(Runs(), *GRID, "--batch", "1")
    edit(Path("grid/grid.json"), lambda c: c["axes"].update(backend=["here.py:Mine", "null"]))
    edit(Path("grid/grid.json"), lambda c: c["config"].update(dataset="there.py:Mine"))
    capsys.readouterr()
    here, there = (f"{Path.cwd()}/{name}.py:Mine" for name in ("here", "there"))
    assert refuses("sweep", "--resume", "grid", "--trust", "there.py:Mine") == (
        f"--resume grid names code, the backend {here}: read it, and add "
        f"--trust {here} if it may run here"
    )
    assert f"the dataset {there}: read it" in refuses("sweep", "--resume", "grid", "--trust", here)


def test_resume_announces_the_code_that_runs(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: unlike every other verb, `sweep` did not report which code from a folder would run."""
    swept(Runs(), *GRID, "--batch", "1")
    Path("mine.py").write_text("from harness.datasets.digits import DigitsDataset as Mine\n")
    edit(Path("grid/grid.json"), lambda c: c["config"].update(dataset="mine.py:Mine"))
    digests.write(Path("grid"))
    monkeypatch.setattr("harness.run.supervisor.job.measure", Runs())
    capsys.readouterr()
    words = ["sweep", "--resume", "grid", "--trust", f"{Path.cwd()}/mine.py:Mine"]
    assert main(words) == 0
    announced = f"running code that --resume grid names: the dataset {Path.cwd()}/mine.py:Mine"
    assert capsys.readouterr().err == f"harness: {announced}\n"
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_tables_that_are_made_again_keep_the_seal(swept: Swept) -> None:
    swept(Runs(), *GRID, "--batch", "1,2")
    assert main(["sweep", "--from", "grid", "--price", "2/h"]) == 0
    assert list(digests.differences(Path("grid"))) == []
    Path("grid/grid.json").write_text(Path("grid/grid.json").read_text() + "\n")
    (line,) = digests.differences(Path("grid"))
    assert line.startswith("grid/grid.json was changed")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("axes", {"precision": ["../../elsewhere"]}, "its axes cannot be read: '../../elsewhere'"),
        (
            "axes",
            {"model": [3]},
            "its axes cannot be read: a model, backend or shape is not a string",
        ),
        ("axes", {"batch": [1.5]}, "its axes cannot be read: a batch or number of threads is"),
        ("precisions", {"digits int8": None}, "grid: its files do not fit together: TypeError"),
    ],
)
def test_changed_folder_is_reported_in_one_line(
    name: str,
    value: object,
    told: str,
    swept: Swept,
    capsys: pytest.CaptureFixture[str],
    refuses: Said,
) -> None:
    swept(Runs(), *GRID, "--batch", "1")
    edit(Path("grid/grid.json"), lambda c: c[name].update(value))
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    for verb in ("--from", "--resume") if name == "axes" else ("--from",):
        assert told in refuses("sweep", verb, "grid")
    assert sorted(Path().rglob("*")) == before


def test_another_configuration_needs_another_folder(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(Runs(), *GRID, "--batch", "1")
    assert swept(Runs(), *GRID, "--batch", "1", "--seed", "3")[0] == 2
    told = "harness: grid is a grid with a different seed: pass a different --out\n"
    assert capsys.readouterr().err.endswith(told)


def test_every_table_again_from_stored_files_alone(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prints: Said
) -> None:
    swept(Runs(), *GRID, "--precision", "fp32,int8", "--data", "real,synthetic")
    first = capsys.readouterr().out
    made = ("grid.csv", "heatmaps.json", "grid.html")
    tables_then = {n: Path("grid", n).read_bytes() for n in made}
    for name in tables_then:
        Path("grid", name).unlink()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr("harness.run.supervisor.job.measure", refuse)
    monkeypatch.setattr("harness.search.grid.variants.call", refuse)
    assert prints("sweep", "--from", "grid") == first
    assert {n: Path("grid", n).read_bytes() for n in tables_then} == tables_then
    out = prints("sweep", "--from", "grid", "--accuracy-floor", "99.1", "--price", "3.6/h")
    # Requirement LV17 asks for the fastest cell that has this score and takes one sample at a time. A price of 3.60 per
    # hour is 0.001 per second, or 0.001 per 1,000 samples at 1,000/s.
    assert "fastest with" not in out  # these runs have no journal, so their latency is unknown
    as_json = prints("sweep", "--from", "grid", "--json")
    assert len(json.loads(as_json)["cells"]) == 12
    assert prints("sweep", "--from", "grid", "--json") == as_json


def test_one_heat_map_per_number_has_a_row_for_each_way_to_run_the_model(swept: Swept) -> None:
    """Bug: a grid of two frameworks and two thread counts had eight maps, too many to compare at a glance."""
    swept(Runs(), *GRID, "--precision", "fp32,int8", "--batch", "1,2", "--threads", "1,2")
    (shown,) = articles(stored_view(Path("grid"), GridOptions()))
    maps = [figure for figure in shown.figures if "z" in figure.data[0]]
    assert len({figure.title for figure in maps}) == len(maps)
    throughput = next(figure.data[0] for figure in maps if figure.title == "Throughput, samples/s")
    rows = ["fp32, 1 thread", "int8, 1 thread", "fp32, 2 threads", "int8, 2 threads"]
    assert throughput["y"] == rows
    assert [len(row) for row in throughput["z"]] == [2] * 4


@pytest.mark.parametrize(("most", "is_log"), [(5.0, False), (50.0, True)])
def test_a_heat_map_marks_its_best_cell_and_may_have_logarithmic_colours(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, most: float, *, is_log: bool
) -> None:
    """Bug: one large value made all other cells pale."""
    swept(Runs(), *GRID, "--batch", "1,2", "--threads", "1,2")
    view = stored_view(Path("grid"), GridOptions())
    content = next(one for one in view.heat_maps() if one["number"].startswith("throughput"))
    content = {**content, "batch": [1, 2], "precision": ["fp32"], "z": [[1.0, most]]}
    monkeypatch.setattr(View, "heat_maps", lambda _: [content])
    (article,) = articles(view)
    shown = article.figures[0]
    assert ("Logarithmic" in shown.about) is is_log
    assert shown.data[0]["zmax"] == (math.log10(most) if is_log else most)
    assert shown.data[0]["hovertemplate"].endswith(": %{text} samples/s<extra></extra>")
    (border,) = shown.layout["shapes"]
    assert [border[edge] for edge in ("x0", "x1", "y0", "y1")] == [0.5, 1.5, -0.5, 0.5]
    assert "a border marks the best cell" in "".join(article.head)


def test_unsupported_precision_is_absent_with_its_reason(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    status, runs, _ = swept(Runs(), *GRID, "--batch", "1", "--precision", "fp32,bf16")
    assert (status, len(runs.configs)) == (0, 1)
    out = capsys.readouterr().out
    assert "absent: digits ort bf16: ONNX Runtime's CPU provider has no bfloat16 kernels" in out
    assert [r["absent"] != "" for r in rows()] == [False, True]


def test_a_cell_that_cannot_be_run_does_not_end_the_others(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: dict[int, Any] = {
        1: ConfigError("too large"),
        2: ("died", 5),
        3: ("accuracy-below-target", 4),
    }
    status, runs, _ = swept(Runs(ends), *GRID, "--batch", "1..8")
    assert (status, len(runs.configs)) == (0, 4)
    assert [r["absent"] for r in rows()] == ["too large", "died it is", "", ""]
    out = capsys.readouterr().out
    assert "not ranked: batch 4: INVALID: accuracy-below-target" in out
    assert "optimal batch" not in out  # the batch has no optimum, because only one cell is left
    _, again, _ = swept(Runs(), *GRID, "--batch", "1..8")
    # The INVALID run is not repeated, because an INVALID run is also a result.
    assert [c.max_batch for c in again.configs] == [1, 2]


def test_grid_without_a_runnable_cell_leaves_nothing(swept: Swept) -> None:
    wrong = ConfigError("no such data")
    assert swept(Runs({1: wrong, 2: wrong}), *GRID, "--batch", "1,2")[0] == 2
    assert not Path("grid").exists()


def test_status_is_3_if_every_cell_lacks_a_plugin(swept: Swept) -> None:
    wrong = PluginUnavailable("backend 'ort' needs the module 'onnxruntime'")
    assert swept(Runs({1: wrong, 2: wrong}), *GRID, "--batch", "1,2")[0] == 3
    assert not Path("grid").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--scenario", "server", "--batch", "1"), "use `sweep --rate` for server"),
        (("--scenario", "single-stream", "--batch", "1,2"), "add --batch 1"),
        (("--batch", "1", "--max-batch", "4"), "a grid takes --batch in place of --max-batch: drop --max-batch"),
        (("--batch", "1", "--backend-option", "precision=f32"), "a grid takes --precision in place of --backend-option precision: drop"),
        (("--batch", "1", "--rate", "10..20"), "--rate applies only to a sweep of rates"),
        (("--precision", "int8", "--mode", "performance"), "drop --mode performance"),
        (("--batch", "1", "--calibration-dir", "x"), "--calibration-dir is for int8"),
        (("--input-shape", "image=1x1x8x8/1x1x16x16"), "add --data synthetic"),
        (("--batch", "1", "--input-range", "image=0:1"), "--input-range is for synthetic data: add --data synthetic"),
        (("--threads", "1,a"), "--threads: 'a' is not a whole number"),
        (("--backend", "ort,ortt"), "no backend named 'ortt': did you mean 'ort'?"),
        (("--model", "digits,digit"), "no model named 'digit'"),
        (("--model", "digits", "--ops", "gemm"), "--ops replaces --model"),
        (("--from", "x", "--batch", "1"), "--from takes all options from its folder"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_a_line(arguments: tuple[str, ...], told: str, refuses: Said) -> None:
    assert told in refuses("sweep", *arguments)
    assert list(Path().iterdir()) == []


def test_a_network_of_the_same_name_is_not_ranked(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requirements LV5 and LV8: the networks have the same name but different structures."""
    calls = Calls(tmp_path, {"int8": [16, 48]})
    swept(Runs(), *GRID, "--precision", "fp32,int8", calls=calls)
    out = capsys.readouterr().out
    assert "another network of the same name: 2 weight tensors with 64 weights, not 2" in out
    assert "int8 / fp32" not in out


def cell(**values: Any) -> Cell:
    return row(**values).cell.variant


def test_network_of_unknown_structure_is_not_ranked_across_frameworks() -> None:
    net = Structure((16, 32), ("float32",))
    unknown: dict[Cell, Structure | str] = {
        cell(): net,
        cell(backend="litert"): "no reader",
        cell(precision="fp16"): "no reader",
    }
    (found,) = strangers(unknown)
    assert found[0].backend == "litert"
    mislabelled = {cell(): Structure((16, 32), ("int8",))}
    assert [why for _, why in strangers(mislabelled)] == ["its weights are int8, not fp32"]


def test_doubling_the_optimal_batch_gains_at_most_five_percent() -> None:
    speeds = {1: 100, 2: 190, 4: 300, 8: 315, 16: 400}
    (best,) = tables.optimal_batches([row(batch=b, throughput_per_s=s) for b, s in speeds.items()])
    assert (best.optimal, best.throughput_per_s) == (4, 300)
    (best,) = tables.optimal_batches([row(batch=b, throughput_per_s=10.0 * b) for b in (1, 2, 4)])
    assert (best.optimal, best.largest) == (None, 4)
    (best,) = tables.optimal_batches([row(batch=b, throughput_per_s=100.0) for b in (1, 3)])
    assert best.optimal == 1


def optimum(speeds: Mapping[int, float], uncertainty: float) -> tuple[int | None, bool]:
    given = [row(batch=b, throughput_per_s=s, uncertainty=uncertainty) for b, s in speeds.items()]
    (best,) = tables.optimal_batches(given)
    return best.optimal, best.unsure


def test_one_slow_run_does_not_end_the_search_for_the_optimal_batch() -> None:
    """Bug: because of a dip at batch 2, 1 was reported as the optimum of a model that is four times as fast at 16."""
    dipped = {1: 100.0, 2: 103.0, 4: 300.0, 8: 390.0, 16: 400.0}
    assert optimum(dipped, 0.0) == (1, False)
    assert optimum(dipped, 0.03) == (8, True)
    # Nothing shows which of the two batches is better, so the smaller one is chosen.
    assert optimum({1: 100.0, 2: 104.0}, 0.03) == (1, True)
    assert optimum({1: 100.0, 2: 80.0, 4: 81.0}, 0.01) == (1, False)
    assert optimum({1: 100.0, 2: 112.0, 4: 200.0, 8: 400.0}, 0.05) == (None, False)


def test_the_table_marks_an_optimum_within_the_noise(
    swept: Swept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsure(rows: Sequence[Row]) -> list[tables.Best]:
        return [found._replace(unsure=True) for found in optimal(rows)]

    optimal = tables.optimal_batches
    monkeypatch.setattr(tables, "optimal_batches", unsure)
    swept(Runs(), *GRID, "--batch", "2,4,8")
    told = capsys.readouterr().out
    title = "optimal batch: doubling it gives 5 % or less (~ within the noise)"
    assert re.search(rf"{re.escape(title)}\n +batch  samples/s\nall +~4 ", told)


def test_two_networks_of_one_name_are_distinguished_and_named(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Two(Calls):
        def __call__(self, target: str, request: Mapping[str, Any], log: Path) -> dict[str, Any]:
            self.weights = {"fp32": [16, 32 if "/a/" in request["config"]["model"] else 64]}
            return super().__call__(target, request, log)

    for folder in "ab":
        (tmp_path / folder).mkdir()
        shutil.copy(MODELS_DIR / "digits.onnx", tmp_path / folder / "net.onnx")
    swept(Runs(), *GRID, "--batch", "1", "--model", "a/net.onnx,b/net.onnx", calls=Two(tmp_path))
    told = capsys.readouterr().out
    assert (
        "doubt: a/net and b/net are different networks of the same name: 2 weight tensors" in told
    )
    assert {line.split()[0] for line in told.splitlines() if " VALID" in line} == {"a/net", "b/net"}


def test_labels_are_as_short_as_they_can_be() -> None:
    assert labels(("/x/a/net.onnx", "/y/a/net.onnx", "/y/b/other.onnx", "zoo/resnet50_v1.5")) == {
        "/x/a/net.onnx": "x/a/net",
        "/y/a/net.onnx": "y/a/net",
        "/y/b/other.onnx": "other",
        "zoo/resnet50_v1.5": "resnet50_v1.5",
    }
    both = labels(("digits", "/x/digits.onnx"))
    assert both["/x/digits.onnx"] == "x/digits"
    assert both["digits"] == "digits"


def test_missing_tool_is_reported_before_anything_is_measured(
    swept: Swept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the output was 'making int8 (onnx), once', followed by the message that the module is missing."""

    class Without(Calls):
        def __call__(self, target: str, request: Mapping[str, Any], log: Path) -> dict[str, Any]:
            if target.endswith(":make"):
                raise PluginUnavailable("int8 is made with the module 'onnx'")
            return super().__call__(target, request, log)

    monkeypatch.setattr("harness.models.precision.onnx.find_spec", lambda _module: None)
    loud = [a for a in GRID if a != "--quiet"]
    words = (*loud, "--batch", "1", "--precision", "fp32,int8")
    assert swept(Runs(), *words, calls=Without(Path()))[0] == 0
    told = capsys.readouterr().err.splitlines()
    missing = f"ort int8 cannot be created here: int8 is made with the module 'onnx': {how_to_install('onnx')}"
    assert missing in told[0]
    assert not any("making int8" in line for line in told)
    assert any("cell 2 of 2" in line and "absent: int8 is made with" in line for line in told)


def test_a_precision_is_compared_with_fp32_of_the_same_setting_only() -> None:
    lines = tables.precision_gain(
        [
            row(batch=1, throughput_per_s=100.0),
            row(batch=4, throughput_per_s=300.0),
            row(batch=1, precision="int8", throughput_per_s=150.0),
            row(batch=4, precision="int8", throughput_per_s=900.0),
            row(batch=1, precision="int8", backend="openvino", throughput_per_s=1.0),
        ]
    )
    assert [(line.of, line.values) for line in lines] == [("int8 / fp32", {1: 1.5, 4: 3.0})]
    assert lines[0].unsure == frozenset()


def test_ratio_within_the_noise_is_marked_as_unsure() -> None:
    pair = [
        row(throughput_per_s=100.0, uncertainty=0.1, batch_p50_ns=10.0),
        row(throughput_per_s=120.0, uncertainty=0.1, batch_p50_ns=5.0, precision="int8"),
    ]
    (line,) = tables.precision_gain(pair)
    assert dict(line.values) == {1: 1.2}
    assert line.unsure == frozenset({1})
    (line,) = tables.median_gain(pair)
    assert dict(line.values) == {1: 2.0}
    assert line.unsure == frozenset()


def test_only_comparable_cells_are_ranked() -> None:
    given = [
        row(),
        row(batch=2, verdict="INVALID", reasons=("died",)),
        row(batch=4, fixed_batch=1),
        row(batch=8, precision="int8", no_accuracy="no labels"),
        row(batch=16, absent="not here"),
    ]
    why_not = tables.reasons(given, {}, scored=True)
    assert [one for one in given if one.cell not in why_not] == given[:1]
    assert why_not[given[3].cell].endswith("its accuracy is not known: no labels")


def test_operators_are_rated_by_their_work_per_second() -> None:
    """Checks requirement LV14."""
    about = {"flop_per_sample": 3e6, "about": "an operator"}
    empty: Any = {name: {} for name in ("structures", "same_answers", "divergences")}
    view = View(content={"ops": {"net": about}}, options=GridOptions(), rows=(), **empty)
    assert view.gflop_per_s(row(batch=4, forward_least_ns=1000)) == 12_000
    assert view.gflop_per_s(row(model="other", forward_least_ns=1000)) is None
    assert view.gflop_per_s(row()) is None


def test_a_grid_ends_with_its_fastest_cell() -> None:
    empty: Any = {name: {} for name in ("structures", "same_answers", "divergences")}

    def of(*cells: Row, models: tuple[str, ...] = ("net",)) -> str:
        content = {"axes": {"model": list(models)}}
        return headline(View(content=content, options=GridOptions(), rows=cells, **empty))

    slow, fast = row(), row(batch=8, throughput_per_s=300.0, uncertainty=0.01)
    assert of(slow, fast) == "300 samples/s with batch 8"
    near = row(batch=4, throughput_per_s=295.0)
    assert of(slow, near, fast) == "300 samples/s with batch 8; perhaps as fast: batch 4"
    assert of(fast) == "300 samples/s"
    assert of() == ""
    other = row(model="other", throughput_per_s=200.0)
    # Bug: a grid of several models had no headline.
    both = of(slow, fast, other, models=("net", "other"))
    assert both == "net: 300 samples/s with batch 8; other: 200 samples/s with batch 1"


def test_the_fastest_are_those_that_score_enough() -> None:
    good = row(accuracy=99.0, target=98.5, metric="top1", batch_p50_ns=2e6)
    fast = row(accuracy=98.0, target=98.5, precision="int8", batch_p50_ns=1e6)
    large = row(accuracy=99.0, target=98.5, batch=8, batch_p50_ns=1e6)
    assert tables.fast_enough([good, fast, large], None) == [good]
    assert tables.fast_enough([good, fast, large], 97.0) == [fast, good]
    assert tables.fast_enough([row(batch_p50_ns=1e6)], 1.0) == []


def test_front_holds_the_cells_that_no_other_beats() -> None:
    slow = row(accuracy=99.0, batch_p50_ns=2e6, throughput_per_s=100.0)
    fast = row(accuracy=98.0, precision="int8", batch_p50_ns=1e6, throughput_per_s=200.0)
    worse = row(accuracy=98.0, precision="fp16", batch_p50_ns=3e6, throughput_per_s=90.0)
    assert tables.front([slow, fast, worse]) == {slow.cell: None, fast.cell: None, worse.cell: slow}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(14_925.3, "samples/s"), "14,925 samples/s"),
        (Number(0.0415, "ms"), "41.5 us"),
        (Number(112.68, "MB"), "112.7 MB"),
    ],
)
def test_the_front_states_the_numbers_of_its_cells(number: Number, text: str) -> None:
    assert _in_words(number) == text


def test_memory_that_hardly_differs_is_not_plotted() -> None:
    """Bug: an axis from 112.5 to 115 MB made a difference of 2 % look like a cliff."""
    assert _is_flat([112.5, 113.0, 115.0])
    assert not _is_flat([112.5, 120.0])


def test_lines_of_a_framework_have_one_colour() -> None:
    """Bug: eight lines had eight colours, and nothing showed which lines belonged to the same framework."""
    frameworks, precisions, threads = ("ort", "openvino"), ("fp32", "int8"), ("1", "2")
    ways = {" ".join(way): way for way in product(frameworks, precisions, threads)}
    looks = looks_of(ways)
    assert looks["ort fp32 1"] == Look("ort", "solid", "circle")
    assert looks["ort int8 1"] == Look("ort", "dash", "circle")
    assert looks["openvino fp32 2"] == Look("openvino", "solid", "square")
    assert len(set(looks.values())) == len(ways)
    # Bug: the legend had an entry for each of the eight lines.
    entries = {trace["name"]: trace for trace in key(ways)}
    assert [*entries] == ["ort", "openvino", "fp32", "int8", "1", "2"]
    assert entries["openvino"]["legendgroup"] == "openvino"
    assert entries["int8"]["line"]["dash"] == "dash"
    assert entries["2"]["marker"]["symbol"] == "square"


def test_more_lines_than_colours_have_shapes_of_their_own() -> None:
    """Bug: two lines had the same colour and shape, and the legend showed the marker of a beaten point for a line on
    the front.
    """
    number = Number(1.0, "ms")
    cells = {f"line {n}": row(batch=n) for n in range(1, 10)}
    beaten = {one.cell: one.batch == 2 for one in cells.values()}
    lines = {name: [(one, number, number)] for name, one in cells.items()}
    drawn = list(all_points(lines, beaten, {name: (name,) for name in cells}))
    points = [trace for trace in drawn if not trace.get("showlegend", True)]
    entries = [(trace["name"], trace["marker"]["symbol"]) for trace in drawn if trace not in points]
    symbols = [trace["marker"]["symbol"][0] for trace in points]
    assert symbols == ["circle", "circle-open", *["circle"] * 6, "square"]
    assert entries[1] == ("line 2", "circle")
    assert entries[8] == ("line 9", "square")
    assert entries[-2:] == [("on the front", "circle"), ("beaten", "circle-open")]


def test_a_constant_series_has_no_uncertainty_and_no_jitter() -> None:
    assert spread(np.full(50, 7.0)) == (0.0, 0.0)  # checks requirement LV13
    assert spread(np.array([7.0])) == (None, None)
    uncertainty, jitter = spread(1 / np.array([9.0, 11.0, 9.0, 11.0]))
    assert uncertainty == pytest.approx(np.std([9, 11, 9, 11], ddof=1) / 2 / 10)
    assert jitter == pytest.approx(1.4826 * 1 / 10)
    stalled = np.full(400, 10.0)
    stalled[200] = 2000.0  # other programs delayed this batch
    uncertainty, jitter = spread(stalled)
    assert jitter == 0.0
    assert present(uncertainty) > 0.04


def test_outputs_diverge_by_as_much_as_they_differ() -> None:
    a = np.array([[1.0, 0.0], [0.0, 2.0]])
    same = present(divergence(a, a))
    assert (same.relative_l2, same.js_bits, same.top1) == (0.0, 0.0, 1.0)  # checks requirement MS11
    other = present(divergence(a, a[::-1]))
    assert other.relative_l2 == pytest.approx(np.sqrt(10) / np.sqrt(5))
    assert 0 < present(other.js_bits) <= 1
    assert other.top1 == 0.0
    assert divergence(a[:, :, None, None], a[::-1, :, None, None]) == other
    assert divergence(a, a[:1]) is None
    assert divergence(a, a * np.nan) is None


def test_a_missing_tool_is_a_reason(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    ends = {2: PluginUnavailable("backend 'ort' needs the module 'onnxruntime'")}
    assert swept(Runs(ends), *GRID, "--batch", "1,2")[0] == 0
    assert "needs the module 'onnxruntime'" in capsys.readouterr().out
