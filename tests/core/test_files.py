"""Files are written completely or not at all; new folders get unused names; broken content raises a ConfigError."""

import os
import stat
import threading
from pathlib import Path

import pytest

from harness.core import files
from harness.core.files import atomic_file, cached_file, free_name, reading
from harness.errors import ConfigError, one_line
from tests.builders.refusals import refusal


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_halfway(path: Path, *, new: bool = False) -> None:
    with atomic_file(path, new=new) as temporary:
        temporary.write_text("half")
        raise KeyError


def test_a_file_appears_whole_with_the_usual_permissions(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        files.write_json(tmp_path / "a.json", {"b": 1})
    finally:
        os.umask(umask)
    assert (tmp_path / "a.json").read_text() == '{\n  "b": 1\n}\n'
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o644
    assert names(tmp_path) == ["a.json"]


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(KeyError):
        fail_halfway(path)
    assert (names(tmp_path), path.read_text()) == (["a"], "old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"rate": float("nan")})
    assert (names(tmp_path), path.read_text()) == (["a"], "old")


def test_a_new_file_does_not_replace_an_existing_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(KeyError):
        fail_halfway(path, new=True)
    assert names(tmp_path) == []
    with atomic_file(path, new=True) as temporary:
        temporary.write_text("whole")
    with pytest.raises(FileExistsError), atomic_file(path, new=True):
        raise AssertionError
    assert path.read_text() == "whole"


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_file(path) as first:
        first.write_text("first")
        with atomic_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert (names(tmp_path), path.read_text()) == (["a"], "first")


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, content = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: content.append(pipe.read_text()))
    reader.start()
    files.write_text(pipe, "text")
    reader.join()
    assert (content, pipe.is_fifo()) == (["text"], True)


def test_a_name_that_is_not_utf_8_is_shown_with_question_marks(tmp_path: Path) -> None:
    files.write_text(tmp_path / "page", os.fsdecode(b"model-\xff"))
    assert (tmp_path / "page").read_text() == "model-?"


def test_a_cache_without_room_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(
            ConfigError, match=r"file/a cannot be written \(.*\): set XDG_CACHE_HOME to "
        ),
        cached_file(tmp_path / "file" / "a"),
    ):
        raise AssertionError
    with cached_file(tmp_path / "new" / "folder" / "a") as temporary:
        temporary.touch()
    assert names(tmp_path / "new" / "folder") == ["a"]


def test_a_free_name_is_neither_taken_nor_being_written(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert free_name(path) == path
    path.mkdir()
    (tmp_path / "run-2.partial").mkdir()
    (tmp_path / "run-3").symlink_to("nowhere")
    assert free_name(path) == tmp_path / "run-4"


def test_broken_content_is_reported_in_one_line_with_the_hint() -> None:
    with (
        pytest.raises(ConfigError, match=r"^run: its files differ: no entry 'a': look there$"),
        reading("run: its files differ", "look there"),
    ):
        raise KeyError("a")
    with pytest.raises(OSError, match="gone"), reading("run"):
        raise OSError("gone")
    with pytest.raises(ConfigError, match=r"^run: OSError: gone$"), reading("run", also=(OSError,)):
        raise OSError("gone")
    with pytest.raises(ConfigError, match=r"^our own$"), reading("run"):
        raise ConfigError("our own")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not valid JSON: "),
        ("[1]", "is not a file of a run"),
        ("[" * 100_000, "is not valid JSON: "),
    ],
)
def test_a_file_that_holds_no_json_object_is_named(content: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    assert refusal(files.read_json, tmp_path / "a.json").startswith(f"{tmp_path}/a.json {text}")


def test_a_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    for name in ("first", "second"):
        files.point_link(tmp_path / "latest", name)
        assert os.readlink(tmp_path / "latest") == name  # noqa: PTH115 - the text itself
    assert names(tmp_path) == ["latest"]


def test_a_folder_without_the_file_is_named_with_its_runs(tmp_path: Path) -> None:
    """Bug: when given a run's folder, `bricks --from` and `advise --from` asked the user to check that it is a run's
    folder.
    """
    none = f"{tmp_path} has no a.json"
    assert (
        refusal(files.read_json, tmp_path / "a.json") == f"{none}: check that it is a run's folder"
    )
    told = refusal(files.read_json, tmp_path / "a.json", "bricks")
    assert told == f"{none}: expected a folder of `bricks`"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/a.json").write_text("{}")
    assert refusal(files.read_json, tmp_path / "a.json", "bricks") == (
        f"{tmp_path} is not a folder of `bricks`, but contains folders ({tmp_path / 'run'}): name one "
        "of them"
    )
    told = refusal(files.read_json, tmp_path / "a.json")
    assert told.endswith(f"but contains runs ({tmp_path / 'run'}): name one of them")
    assert refusal(files.read_json, tmp_path / "gone/a.json").endswith("does not exist")
    file = tmp_path / "run/a.json"
    assert (
        refusal(files.read_json, file / "a.json")
        == f"{file} is a file: pass a folder, e.g. {file.parent}"
    )


def test_an_exception_without_a_text_is_reported_in_one_line() -> None:
    """Bug: the `__str__` of a plug-in's exception raised an error, and the run ended with a traceback of 80 lines."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    assert one_line(Mute()) == "its text is not available: __str__ raised KeyError"


def test_the_runs_of_a_sweep_are_named(tmp_path: Path) -> None:
    """Bug: when given a sweep's folder, whose runs are in points/, `export` asked the user to check that it is a run's
    folder.
    """
    run = tmp_path / "points/50"
    run.mkdir(parents=True)
    (run / "a.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"is not a run's folder, but contains runs \({run}\): "):
        files.read_json(tmp_path / "a.json")
