"""The wheel, installed beside HuggingFace's `datasets` and used from elsewhere."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = ("accuracy", "backends", "datasets", "scenarios")

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that no build folder is left in the checkout or taken from it."""
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
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that holds the wheel, ort and HuggingFace's datasets."""
    env = tmp_path_factory.mktemp("env")
    python = env / "bin" / "python"
    uv = ROOT / ".uv" / "bin" / "uv"
    wanted = ("-c", ROOT / "constraints.txt", f"{wheel}[ort]", "datasets")
    if uv.exists():
        _run(uv, "venv", "--clear", "--python", sys.executable, env, cwd=env)
        _run(uv, "pip", "install", "--python", python, *wanted, cwd=env)
    else:
        _run(sys.executable, "-m", "venv", env, cwd=env)
        _run(python, "-m", "pip", "install", *wanted, cwd=env)
    return python


def _origins(python: Path, cwd: Path) -> dict[str, str]:
    """Module name -> file, for ours, for HuggingFace's, and for every double import."""
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


def _packaged(tree: Path) -> Iterator[tuple[Path, str]]:
    """Every file of the source, modules and data, and its name in the wheel."""
    for folder in (*PLUGINS, "harness"):
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
    """Uninstalled, from the root, where the wheel's copy and our `datasets/` both are in the way."""
    checkout = shutil.copytree(tree, tmp_path / "checkout", symlinks=True)
    if not links:
        for folder in PLUGINS:
            (checkout / "harness" / folder).unlink()
    found = _origins(python, checkout)
    assert Path(found["harness"]) == checkout / "harness" / "__init__.py"
    assert Path(found["harness.datasets.digits"]).samefile(checkout / "datasets" / "digits.py")
    assert "site-packages" in found["datasets"]
    assert not [n for n, f in found.items() if n.startswith("datasets") and str(checkout) in f]


def test_main_job_runs_from_the_wheel(python: Path, tmp_path: Path) -> None:
    command = "-m harness --scenario server --backend ort --duration 2s --out"
    _run(python, *command.split(), tmp_path / "out", cwd=Path("/"))
