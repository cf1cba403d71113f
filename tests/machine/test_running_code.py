"""The harness compares its files with a release or commit, and finds start-up code that nobody named."""

import base64
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.machine import running_code
from harness.machine.running_code import harness_files, startup_code

WARNING = "class Odd(Warning): pass\n"


def owners(code: object) -> dict[str, str | None]:
    assert isinstance(code, list)
    return {one["name"]: one["owner"] for one in code}


@pytest.mark.parametrize(
    ("name", "content", "variables"),
    [
        ("sitecustomize", "", {}),
        ("usercustomize", "", {}),
        ("odd", WARNING, {"PYTHONWARNINGS": "ignore::odd.Odd"}),
        ("onnxruntime", "", {}),
        ("decimal", "", {}),
    ],
)
def test_unrequested_module_in_pythonpath_is_listed(
    name: str,
    content: str,
    variables: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: a hook replaced the backend's `infer`, but no file of the run named the hook."""
    (tmp_path / f"{name}.py").write_text(content)
    before = owners(startup_code())
    for variable, value in {"PYTHONPATH": str(tmp_path), **variables}.items():
        monkeypatch.setenv(variable, value)
    assert owners(startup_code()) == {**before, name: None}


def test_folder_of_a_plug_in_in_pythonpath_is_not_start_up_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_backend.py").write_text("")
    before = startup_code()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert startup_code() == before


def library(folder: Path, name: str) -> Path:
    """Builds a library that can also act as an auditor of the loader."""
    (folder / "empty.c").write_text("unsigned la_version(unsigned v) { return v; }\n")
    path = folder / name
    command = ["cc", "-shared", "-fPIC", "-o", str(path), str(folder / "empty.c")]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT"])
def test_a_library_of_the_loaders_variables_is_listed(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: LD_AUDIT replaced functions of the backend although `isolated` was true."""
    path = library(tmp_path, "libodd.so")
    monkeypatch.setenv(variable, str(path))
    (entry,) = (one for one in startup_code() or () if one["name"] == "libodd.so")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert entry == {"name": "libodd.so", "sha256": digest, "owner": None}


def test_library_that_replaces_one_of_the_system_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    (system,) = {line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line}
    (tmp_path / "libm.so.6").write_bytes(Path(system).read_bytes())
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert owners(startup_code())["libm.so.6"] is None


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the packages folder of an empty virtual environment, in which the harness looks for code."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")]
    subprocess.run(command, check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    running_code._records.cache_clear()
    (folder,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    return folder


def record(packages: Path, distribution: str, **files: bytes) -> None:
    """Writes files named without their suffix, and pip's RECORD that lists them."""
    info = packages / f"{distribution}-1.0.dist-info"
    info.mkdir()
    rows = []
    for name, content in files.items():
        path = packages / f"{name.replace('__', '/')}.{'py' if '__' in name else 'pth'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(packages)},sha256={digest},{len(content)}\n")
    (info / "RECORD").write_text("".join(rows))


def test_lines_of_code_in_pth_files_have_an_owner_or_none(environment: Path) -> None:
    record(environment, "honest", hook=b"import sys\n", folders=b"/opt/there\n")
    (environment / "odd.pth").write_bytes(b"import os; os.environ['X'] = '1'\n")
    (environment / "_virtualenv.pth").write_bytes(b"import _virtualenv")
    assert owners(startup_code()) == {
        "hook.pth": "honest",
        "odd.pth": None,
        "_virtualenv.pth": "virtualenv or uv",
    }


def test_a_pth_file_that_was_changed_after_its_installation_has_no_owner(environment: Path) -> None:
    record(environment, "honest", hook=b"import sys\n")
    (environment / "hook.pth").write_bytes(b"import sys; sys.odd = 1\n")
    assert owners(startup_code()) == {"hook.pth": None}


def test_interpreter_that_does_not_answer_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert startup_code() is None


def git(folder: Path, *words: str) -> None:
    who = {
        f"GIT_{role}_{key}": "x" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    command = ["git", "-C", str(folder), *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **who})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "harness").mkdir()
    (tmp_path / "backends").mkdir()
    (tmp_path / "harness/judge.py").write_text("reasons = ['late']\n")
    (tmp_path / "backends/ort.py").write_text("")
    (tmp_path / "harness/backends").symlink_to("../backends")
    (tmp_path / ".gitignore").write_text("*.so\n__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "x")
    return tmp_path


def judged(folder: Path) -> tuple[Any, Any, Any]:
    found = harness_files(folder)
    return found["known_by"], found["differing"], found["first"]


def test_a_clean_checkout_differs_in_nothing(checkout: Path) -> None:
    (checkout / "harness/__pycache__").mkdir()
    (checkout / "harness/__pycache__/judge.cpython-311.pyc").write_bytes(b"x")
    (checkout / "notes.txt").write_text("x")
    assert judged(checkout) == ("commit", 0, [])


@pytest.mark.parametrize("name", ["harness/judge.py", "backends/ort.py", "harness/judge.so"])
def test_a_changed_or_added_file_of_a_checkout_is_named(name: str, checkout: Path) -> None:
    """The check also finds a compiled extension (.so) that `git status` omits. Python imports an extension instead of a
    .py file of the same name.
    """
    before = harness_files(checkout)["sha256"]
    git(checkout, "update-index", "--assume-unchanged", "harness/judge.py")
    (checkout / name).write_text("reasons = []\n")
    assert judged(checkout) == ("commit", 1, [name])
    assert harness_files(checkout)["sha256"] != before


def test_data_in_a_checkout_is_not_read_and_an_unreadable_file_differs(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a run read all data below `datasets` into memory, and ended if a file could not be read."""
    (checkout / "backends/data.npz").write_bytes(b"x")
    read = Path.read_bytes

    def refusing(path: Path) -> bytes:
        assert path.suffix != ".npz"
        if path.name == "judge.py":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refusing)
    assert judged(checkout) == ("commit", 1, ["harness/judge.py"])


def test_a_copy_without_its_commit_has_no_identity(checkout: Path) -> None:
    """Bug: a changed copy of the harness produced VALID runs that caused no doubt."""
    (checkout / ".git").rename(checkout / "elsewhere")
    assert judged(checkout) == (None, None, [])


def test_a_checkout_that_git_cannot_read_has_no_identity(checkout: Path) -> None:
    (checkout / ".git/HEAD").unlink()
    assert judged(checkout) == (None, None, [])


def test_installed_release_is_compared_with_its_record(tmp_path: Path) -> None:
    record(tmp_path, "mlperf_harness", harness__judge=b"reasons = ['late']\n")
    running_code._records.cache_clear()
    (tmp_path / "datasets").mkdir()
    # HuggingFace's package has a folder of this name.
    (tmp_path / "datasets/load.py").write_text("")
    assert judged(tmp_path) == ("release", 0, [])
    (tmp_path / "harness/judge.py").write_text("reasons = []\n")
    assert judged(tmp_path) == ("release", 1, ["harness/judge.py"])
