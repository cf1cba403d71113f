"""The registry finds plug-ins by name, module, file or entry point, or refuses them in one line."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core import registry
from harness.core.extras import how_to_install
from harness.core.registry import KINDS, Entry
from harness.errors import ConfigError, HarnessError, PluginUnavailable


@pytest.fixture(autouse=True)
def _plugins_are_forgotten() -> Iterator[None]:
    yield
    for name in [m for m in sys.modules if re.match("harness_plugin_|(my|their)_plugins", m)]:
        del sys.modules[name]


def refusal(kind: str, name: str, error: type[HarnessError]) -> str:
    with pytest.raises(HarnessError) as caught:
        registry.load(kind, name)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_in_the_tables_loads(kind: str) -> None:
    """Covers only frameworks that import quickly; test_contract.py tests the others, which take seconds to import."""
    light = {name: e for name, e in KINDS[kind].items() if e.extra in ("", "ort")}
    assert light
    for name, entry in light.items():
        found = registry.load(kind, name)
        attribute = entry.target.partition(":")[2]
        assert found is getattr(sys.modules[entry.target.partition(":")[0]], attribute)


def test_scenarios_have_the_names_in_the_table() -> None:
    for name in KINDS["scenario"]:
        assert registry.load("scenario", name).name == name


@pytest.mark.parametrize(
    ("kind", "name", "line"),
    [
        ("backend", "nul", "no backend named 'nul': did you mean 'null'?"),
        (
            "backend",
            "xyzzy",
            "no backend named 'xyzzy': choose from ort, tensorflow, openvino, litert, torch, executorch, trees, ncnn, mnn, tract, kserve, openai, http-raw, http-json, null, ort-genai, openvino-genai, llama-cpp, ort-whisper, openvino-whisper",
        ),
        ("dataset", "digit", "no dataset named 'digit': did you mean 'digits'?"),
        ("metric", "top-1", "no metric named 'top-1': did you mean 'top1'?"),
        ("backend", "a:b-c", "backend 'a:b-c' is not module:Class or file.py:Class"),
        ("backend", "a:", "backend 'a:' is not module:Class or file.py:Class"),
        ("backend", "no.py:X", "backend 'no.py:X': the file no.py does not exist"),
    ],
)
def test_a_wrong_name_is_refused_before_any_import(kind: str, name: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        registry.check_name(kind, name)
    assert refusal(kind, name, ConfigError) == line


@pytest.mark.parametrize("name", [":X", ".x:Y"])
def test_a_module_without_a_name_is_refused(name: str) -> None:
    line = f"backend {name!r} is not module:Class or file.py:Class"
    assert refusal("backend", name, ConfigError) == line


def test_a_module_on_the_path_is_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plugins.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.load("backend", "my_plugins:Mine").__name__ == "Mine"


def test_a_file_is_a_plug_in_and_may_define_dataclasses(tmp_path: Path) -> None:
    path = tmp_path / "with space" / "mine.py"
    path.parent.mkdir()
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    path.write_text(f"{imports}@dataclass\nclass Mine:\n    x: int = 1\n")
    assert registry.load("backend", f"{path}:Mine")().x == 1


def test_two_files_with_the_same_name_are_two_plug_ins(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"class Mine:\n    where = '{folder}'\n")
    names = [f"{tmp_path}/{folder}/mine.py:Mine" for folder in ("a", "b")]
    assert [registry.load("backend", n).where for n in names] == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("class Other:\n    pass\n", "cannot be imported: {path} has no class Mine"),
        ("def f(:\n", "cannot be imported: invalid syntax (mine.py, line 1)"),
        ("import nosuchmodule\n", "needs the module 'nosuchmodule': install it into this environment"),
        ("from harness.types import Nothing\n", "cannot be imported: cannot import name 'Nothing'"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise RuntimeError('no device')\n", "cannot be imported: RuntimeError: no device"),
        ("\x00", "cannot be imported: source code string cannot contain null bytes"),
    ],
)  # fmt: skip
def test_a_broken_plug_in_file_prints_one_line_and_exits_with_3(
    code: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{code}\n# Mine")
    line = refusal("backend", f"{path}:Mine", PluginUnavailable)
    assert line.startswith(f"backend '{path}:Mine' ")
    assert line.removeprefix(f"backend '{path}:Mine' ").startswith(reason.format(path=path))


def test_a_class_that_is_not_in_the_file_is_found_without_running_it(tmp_path: Path) -> None:
    """Bug: only the measured process reported the missing class, with the internal name of the module, after the folder
    had been made.
    """
    path = tmp_path / "str ds.py"
    path.write_text("1 / 0")
    with pytest.raises(ConfigError) as caught:
        registry.check_name("dataset", f"{path}:Nope")
    assert str(caught.value) == f"dataset '{path}:Nope': {path} has no class Nope"
    path.write_text("from elsewhere import *")
    registry.check_name("dataset", f"{path}:Nope")


@pytest.mark.parametrize("name", ["nosuchmodule:X", "harness.backends.nosuch:X"])
def test_a_missing_module_is_reported_in_one_line(name: str) -> None:
    module = name.partition(":")[0]
    line = refusal("backend", name, PluginUnavailable)
    assert line == f"backend {name!r} needs the module {module!r}: install it into this environment"


def test_a_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "harness.backends.ort", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    line = refusal("backend", "ort", PluginUnavailable)
    assert line == f"backend 'ort' needs the module 'onnxruntime': {how_to_install('ort')}"


def test_a_missing_harness_module_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KINDS["backend"], "gone", Entry("harness.backends.gone:X", ""))
    with pytest.raises(ModuleNotFoundError):
        registry.load("backend", "gone")


@pytest.mark.parametrize(
    ("needs", "installed"), [("", True), ("numpy", True), ("nosuchmodule", False)]
)
def test_a_plug_in_is_installed_if_its_modules_are(needs: str, installed: bool) -> None:
    assert Entry("x:Y", "", "extra", needs).installed == installed


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs a package with two entry points: one works, and the other names a missing module."""
    (tmp_path / "their_plugins.py").write_text("class Theirs:\n    pass\n")
    info = tmp_path / "their_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[harness.backends]\ntheirs = their_plugins:Theirs\nbroken = nosuchmodule:X\n"
        "[harness.metrics]\nbleu = their_plugins:Theirs\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("distribution")
