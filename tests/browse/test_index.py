"""The index finds folders, states why a folder has no row, and reads a folder again only if it changed."""

import json
import os
from pathlib import Path

import pytest

from harness.browse import index, within
from harness.browse.index import Index
from harness.errors import ConfigError
from harness.results import database
from tests.browse.folders import edit, golden_results


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "LASTS_S", -1.0)
    return golden_results(tmp_path / "results")


def problems(results: Path) -> dict[str, str]:
    entries = Index(results).entries().values()
    return {entry.path: entry.problem for entry in entries if entry.problem is not None}


def test_the_newest_run_is_first_and_nested_folders_are_read(results: Path) -> None:
    (results / "campaign" / "may").mkdir(parents=True)
    (results / "server").rename(results / "campaign/may/server")
    edit(results / "offline", started="2030-01-01T00:00:00.000+00:00")
    paths = list(Index(results).entries())
    assert paths[0] == "offline"
    assert "campaign/may/server" in paths
    assert "campaign" not in paths


def test_a_row_keeps_every_column_of_the_database(results: Path) -> None:
    """Bug: it lacked the SLO and the digest of the data, so that History judged p99 instead of the p90 of the SLO, and Pareto
    compared runs on different data.
    """
    edit(results / "server", slo="p90=1s")
    row = Index(results).entry("server").row
    assert row is not None
    result = json.loads((results / "server/result.json").read_text())
    expected = database.columns_of("server", result)
    kept = {name: row[name] for name in database.COLUMNS if name not in ("folder", "removed")}
    assert kept == {name: expected[name] for name in kept}
    assert row["slo"] == "p90=1s"


def test_runs_of_a_study_name_their_study(results: Path) -> None:
    sweep = results / "night"
    (sweep / "points").mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    (results / "server").rename(sweep / "points/100")
    entries = Index(results).entries()
    assert (entries["night"].study, entries["night"].is_run) == ("sweep", False)
    assert entries["night/points/100"].inside == "night"
    assert entries["offline"].inside is None


def test_a_folder_that_cannot_be_read_has_a_reason(results: Path) -> None:
    (results / "server/result.json").write_text("{")
    (results / "offline/result.json").unlink()
    (results / "offline/result.json").symlink_to("/etc/passwd")
    (results / "single-stream/result.json").unlink()
    edit(results / "closed-loop", verdict=7)
    pipe = results / "closed-loop-again/result.json"
    pipe.unlink()
    os.mkfifo(pipe)
    found = problems(results)
    assert found["server"].startswith("server/result.json: not valid JSON: ")
    assert "Too many levels of symbolic links" in found["offline"]
    assert found["single-stream"] == "it has no result.json: its run is in progress or died"
    assert (
        found["closed-loop"]
        == "closed-loop/result.json has no usable verdict: run `check` for details"
    )
    assert found["closed-loop-again"] == "closed-loop-again/result.json is not a regular file"


@pytest.mark.parametrize(
    "changed",
    [
        {"started": None},
        {"model": ["a"]},
        {"reasons": [7]},
        {"scenario": "nonsense"},
        {"environment": "none"},
        {"throughput_per_s": {"completed": {"a": 1}}},
        {"headline": {"value": "high", "unit": 3}},
        {"latency_ns": {"p99": 10**400, "p50": True}},
        {"accuracy": {"value": "NaN", "metric": 1}},
    ],
)
def test_values_of_a_wrong_type_become_a_reason_or_are_absent(
    results: Path, changed: dict[str, object]
) -> None:
    edit(results / "server", **changed)
    entry = Index(results).entries()["server"]
    assert entry.is_run
    if entry.row is not None:
        numbers = [entry.row[name] for name in ("headline_value", "p50_ns", "p99_ns", "accuracy")]
        assert all(n is None or abs(n) < 1e300 for n in numbers)


@pytest.mark.parametrize(("length", "is_known"), [(100, True), (5_000, False)])
def test_settings_are_whole_or_unknown(results: Path, length: int, is_known: bool) -> None:
    edit(results / "server", backend_description={"device": "x" * length})
    row = Index(results).entries()["server"].row
    assert row is not None
    known = json.loads(row["settings"] or "{}")
    assert bool(known) is is_known
    assert known.get("threads") == (1 if is_known else None)


