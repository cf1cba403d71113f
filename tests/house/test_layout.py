"""Rules for the layout of folders: `docs/` gives the reasons, and these tests enforce the rules."""

import ast
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from harness.core import registry
from harness.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PLUGINS = ("accuracy", "backends", "datasets", "scenarios")

ORDER = (
    *("errors", "types", "profiler", "remote", "core", "wire", "loadgen", "machine", "models"),
    *(
        "results",
        "run",
        "cluster",
        "search",
        "explain",
        "submit",
        "serve",
        "api",
        "browse",
        "cli",
        "__main__",
    ),
)
"""The files and packages ("rooms") in `harness/`; each may import the files and packages to its left."""

SIBLINGS = ("search", "explain", "submit")
"""Packages that must not import each other."""

PLUGIN_WORLD = (
    *("harness.types", "harness.errors", "harness.profiler", "harness.remote", "harness.core"),
    *("harness.loadgen.plan", "harness.loadgen.scenario", "harness.loadgen.schedule"),
)
"""The modules that a plug-in may import in addition to modules in its folder."""

MOST_MODULES = 16
"""The maximum number of files in a folder; a larger folder must be split."""

TOP_LEVEL = {
    *(".ci", ".github", ".gitignore", ".pre-commit-config.yaml"),
    *("CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md"),
    *("constraints.txt", "pyproject.toml", "pytest_mlperf_harness.py", "run.sh", "test.sh"),
    *("accuracy", "backends", "datasets", "scenarios"),
    *("benchmarks", "containers", "dashboards", "docs", "examples", "harness", "scripts", "tests"),
}
FRAMEWORKS = {
    "MNN",
    "PIL",
    "ai_edge_litert",
    "cv2",
    "executorch",
    "lightgbm",
    "mlperf_loadgen",
    "ncnn",
    "onnx",
    "onnxruntime",
    "onnxruntime_genai",
    "openvino",
    "openvino_genai",
    "prometheus_client",
    "pydantic",
    "ray",
    "simplejpeg",
    "starlette",
    "tensorflow",
    "torch",
    "tract",
    "treelite",
    "xgboost",
    "xllamacpp",
}


def _sources() -> list[Path]:
    folders = [ROOT / folder for folder in (*PLUGINS, "harness")]
    # The links in harness/ lead to the plug-in folders, which this test checks at the root.
    links = [ROOT / "harness" / folder for folder in PLUGINS]
    found = [p for folder in folders for p in folder.rglob("*.py")]
    return sorted(p for p in found if not any(link in p.parents for link in links))


SOURCES = _sources()
each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "harness" else ("harness", *parts))
    return name.removesuffix(".__init__")


MODULES = {_module(p): p for p in SOURCES}
PACKAGES = {
    "harness",
    *(f"harness.{folder}" for folder in PLUGINS),
    *(module for module, path in MODULES.items() if path.name == "__init__.py"),
}


