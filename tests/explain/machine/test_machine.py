"""The verb `machine`: small plug-ins, a filter, stored files, and processes that die."""

import json
from pathlib import Path

import pytest

from harness.cli.explain import machine
from harness.core import registry
from harness.errors import ConfigError
from harness.explain.machine import page, record, tables
from harness.explain.machine.job import REPORT
from harness.machine.characterise import session
from harness.machine.characterise.database import Database
from harness.results import run_folder
from harness.results.pages.tables import show_cell
from harness.results.run_folder import PROGRESS
from tests.builders.refusals import Said

FILL = """
from contextlib import contextmanager
from functools import partial

import numpy as np

from harness.types import Point, Ready


class Fill:
    about = "one value written into an array"

    def points(self, threads):
        for size in (2**12, 2**20):
            yield Point(settings={"bytes": size}, open=partial(self._ready, size), work=size, unit="B")

    @contextmanager
    def _ready(self, size):
        array = np.ones(size, np.uint8)
        yield Ready(partial(array.fill, 7), facts={"first_value": int(array[0])})
"""
DYING = """
import os
from contextlib import contextmanager

from harness.types import Point, Ready


class Dying:
    about = "the second point ends its process, the third one cannot be made ready"

    def points(self, threads):
        for number in range(4):
            yield Point(settings={"number": number}, open=lambda n=number: self._ready(n))

    @contextmanager
    def _ready(self, number):
        if number == 1:
            os.abort()
        if number == 2:
            raise RuntimeError("no such operation")
        yield Ready(lambda: None)
"""
QUICK = ("--point-time", "3ms", "--repeats", "3", "--quiet")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fill.py").write_text(FILL)
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.chdir(tmp_path)


def test_a_benchmark_of_twenty_lines_is_listed_filtered_and_measured(prints: Said) -> None:
    """Checks requirements CS7 and CS6."""
    assert len(FILL.strip().splitlines()) <= 20
    assert prints(
        "machine", "--benchmark", "fill.py:Fill", "--list", "--filter", "Fill.*1048"
    ).split() == ["fill.py:Fill:", "1", "point", "fill.py:Fill/1048576"]
    shown = prints(
        "machine", "--benchmark", "fill.py:Fill", "--filter", "^fill", "--out", "r", *QUICK
    )
    assert "CV" in shown
    assert "first value" in shown
    content = REPORT.read(Path("r"))
    assert [*content["points"]] == ["fill.py:Fill/4096", "fill.py:Fill/1048576"]
    assert len(content["fingerprint"]) == 16
    assert "GB = 10^9 B" in content["units"]


def test_stored_files_and_the_database_give_the_same_numbers_again(prints: Said) -> None:
    words = ["--benchmark", "fill.py:Fill", "--filter", "^fill", *QUICK]
    first = json.loads(prints("machine", *words, "--out", "r", "--json"))
    assert json.loads(prints("machine", "--from", "r", "--json")) == first
    assert (
        json.loads(prints("machine", *words, "--missing", "--out", "s", "--json"))["points"]
        == first["points"]
    )
    point = first["points"]["fill.py:Fill/4096"]
    assert point["per_s"] == pytest.approx(4096 / point["median_ns"] * 1e9)
    assert len(point["repetitions_ns"]) == 3


def test_a_measurement_in_progress_notes_its_point_for_browse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: the live page of `machine` had neither a bar nor the time left."""
    noted: list[tuple[str, float | None]] = []

    def note(folder: Path, text: str, begun_s: float, left_s: float | None) -> None:
        write(folder, text, begun_s, left_s)
        assert (folder / PROGRESS).is_file()
        noted.append((text, left_s))

    write = run_folder.note_progress
    monkeypatch.setattr(run_folder, "note_progress", note)
    assert machine(["--benchmark", "fill.py:Fill", "--filter", "^fill", "--out", "r", *QUICK]) == 0
    first, *_, last = noted
    assert first == ("point 1 of 2: fill.py:Fill/4096", None)
    assert last[0].startswith("point 2 of 2: fill.py:Fill/1048576, about")
    assert not (Path("r") / PROGRESS).exists()


def test_an_error_before_the_first_point_leaves_nothing() -> None:
    """Bug: a folder with only progress.json stayed."""

    def fail() -> None:
        with REPORT.measuring(Path("m"), "b", "s") as new:
            run_folder.note_progress(new.path, "point 1 of 2: x", 0.0, None)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not Path("m.partial").exists()


def test_a_point_is_in_its_file_before_the_database_may_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: if the disk of the database was full, the point that had just been measured was lost."""

    def full(*_: object) -> None:
        raise ConfigError("machine.sqlite cannot be used: database or disk is full")

    monkeypatch.setattr(Database, "add", full)
    with pytest.raises(ConfigError, match="is full"):
        machine(["--benchmark", "fill.py:Fill", "--filter", "^fill", "--out", "r", *QUICK])
    assert [*REPORT.read(Path("r.partial"))["points"]] == ["fill.py:Fill/4096"]


