"""`runs`: filters, exports, files with a different schema, and deleted folders."""

import csv
import io
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.results import database
from tests.builders.refusals import Said
from tests.builders.result import stored_result


@pytest.fixture
def results(tmp_path: Path) -> Path:
    made = {
        "old": stored_result("2026-01-01T10:00:00.000+00:00"),
        "new": stored_result("2026-02-01T10:00:00.000+00:00", model="resnet50", scenario="offline"),
        "bad": stored_result("2026-02-02T10:00:00.000+00:00", verdict="INVALID", backend="null"),
        "far": stored_result(
            "2026-02-03T10:00:00.000+00:00", environment={"machine": {"host": "beta"}}
        ),
    }
    for name, content in made.items():
        database.add(tmp_path, name, content)
        (tmp_path / name).mkdir()
    return tmp_path


def test_settings_of_a_row_are_those_that_repeats_share(tmp_path: Path) -> None:
    plan = {"threads": 2, "max_batch": 8, "pinned": [0, 1], "dispatcher": "shared"}
    provider = {"provider_options": {"use_tf32": "0"}}
    use = {"use": {"gpu_memory_peak_bytes": 1}}  # differs between repeats
    described = {"precision": "float32", "threads": 9, **provider, **use}
    run = stored_result("2026-01-01T10:00:00.000+00:00", plan=plan, backend_description=described)
    database.add(tmp_path, "run", run)
    database.add(tmp_path, "unknown", stored_result("2025-01-01T10:00:00.000+00:00"))
    known, unknown = database.newest_first(tmp_path)
    shared = {"precision": "float32", "threads": 2, "max_batch": 8, **provider}
    assert json.loads(known["settings"]) == shared
    assert unknown["settings"] is None


def listed(results: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["runs", "--results", str(results), "--format", "json", *words]) == 0
    return [row["folder"] for row in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        ("", ["far", "bad", "new", "old"]),
        ("--model resnet50", ["new"]),
        ("--model dig*", ["far", "bad", "old"]),
        ("--backend null", ["bad"]),
        ("--scenario Offline", ["new"]),
        ("--host alpha", ["bad", "new", "old"]),
        ("--since 2026-02-01", ["far", "bad", "new"]),
        ("--since 2026-02-01T12:30+02:00", ["far", "bad"]),
        ("--verdict valid", ["far", "new", "old"]),
        ("--verdict invalid --host beta", []),
        ("--limit 1", ["far"]),
        ("--model ' OR 1=1 --", []),
    ],
)
def test_filters_select_the_matching_runs(
    results: Path, capsys: pytest.CaptureFixture[str], words: str, folders: list[str]
) -> None:
    given = words.split() if "'" not in words else words.split(" ", 1)
    assert listed(results, capsys, *given) == folders


def test_csv_has_every_column_and_leaves_unmeasured_values_empty(
    results: Path, prints: Said
) -> None:
    database.add(results, "bare", stored_result("2026-03-01", accuracy=None, backend='a,"b"'))
    (row,) = csv.DictReader(
        io.StringIO(prints("runs", "--results", results, "--format", "csv", "--limit", "1"))
    )
    assert list(row) == [*database.COLUMNS, "removed"]
    assert (row["accuracy"], row["backend"], row["removed"]) == ("", 'a,"b"', "True")


@pytest.mark.parametrize(
    ("readings", "energy"),
    [
        ([], (None, None)),
        ([("estimate:cpu", "estimated", 0.5)], (0.5, "estimate:cpu")),
        ([("estimate:cpu", "estimated", 0.5), ("rapl:psys", "measured", 0.7)], (0.7, "rapl:psys")),
    ],
)
def test_energy_prefers_a_measured_source(
    tmp_path: Path, readings: list[tuple[str, str, float]], energy: tuple[float | None, str | None]
) -> None:
    names = ("source", "provenance", "joules_per_sample")
    power = {"readings": [dict(zip(names, one, strict=True)) for one in readings]}
    database.add(tmp_path, "run", stored_result("2026-01-01", power=power))
    (row,) = database.newest_first(tmp_path)
    assert (row["joules_per_sample"], row["energy_source"]) == energy


def test_removed_folder_is_marked(results: Path, prints: Said) -> None:
    (results / "old").rmdir()
    lines = prints("runs", "--results", results).splitlines()
    assert [line.split()[0] for line in lines if "(removed)" in line] == ["old"]


def test_all_mistakes_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "runs --scenario no --since soon --verdict good --format xml --limit 0"
    assert main(words.split()) == 2
    assert capsys.readouterr().err.splitlines() == [
        (
            "harness: --scenario: no scenario named 'no': choose from "
            "single-stream, multi-stream, server, offline"
        ),
        "harness: --since soon: write a date, e.g. 2026-11-21",
        "harness: --verdict good: write valid or invalid",
        "harness: --format xml: choose from table, csv, json",
        "harness: --limit 0: it must be between 1 and 9,223,372,036,854,775,807",
    ]
    assert main(["runs", "--limit", "9" * 20, "--since", "0001-01-01T00:00:00+23:59"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "harness: --since 0001-01-01T00:00:00+23:59: write a date, e.g. 2026-11-21",
        f"harness: --limit {'9' * 20}: it must be between 1 and 9,223,372,036,854,775,807",
    ]


def test_filter_without_a_match_is_reported(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--results", str(results), "--model", "none"]) == 0
    assert "no such run in" in capsys.readouterr().err


def test_a_file_of_another_schema_is_left_alone(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(database.path_in(results))) as db, db:
        db.execute("PRAGMA user_version = 99")
    before = database.path_in(results).read_bytes()
    with pytest.raises(sqlite3.DatabaseError, match="schema 99, but this harness reads schema 2"):
        database.add(results, "next", stored_result("2026-04-01"))
    assert main(["runs", "--results", str(results)]) == 2
    line = (
        "schema 99, but this harness reads schema 2): remove it, and the next run makes a new one\n"
    )
    assert capsys.readouterr().err.endswith(line)
    assert database.path_in(results).read_bytes() == before


def test_locked_database_is_reported_and_stays_intact(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(database, "_LOCKED_S", 0.05)
    with closing(sqlite3.connect(database.path_in(results))) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            database.add(results, "next", stored_result("2026-04-01"))
        assert main(["runs", "--results", str(results)]) == 2
        line = "runs.sqlite cannot be read (database is locked): another process writes there: "
        assert capsys.readouterr().err.endswith(f"{line}try again\n")
    assert len(listed(results, capsys)) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user")
def test_a_database_that_another_user_linked_is_not_changed(tmp_path: Path) -> None:
    """Bug: in a shared folder, a link led to one of the user's files, which was then overwritten."""
    link = database.path_in(tmp_path)
    link.symlink_to(tmp_path / "elsewhere")
    database.add(tmp_path, "own", stored_result("2026-01-01"))
    assert (tmp_path / "elsewhere").stat().st_size
    (tmp_path / "elsewhere").unlink()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(sqlite3.OperationalError, match=r"^it is a link of another user$"):
        database.add(tmp_path, "another", stored_result("2026-01-01"))
    assert not (tmp_path / "elsewhere").exists()