def test_an_installed_package_adds_plug_ins_by_name() -> None:
    assert registry.load("backend", "theirs").__name__ == "Theirs"
    assert registry.load("metric", "bleu").__name__ == "Theirs"
    assert refusal("dataset", "theirs", ConfigError) == (
        f"no dataset named 'theirs': choose from {', '.join(registry.DATASETS)}"
    )


@pytest.mark.usefixtures("distribution")
def test_an_entry_point_is_listed_and_suggested_like_any_other_name() -> None:
    about = dict(registry.rows("backend"))["theirs"].about
    assert about == "from their-plugins"
    line = refusal("backend", "their", ConfigError)
    assert line == "no backend named 'their': did you mean 'theirs'?"


@pytest.mark.usefixtures("distribution")
def test_an_entry_point_that_cannot_be_imported_is_reported_in_one_line() -> None:
    assert refusal("backend", "broken", PluginUnavailable) == (
        "backend 'broken' needs the module 'nosuchmodule': install it into this environment"
    )


def test_built_in_names_win_over_entry_points(distribution: Path) -> None:
    text = "[harness.backends]\nnull = their_plugins:Theirs\n"
    (distribution / "their_plugins-1.0.dist-info" / "entry_points.txt").write_text(text)
    assert registry.load("backend", "null").__name__ == "NullBackend"


def test_an_exception_without_text_is_shown_by_its_type() -> None:
    """Bug: the message was "raised KeyboardInterrupt: : see ..."."""
    with pytest.raises(PluginUnavailable, match=r"^backend 'x' raised KeyboardInterrupt$"):  # noqa: SIM117
        with registry.plugin("backend 'x'"):
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Unable to allocate 2.91 TiB", "x ran out of memory: Unable to allocate 2.91 TiB"),
        ("", "x ran out of memory"),
    ],
)
def test_a_lack_of_memory_says_how_much_was_wanted_if_known(text: str, message: str) -> None:
    with pytest.raises(PluginUnavailable, match=f"^{re.escape(message)}$"), registry.plugin("x"):
        raise MemoryError(text)


def test_a_backend_that_does_not_return_itself_is_reported() -> None:
    """Bug: the message was "describe() raised AttributeError: 'NoneType' object has no attribute 'describe'"."""
    with pytest.raises(PluginUnavailable, match=r"__enter__\(\) returned None: end it with `ret"):
        registry.entered("mine.py:Mine", None)
    assert registry.entered("mine.py:Mine", "a backend") == "a backend"