def test_a_point_that_kills_its_process_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        machine(["--benchmark", "dying.py:Dying", "--filter", "Dying", "--out", "r", *QUICK]) == 0
    )
    first, second, third, last = record.points(REPORT.read(Path("r")))
    assert first.median_ns
    assert last.median_ns
    assert second.missing.startswith("the process died, status -6: see ")
    assert third.missing == "RuntimeError: no such operation"
    assert "Not measured" in capsys.readouterr().out


def test_a_point_that_hangs_is_ended_and_its_library_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: OpenVINO hung at its first point with two threads, and the verb hung with it."""
    monkeypatch.setattr(session, "LIMIT_S", 3.0)
    Path("hanging.py").write_text(DYING.replace("os.abort()", "__import__('time').sleep(600)"))
    words = ["--benchmark", "hanging.py:Dying", "--filter", "Dying", "--out", "r", *QUICK]
    assert machine(words) == 0
    first, second, *others = record.points(REPORT.read(Path("r")))
    assert first.median_ns
    assert second.missing == "no result after 3 s, status -9: see libraries.log"
    assert [one.missing for one in others] == [f"left out: {second.name} hung"] * 2


def test_points_skipped_by_the_time_limit_are_measured_with_missing() -> None:
    words = ["--benchmark", "fill.py:Fill", "--filter", "^fill", "--point-time", "400ms", "--quiet"]
    # Status 4 means that the time limit allowed no point to start.
    assert machine([*words, "--within", "50ms", "--out", "r"]) in (0, 4)
    points = record.points(REPORT.read(Path("r")))
    assert len(points) == 2
    assert points[1].missing == session.OUT_OF_TIME
    assert machine([*words, "--missing", "--out", "s"]) == 0
    assert all(one.median_ns for one in record.points(REPORT.read(Path("s"))))


def test_the_largest_products_come_last_so_that_they_are_omitted_first() -> None:
    benchmarks = [name for name, _ in registry.rows("benchmark")]
    groups = session._groups(list(session.planned(benchmarks, 2)))
    for group in groups:
        work = [one.point.work for one in group if one.point.unit == "FLOP"]
        assert work == sorted(work)
    assert len({(one.library, one.point.threads) for group in groups for one in group}) == len(
        groups
    )


def test_a_filter_that_matches_nothing_suggests_list() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^--filter 'gemmm' matches none of the \d+ points: choose from the names that --list",
    ):
        machine(["--filter", "gemmm"])
    with pytest.raises(ConfigError, match=r"^--filter: '\(' is not a regular expression: "):
        machine(["--filter", "("])


def test_copies_show_warm_and_evicted_rates_with_their_spread(prints: Said) -> None:
    """Checks requirement CS1: a copy of 256 KiB is at least twice as fast if the data are in the caches."""
    words = ["--filter", "memory-copy/262144/", "--point-time", "400ms", "--quiet"]
    assert "evicted std" in prints("machine", *words, "--out", "r")
    content = REPORT.read(Path("r"))
    (copies,) = [t for t in tables.tables(content) if t.key == "memory-copy"]
    (row,) = copies.to_json()["rows"]
    assert row["warm_/_evicted_ratio"] > 0
    warm, evicted = record.points(content)
    # The test compares the fastest calls, because other programs do not delay them.
    assert (warm.peak_per_s or 0) >= 2 * (evicted.peak_per_s or 0)
    assert None not in (warm.std_per_s, evicted.std_per_s)
    assert row["std_B_per_s"] == warm.std_per_s
    assert row["evicted_std_B_per_s"] == evicted.std_per_s
    assert show_cell(2.5e9, "B/s") == "2.5 GB/s"  # a GB is 10^9 bytes, not 2^30 bytes


def test_the_page_is_made_again_from_the_stored_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Checks requirement CS7: the stored JSON file is enough to make the page."""
    pytest.importorskip("plotly")
    words = [
        "--filter",
        "^(memory-copy/(4096|262144)/|first-touch/(65536|1048576)/|transport/.*/(1024|65536)$|reduction/.*/(16|64)$)",
    ]
    assert machine([*words, "--out", "r", *QUICK]) == 0
    written = Path("r/machine.html")
    first = written.read_text()
    written.unlink()
    assert machine(["--from", "r"]) == 0
    assert written.read_text() == first
    for title in ("Copies", "First touch", "Round trips", "Reduction", "GB = 10⁹"):
        assert title in first
    assert str(written) in capsys.readouterr().out