@pytest.mark.parametrize("name", [b"r\xff", b"line\n", b"\x1b[31m"])
def test_a_name_unusable_in_a_url_is_listed_as_a_problem(results: Path, name: bytes) -> None:
    os.rename(os.fsencode(results / "server"), os.fsencode(results) + b"/" + name)  # noqa: PTH104
    assert list(problems(results).values()) == ["its name cannot be part of a URL: rename it"]


def test_links_are_left_out(results: Path) -> None:
    (results / "latest").symlink_to("server")
    (results / "elsewhere").symlink_to("/")
    assert {"latest", "elsewhere"}.isdisjoint(Index(results).entries())


def test_a_folder_is_read_again_only_after_a_change(results: Path) -> None:
    """`browse` also uses the cache when it is started a second time."""
    file = results / "server/result.json"
    text, state = file.read_text(), file.stat()
    first = Index(results)
    index_path = first._cache
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr(index, "WORTH_STORING", 1)
        assert first.entries()["server"].row is not None
    assert index_path.is_file()
    swapped = text.replace('"server"', '"seRver"')
    with file.open("r+") as opened:  # the write keeps the file's inode, size and time
        opened.write(swapped)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    for again in (first, Index(results)):
        row = again.entries()["server"].row
        assert row is not None
        assert row["scenario"] == "server"
    os.utime(file)
    assert "scenario ('seRver')" in (first.entries()["server"].problem or "")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 0}', '{"version": 1, "known": {"a": 1}}']
)
def test_an_unusable_cache_is_ignored(results: Path, content: str) -> None:
    first = Index(results)
    first._cache.parent.mkdir(parents=True)
    first._cache.write_text(content)
    assert len(Index(results).entries()) == 5


def test_a_renamed_run_is_listed_only_under_its_new_name(results: Path) -> None:
    watched = Index(results)
    assert "server" in watched.entries()
    (results / "server").rename(results / "renamed")
    assert {"server", "renamed"} & watched.entries().keys() == {"renamed"}


@pytest.mark.parametrize(
    "path", ["", "..", "../x", "/etc/passwd", "a//b", "./a", "a/../../b", "a\0b"]
)
def test_no_path_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the path of a file in the folder$"):
        within.read_file(tmp_path, path)


def test_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "out/secret").write_text("x")
    (tmp_path / "root/folder").symlink_to("../out")
    (tmp_path / "root/file").symlink_to("../out/secret")
    for path in ("folder/secret", "file"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            within.read_file(tmp_path / "root", path)


def test_a_file_over_the_size_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(within, "MOST_BYTES", 10)
    (tmp_path / "large").write_text(json.dumps(list(range(10))))
    with pytest.raises(ConfigError, match=r"^large has more than 10 bytes$"):
        within.read_file(tmp_path, "large")


def test_a_run_with_a_link_inside_is_not_read_by_its_path(results: Path) -> None:
    (results / "server/latest").symlink_to("/etc")  # code that reads runs must not open this link
    assert within.check_folder(results, "server") == results / "server"
    (results / "server/performance/run_1/extra").symlink_to("/etc/passwd")
    with pytest.raises(
        ConfigError,
        match=r"^server/performance/run_1/extra is not read: it is a link, or not a regular file$",
    ):
        within.check_folder(results, "server")


def test_only_the_link_to_the_newest_run_is_allowed_in_a_study(tmp_path: Path) -> None:
    """Bug: browse refused the page of a grid, because the folders of its cells contain a link `latest`."""
    cells = tmp_path / "grid/cells"
    (cells / "a").mkdir(parents=True)
    (cells / "latest").symlink_to("a")
    assert within.check_folder(tmp_path, "grid") == tmp_path / "grid"
    (cells / "other").symlink_to("a")
    with pytest.raises(ConfigError, match="cells/other is not read: it is a link"):
        within.check_folder(tmp_path, "grid")
