"""What the folders promise: `docs/` says why, these tests say that it still holds."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from harness.core import registry

ROOT = Path(__file__).parents[2]
PLUGINS = ("accuracy", "backends", "datasets", "scenarios")
PACKAGES = ("models", "analysis", "meters", "submit")  # the folders in harness/ that are not links

COMPOSITION = {
    *(
        "harness.__main__",
        "harness.cli.main",
        "harness.run.supervisor.job",
        "harness.cli.runs",
        "harness.cli.results",
    ),
    *("harness.cli.search", "harness.cli.search_verbs", "harness.cli.submit"),
}
NOUNS = {
    f"harness.{noun}"
    for noun in (
        "types",
        "errors",
        "config",
        "options",
        "parse",
        "stats",
        "clock",
        "units",
        "schedule",
        "plan",
        "protobuf",
        "scenario",
        "executed",
    )
}
FRAMEWORKS = {
    "PIL",
    "ai_edge_litert",
    "cv2",
    "mlperf_loadgen",
    "onnx",
    "onnxruntime",
    "openvino",
    "prometheus_client",
    "pydantic",
    "simplejpeg",
    "tensorflow",
    "torch",
}


def _sources() -> list[Path]:
    ours = [p for folder in PLUGINS for p in (ROOT / folder).glob("*.py")]
    ours += (ROOT / "harness").glob("*.py")
    ours += [p for folder in PACKAGES for p in (ROOT / "harness" / folder).glob("*.py")]
    return sorted(ours)


SOURCES = _sources()
each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "harness" else ("harness", *parts))
    return name.removesuffix(".__init__")


MODULES = {_module(p) for p in SOURCES}
NAMESPACES = {"harness", *(f"harness.{folder}" for folder in (*PLUGINS, *PACKAGES))}


def _imports(path: Path) -> Iterator[str]:
    """Every module imported anywhere in the file, functions and TYPE_CHECKING blocks included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            # `from harness import config` imports harness.core.config.run_config; `from x import Y` imports x.
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (m for m in members if m in MODULES)
            if node.module not in NAMESPACES or not set(members) <= MODULES:
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


def test_every_folder_with_code_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]
    folders = {p.parent.relative_to(ROOT).as_posix() for p in SOURCES}
    assert folders <= set(setuptools["package-dir"].values())
    assert set(setuptools["packages"]) == set(setuptools["package-dir"])


def test_run_sh_installs_every_extra_that_is_a_backend() -> None:
    extras = {entry.extra for entry in registry.BACKENDS.values() if entry.extra}
    case = re.search(
        r"^([a-z |]+)\) ensure_env \"\$backend\"", (ROOT / "run.sh").read_text(), re.MULTILINE
    )
    assert case is not None
    assert extras <= set(case[1].split(" | "))


@each_source
def test_imports_point_down(path: Path) -> None:
    ours = _ours(path)
    if path.parent.name in PLUGINS:
        siblings = {m for m in ours if m.startswith(f"harness.{path.parent.name}.")}
        assert ours - siblings - NOUNS == set(), "a plug-in knows the nouns and its siblings only"
        return
    by_name = {m for m in ours for folder in PLUGINS if f"{m}.".startswith(f"harness.{folder}.")}
    assert by_name == set(), "plug-ins are imported by name, through the registry"
    if _module(path) in NOUNS:
        assert ours - NOUNS == set(), "nouns know nouns only"
    elif _module(path) not in COMPOSITION:
        assert ours & COMPOSITION == set(), "only the composition knows the composition"


def test_imports_make_no_circle() -> None:
    graph = {_module(p): _ours(p) for p in SOURCES}
    tuple(TopologicalSorter(graph).static_order())  # CycleError names the circle


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
def test_only_loadgen_py_imports_loadgen(path: Path) -> None:
    if _module(path) != "harness.loadgen.binding":
        assert "mlperf_loadgen" not in set(_imports(path))


def test_every_code_of_a_reason_or_doubt_is_explained() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in SOURCES)
    used = set(re.findall(r"Reason\(\s*\"([a-z-]+)\"", text)) | {"died"}
    rows = re.findall(r"^\| (`.+?`) \|", (ROOT / "docs/verdict.md").read_text(), re.MULTILINE)
    assert used == {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}


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