def test_a_curve_of_one_point_is_not_drawn() -> None:
    """Bug: with --within 60s, the page contained an empty plot of copies and round trips at only one size."""
    pytest.importorskip("plotly")
    words = ["--filter", "^(memory-copy/4096/|transport/.*/1024$|scan/.*/16$)"]
    assert machine([*words, "--out", "r", *QUICK]) == 0
    content = REPORT.read(Path("r"))
    assert {point.benchmark for point in record.points(content)} >= {"memory-copy", "transport"}
    assert list(page.figures(content)) == []


def test_machines_are_compared_side_by_side(
    capsys: pytest.CaptureFixture[str], prints: Said
) -> None:
    assert machine(["--filter", "memory-copy/67108864/warm", "--out", "a", *QUICK]) == 0
    content = json.loads(Path("a/machine.json").read_text())
    content["fingerprint"] = "0123456789abcdef"
    for point in content["points"].values():
        point["repetitions_ns"] = [ns / 2 for ns in point["repetitions_ns"]]
        point["fastest_ns"] /= 2
    Path("b").mkdir()
    Path("b/machine.json").write_text(json.dumps(content))
    capsys.readouterr()
    shown = json.loads(prints("machine", "a", "b", "--json"))
    assert [row["side"] for row in shown["sides"]["rows"]] == ["A", "B"]
    assert all(row["B_/_A_ratio"] == pytest.approx(2) for row in shown["peaks"]["rows"])
    assert all(row["speed_B_/_A_ratio"] == pytest.approx(2) for row in shown["points"]["rows"])
    assert "one machine: differences are noise" in prints("machine", "a", "a")


def test_a_comparison_refuses_one_folder_and_measuring_options() -> None:
    with pytest.raises(ConfigError) as raised:
        machine(["a", "--filter", "gemm"])
    assert str(raised.value).splitlines() == [
        "machine compares two or more folders: --from a shows one",
        "a comparison of folders measures nothing: drop --filter",
    ]
    with pytest.raises(ConfigError, match=r"^nowhere does not exist$"):
        machine(["nowhere", "nowhere"])


_ERRORS = {"fp32": 1e-5, "bf16": 1e-2, "int8": 0.0}


@pytest.mark.slow
def test_every_library_has_peaks_and_reports_matrix_unit_use() -> None:
    """Checks requirements TP1 and TP4: right products, a spread, and a verdict with its evidence."""
    pytest.importorskip("onnxruntime")
    words = ["--filter", "gemm/.*/256/1$", "--point-time", "30ms", "--repeats", "3", "--quiet"]
    assert machine([*words, "--out", "r"]) == 0
    content = REPORT.read(Path("r"))
    measured = [p for p in record.points(content) if not p.missing]
    assert {"numpy", "ort"} <= {p.settings["library"] for p in measured}
    for point in measured:
        error = point.facts.get("relative_error")
        assert error is None or error <= _ERRORS[str(point.settings["precision"])], point.name
    by_key = {t.key: t for t in tables.tables(content)}
    assert [row[0] for row in by_key["peaks"].rows if row[0] == "fp32"]
    gemm = by_key["gemm"].to_json()
    notes = [note for note in gemm["notes"] if note.startswith("matrix unit: ")]
    assert len(notes) == len(set(notes))
    for row in gemm["rows"]:
        assert row["matrix_unit"] in ("used", "not used", "unknown")
        # If several rows share the same evidence, the report prints it once, as a note.
        assert row.get("evidence") or notes
        assert row["peak_FLOP_per_s"] > 1e8
        assert row["CV_share"] >= 0
    reasons = {p.name: p.missing for p in record.points(content) if p.missing}
    assert reasons["gemm/numpy/bf16/256/1"] == "NumPy has no bf16 product in its BLAS library"
