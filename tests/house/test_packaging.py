"""The sdist and the wheel, installed next to HuggingFace's `datasets` and used from a different folder."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from harness.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PLUGINS = ("accuracy", "backends", "datasets", "scenarios")
OUTSIDE = (*PLUGINS, "dashboards")
"""Folders at the root that a wheel contains inside the package."""

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
"""The environment without PYTHONPATH, which would let Python find a checkout before the wheel."""

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies the sources, so that the build neither leaves a build folder in the checkout nor uses an old one."""
    anywhere = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    at_the_root = {"build", "dist", "results", "shared", "tests"}
    return shutil.copytree(
        ROOT,
        tmp_path_factory.mktemp("tree") / "with space",
        symlinks=True,
        ignore=lambda folder, names: {
            *anywhere(folder, names),
            *(at_the_root if Path(folder) == ROOT else ()),
        },
    )


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, cwd=tree)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def released(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns (sdist, wheel made from it), as they would be published."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=tree)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the interpreter of a new environment with the wheel, its recommended extras and HuggingFace's datasets."""
    env = tmp_path_factory.mktemp("env")
    python = env / "bin" / "python"
    uv = Path(shutil.which("uv") or ROOT / ".uv" / "bin" / "uv")
    wanted = ("-c", ROOT / "constraints.txt", f"{wheel}[recommended]", "datasets")
    if uv.exists():
        _run(uv, "venv", "--clear", "--python", sys.executable, env, cwd=env)
        _run(uv, "pip", "install", "--python", python, *wanted, cwd=env)
    else:
        _run(sys.executable, "-m", "venv", env, cwd=env)
        _run(python, "-m", "pip", "install", *wanted, cwd=env)
    return python


def _origins(python: Path, cwd: Path) -> dict[str, str]:
    """Maps each imported module of ours and of HuggingFace's to its file; a module that is imported under two names
    appears twice.
    """
    code = (
        "import json, sys, datasets, harness.datasets.digits\n"
        "assert callable(datasets.load_dataset)\n"
        "assert sys.modules['datasets'] is not sys.modules['harness.datasets']\n"
        "files = {n: getattr(m, '__file__', None) for n, m in sys.modules.items()}\n"
        "print(json.dumps({n: f for n, f in files.items()"
        " if f and n.split('.')[0] in ('harness', 'datasets')}))\n"
    )
    out = _run(python, "-W", "error::ImportWarning", "-c", code, cwd=cwd)
    found: dict[str, str] = json.loads(out.stdout)
    return found


def test_wheel_holds_each_file_once_and_inside_the_package(wheel: Path, tree: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {
        "harness",
        "pytest_mlperf_harness.py",
    }
    for path, name in _packaged(tree):
        assert names.count(name) == 1, path


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, released: tuple[Path, Path]) -> None:
    sdist, second = released
    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(zipfile.ZipFile(second).namelist())
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"README.md", "LICENSE", "pyproject.toml", "harness/py.typed"} <= {*names}
    assert not [name for name in names if name.startswith("tests/")]


def _metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(archive.read(name))


def test_the_metadata_is_complete_for_a_package_index(wheel: Path) -> None:
    content = _metadata(wheel)
    assert content["Description-Content-Type"] == "text/markdown"
    assert str(content.get_payload()).startswith("# mlperf-harness\n")
    assert content["License-Expression"] == "Apache-2.0"
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]
    wanted = {*versions, "Operating System :: POSIX :: Linux", "Typing :: Typed"}
    assert wanted <= {*content.get_all("Classifier", [])}
    assert {*content.get_all("Provides-Extra", [])} == {*EXTRAS} - {"dev"}


def _packaged(tree: Path) -> Iterator[tuple[Path, str]]:
    """Yields every source file (module or data) with its name in the wheel."""
    for folder in (*OUTSIDE, "harness"):
        for path in (tree / folder).rglob("*"):
            parts = path.relative_to(tree).parts
            linked = parts[0] == "harness" and parts[1] in PLUGINS
            if path.is_file() and not linked:
                yield path, "/".join(parts if parts[0] == "harness" else ("harness", *parts))


def test_wheel_leaves_huggingface_datasets_alone(python: Path, tmp_path: Path) -> None:
    found = _origins(python, tmp_path)
    site = Path(found["harness"]).parent.parent
    assert site.name == "site-packages"
    assert Path(found["harness.datasets.digits"]) == site / "harness" / "datasets" / "digits.py"
    assert Path(found["datasets"]) == site / "datasets" / "__init__.py"


@pytest.mark.parametrize("links", [True, False])
def test_checkout_leaves_huggingface_datasets_alone(
    python: Path, tree: Path, tmp_path: Path, *, links: bool
) -> None:
    """Runs without an installation in the root, where Python could import the wheel's copy or our `datasets/` by
    mistake.
    """
    checkout = shutil.copytree(tree, tmp_path / "checkout", symlinks=True)
    if not links:
        for folder in PLUGINS:
            (checkout / "harness" / folder).unlink()
    found = _origins(python, checkout)
    assert Path(found["harness"]) == checkout / "harness" / "__init__.py"
    assert Path(found["harness.datasets.digits"]).samefile(checkout / "datasets" / "digits.py")
    assert "site-packages" in found["datasets"]
    assert not [n for n, f in found.items() if n.startswith("datasets") and str(checkout) in f]


@pytest.fixture
def decoy(tmp_path: Path) -> Path:
    """Returns a working directory with a folder `harness`, as in NVIDIA's submission tree."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/__init__.py").write_text("raise SystemExit('imported from here')\n")
    return tmp_path


def test_main_job_runs_from_the_wheel_beside_another_harness(python: Path, decoy: Path) -> None:
    command = "--scenario server --backend ort --duration 2s --slo p99=1min --out out --quiet"
    done = _run(python.with_name("mlperf-harness"), *command.split(), cwd=decoy)
    assert done.stdout.startswith("VALID  server  ort  digits")
    assert (decoy / "out/report.html").is_file()
    _run(python.with_name("mlperf-harness"), "check", "out", cwd=decoy)


def test_the_dashboards_are_in_the_wheel(python: Path, decoy: Path) -> None:
    _run(python.with_name("mlperf-harness"), "dashboards", "--out", "boards", cwd=decoy)
    source = ROOT / "dashboards"
    names = [p.relative_to(source) for p in source.rglob("*") if p.is_file()]
    assert sum(p.is_file() for p in (decoy / "boards").rglob("*")) == len(names)
    for name in names:
        assert (decoy / "boards" / name).read_bytes() == (source / name).read_bytes()


def test_a_type_checker_reads_the_types_of_the_wheel(python: Path, tmp_path: Path) -> None:
    """Bug: without py.typed every type of the harness was `Any` for a plug-in's author."""
    (tmp_path / "plugin.py").write_text(
        "from harness.types import Batch\nsize: str = Batch(1, {}).size\n"
    )
    words = ("-m", "mypy", "--config-file=", "--python-executable", python, "plugin.py")
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "[assignment]" in done.stdout, done.stdout + done.stderr
    assert "import-untyped" not in done.stdout


def test_uvx_runs_the_wheel_without_an_installation(wheel: Path, decoy: Path) -> None:
    uv = shutil.which("uv") or ROOT / ".uv/bin/uv"
    if not Path(uv).exists():
        pytest.skip("needs uv")
    words = ("tool", "run", "--python", sys.executable, "--from", wheel, "mlperf-harness", "list")
    assert "digits" in _run(uv, *words, cwd=decoy).stdout