@cache
def _imports(path: Path) -> Sequence[str]:
    """Returns every module that the file imports, including imports in functions and TYPE_CHECKING blocks."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            # `from harness import cli` imports harness.cli; `from x import Y` imports x.
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (m for m in members if m in MODULES)
            if node.module not in PACKAGES or not set(members) <= MODULES.keys():
                yield node.module


def _ours(path: Path) -> set[str]:
    return {m for m in _imports(path) if m.split(".")[0] == "harness"} - {"harness"}


@pytest.mark.parametrize("folder", PLUGINS)
def test_plugin_folders_have_no_init(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("folder", PLUGINS)
def test_links_for_type_checkers_are_relative(folder: str) -> None:
    link = ROOT / "harness" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"  # noqa: PTH115 - the text itself, not a Path


MODULE_NAMES = {"csv": "csv_table"}
"""Plug-ins whose module has a different name, because the plug-in's name is already taken, for example by Python's
module `csv`.
"""


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, entry.target) for rows in registry.KINDS.values() for name, entry in rows.items()],
)
def test_the_module_of_a_plug_in_has_the_name_that_the_user_types(name: str, target: str) -> None:
    module = target.partition(":")[0].rpartition(".")[2]
    assert module == MODULE_NAMES.get(name, name.replace("-", "_"))


@pytest.mark.parametrize("folder", PLUGINS)
def test_a_plug_in_folder_holds_no_module_without_a_name(folder: str) -> None:
    """Helper modules belong in parts/."""
    targets = {
        e.target.partition(":")[0] for rows in registry.KINDS.values() for e in rows.values()
    }
    modules = {f"harness.{folder}.{path.stem}" for path in (ROOT / folder).glob("*.py")}
    assert modules <= targets


def test_every_folder_with_code_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]
    folders = {_package(path.parent) for path in SOURCES}
    assert set(setuptools["packages"]) == {*folders, "harness.dashboards"}
    # Other folders need no entry, because setuptools finds modules of harness/ in harness/.
    for folder in (*PLUGINS, "dashboards"):
        assert setuptools["package-dir"][f"harness.{folder}"] == folder


def _package(folder: Path) -> str:
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "harness" else ("harness", *parts))


def test_run_sh_installs_every_extra_that_is_a_backend() -> None:
    extras = {entry.extra for entry in registry.BACKENDS.values() if entry.extra}
    described = {name for name, about in EXTRAS.items() if about.startswith(f"backend {name}")}
    assert extras == described
    lines = (ROOT / "harness/core/extras.py").read_text().splitlines()
    for name in described:  # `grep` in run.sh searches for this pattern
        assert any(f'"{name}": "backend {name}' in line for line in lines)


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@each_source
def test_a_plug_in_imports_only_its_own_folder_and_the_public_modules(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    allowed = (*PLUGIN_WORLD, f"harness.{folder}")
    if folder in PLUGINS:
        strangers = {m for m in _ours(path) if not any(_within(m, known) for known in allowed)}
        assert strangers == set()


def test_plug_ins_are_imported_by_name_only() -> None:
    by_import = {
        (module, imported)
        for module, path in MODULES.items()
        for imported in _ours(path)
        for folder in PLUGINS
        if _within(imported, f"harness.{folder}") and not _within(module, f"harness.{folder}")
    }
    assert by_import == set()


@each_source
def test_rooms_import_rooms_to_their_left(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] in PLUGINS or path == ROOT / "harness/__init__.py":
        return
    room = _module(path).split(".")[1]
    for imported in _ours(path):
        other = imported.split(".")[1]
        assert ORDER.index(other) <= ORDER.index(room), imported
        assert other == room or not {other, room} <= {*SIBLINGS}, imported


def test_the_order_names_every_file_and_room() -> None:
    entries = {p.name.removesuffix(".py") for p in (ROOT / "harness").iterdir()}
    assert entries - {"__init__", "__pycache__", "py.typed", *PLUGINS} == {*ORDER}


def _entry(module: str, folder: str) -> str | None:
    """Returns the file or sub-folder of `folder` that contains the module."""
    return (
        module[len(folder) + 1 :].split(".", maxsplit=1)[0]
        if module.startswith(f"{folder}.")
        else None
    )


@pytest.mark.parametrize("folder", sorted({m.rpartition(".")[0] for m in MODULES} - {""}))
def test_files_and_rooms_of_a_folder_have_no_import_cycle(folder: str) -> None:
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        entry = _entry(module, folder)
        if entry is not None:
            others = {_entry(imported, folder) for imported in _ours(path)}
            graph.setdefault(entry, set()).update(o for o in others if o and o != entry)
    tuple(TopologicalSorter(graph).static_order())  # CycleError names the modules of a cycle


def test_files_have_no_import_cycle() -> None:
    graph = {module: _ours(path) for module, path in MODULES.items()}
    tuple(TopologicalSorter(graph).static_order())  # CycleError names the modules of a cycle


def test_no_folder_holds_more_modules_than_fit() -> None:
    folders = Counter(p.parent for p in SOURCES if p.name != "__init__.py")
    folders += Counter(p.parent for p in (ROOT / "tests").rglob("test_*.py"))
    assert {str(f.relative_to(ROOT)): n for f, n in folders.items() if n > MOST_MODULES} == {}


def test_measured_process_and_supervisor_share_the_journal_only() -> None:
    for module, path in MODULES.items():
        other = {"measured": "supervisor", "supervisor": "measured"}.get(
            module.removeprefix("harness.run.").split(".")[0], ""
        )
        if _within(module, "harness.run") and other:
            strangers = {m for m in _ours(path) if _within(m, f"harness.run.{other}")}
            assert strangers == set(), module
        if _within(module, "harness.run.measured"):
            assert {m for m in _ours(path) if _within(m, "harness.results")} == set(), module


COMMANDS = {
    f"harness.models.{name}"
    for name in (
        *("build_examples", "build_minilm", "build_token_engines"),
        *("train_digits", "train_tinylm", "train_trees"),
    )
}
"""Programs that are separate from `python -m harness`."""


@each_source
def test_command_line_parsers_are_in_cli(path: Path) -> None:
    if not _within(_module(path), "harness.cli") and _module(path) not in COMMANDS:
        assert "argparse" not in set(_imports(path))


def test_first_lines_of_modules_are_unique() -> None:
    first = Counter(_first_line(path) for path in SOURCES)
    assert {line: n for line, n in first.items() if n > 1} == {}


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path}: no docstring"
    return text.splitlines()[0]


@each_source
def test_nothing_private_is_imported(path: Path) -> None:
    private = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert private == []


@each_source
def test_one_module_imports_loadgen(path: Path) -> None:
    if _module(path) != "harness.loadgen.binding":
        assert "mlperf_loadgen" not in set(_imports(path))


def test_help_imports_no_framework() -> None:
    code = (
        "import contextlib, sys\n"
        "from harness.cli.main import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "print('\\n' + ' '.join(sys.modules))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(out.stdout.splitlines()[-1].split())
    assert "harness.cli.main" in loaded
    assert loaded & FRAMEWORKS == set()
    assert [m for m in loaded if m.startswith(tuple(f"harness.{f}." for f in PLUGINS))] == []


def test_the_root_holds_only_what_belongs_there() -> None:
    """Bug: a request.yaml that `submit plan` had written to the root was committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {name.partition("/")[0] for name in done.stdout.split("\0") if name} == TOP_LEVEL
