"""Every command in the README and on the pages below runs as written, with the plug-ins of plugins.md."""

import faulthandler
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.verbs import DEFAULT, VERBS
from harness.core import registry
from harness.core.codes import About, Kind, codes
from harness.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("running", "backends", "datasets", "models", "pitfalls", "runs", "result", "plugins")
"""Pages whose commands are all run, in this order. The other pages have commands that need a longer run or a user's
file; the tests of the verbs run them.
"""

TEXTS = {"README": README, **{p: (ROOT / "docs" / f"{p}.md").read_text() for p in PAGES}}
COMMAND = re.compile(r"^    (python -m harness[ .].*|\./\S+\.sh.*)$", re.MULTILINE)
COMMANDS = {page: COMMAND.findall(text) for page, text in TEXTS.items()}
ELSEWHERE = (
    *("./test.sh", "model.onnx", "vad.onnx", "hf:ORG", "pypi:", "--url ", "trace.jsonl"),
    "tumours.yaml",
)
"""Substrings of the commands that this test skips. ./test.sh is the suite that contains this test. The remaining
commands need a model file (see a test below), a network (hf: and pypi:), a server (--url), a trace (see
tests/run/test_generation_runs.py) or trees (see test_trees.py of the backends).
"""


def runnable(page: str) -> list[str]:
    commands = [c.partition("#")[0].strip() for c in COMMANDS[page]]
    here = [c for c in commands if not any(e in c for e in ELSEWHERE)]
    # The environment of this test has the packages already.
    return [c for c in here if not c.startswith("./run.sh install")]


def lacks_a_backend(command: str) -> bool:
    """Returns whether the command names a backend that is not installed; ./run.sh would install it."""
    named = re.findall(r"^python .*--backend (\S+)", command)
    return any(not registry.BACKENDS[n].installed for n in named if n in registry.BACKENDS)


def run(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    words = command.split()
    if words[:3] == ["python", "-m", "harness.models.build_examples"]:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_BUILD}"
        words[:3] = [sys.executable, "-c", code]
    elif words[0] == "python":
        words[0] = sys.executable
        # Runs the command as if in the root of the checkout, to which the README refers.
        words[1:3] = ["-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_MAIN}"]
    else:
        words[0] = str(ROOT / words[0])
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


_BUILD = "from harness.models.build_examples import main; main()"
_MAIN = "from harness.cli.main import main; sys.exit(main())"


@pytest.mark.slow
def test_every_command_works_as_written(tmp_path: Path) -> None:
    """Runs all commands in one folder and in the order of the pages, because some commands use earlier results."""
    # Each command has its own time limit, so the limit of the whole test does not apply.
    faulthandler.cancel_dump_traceback_later()
    for page, text in TEXTS.items():
        commands = [command for command in runnable(page) if not lacks_a_backend(command)]
        assert commands, page
        if page in FILES:
            for code, name in zip(CODE.findall(text), FILES[page], strict=True):
                (tmp_path / name).write_text(code)
        for command in commands:
            done = run(command, tmp_path)
            # A run may miss its bound if other programs or other guests on the host take the cores.
            missed = done.returncode == 4 and is_disturbed(done.stdout)
            assert done.returncode == 0 or missed, f"{page}: {command}\n{done.stdout}{done.stderr}"


def is_disturbed(printed: str) -> bool:
    """Returns whether one of the printed runs has a doubt about its machine."""
    doubts = " ".join(re.findall(r"^ *doubts? +(.*)$", printed, re.MULTILINE))
    return any(code in doubts for code in codes(Kind.DOUBT, About.MACHINE))


CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
FILES = {
    "plugins": (
        "nearest.py",
        "tensors.py",
        "ramps.py",
        "error.py",
        "lamp.py",
        "fill.py",
    ),
}
"""Maps a page to the names under which its code blocks are saved, in the order of the blocks; commands use these names.
"""


@pytest.mark.slow
def test_any_onnx_file_works_as_the_readme_says(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    inputs = [helper.make_tensor_value_info("ids", kind.INT64, ["batch", "length"])]
    outputs = [helper.make_tensor_value_info("y", kind.INT64, ["batch"])]
    nodes = [helper.make_node("ReduceSum", ["ids", "axes"], ["y"], keepdims=0)]
    axes = [helper.make_tensor("axes", kind.INT64, [1], [1])]
    model = helper.make_model(
        helper.make_graph(nodes, "sum", inputs, outputs, axes),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    onnx.save(model, str(tmp_path / "model.onnx"))
    sized = re.compile(r" model\.onnx .*--(?:input-shape|lengths)")
    commands = {c for page in COMMANDS.values() for c in page if sized.search(c)}
    assert len(commands) == 3
    for command in commands:
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not measured: synthetic data" in done.stdout


@pytest.mark.slow
def test_the_first_backend_of_the_documents_works_as_written(tmp_path: Path) -> None:
    code, *_ = CODE.findall(TEXTS["plugins"])
    (tmp_path / "nearest.py").write_text(code)
    (command,) = [c for c in COMMANDS["plugins"] if "nearest.py" in c]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("VALID  offline  nearest.py:Nearest  digits")


def test_the_readme_shows_the_output_of_a_real_run() -> None:
    (output,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    for word in ("VALID", "answer", "p99", "accuracy", "limited by", "results/"):
        assert word in output


def test_the_readme_fits_on_three_screens() -> None:
    assert len(README.splitlines()) <= 130


def test_links_of_the_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md"]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


NEEDS = (
    (
        r"--backend \S*\b(tensorflow|openvino-genai|openvino|litert|torch|executorch|trees|ncnn|mnn|tract|ort-genai|llama-cpp)\b",
        None,
    ),
    (r"(?:light|zoo)/|--precision \S*(?:int8|fp16)|--ops|build_examples|build_minilm", "onnx"),
    (r"harness (?:advise|bricks) (?!--from)", "onnx"),
    (r"examples/coco", "coco"),
    (r"examples/squad|examples/csv", "text"),
    (r"examples/csv", "rouge"),
    (r"--dataset parquet", "parquet"),
    (r"--dataset huggingface", "hf"),
)
"""Maps the part of a command that needs an extra to the extra; None if the first group names the extra."""


def needed_extras(command: str) -> set[str]:
    found = [(match, extra) for need, extra in NEEDS for match in re.finditer(need, command)]
    return {extra or match[1] for match, extra in found}


@pytest.mark.parametrize(
    "page",
    sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "harness/models/README.md"]),
    ids=lambda p: p.name,
)
def test_every_command_comes_after_the_install_of_what_it_needs(page: Path) -> None:
    """Bug: blocks for `advise`, `bricks`, int8 or light/squeezenet failed after ./run.sh alone."""
    installed = {"ort", "report"}  # ./run.sh installs these two extras on first use
    missing = []
    for line in re.findall(r"^    (\S.*)$", page.read_text(), re.MULTILINE):
        _, install, names = line.partition("./run.sh install ")
        if install:
            installed |= set(re.split("#|&&", names)[0].split())
            assert installed <= set(EXTRAS)
        elif line.startswith("./run.sh "):
            installed |= needed_extras(line)
        elif line.startswith("python -m harness"):
            missing += [(line, extra) for extra in needed_extras(line) - installed]
    assert missing == []


def test_the_readme_names_every_verb_and_no_other() -> None:
    verbs = {name.partition(" ")[0] for name in VERBS}
    called = re.findall(r"python -m harness ([a-z][a-z-]*)", README)
    named = re.findall(r"`([a-z-]+)(?: [a-z]+)?`", README)
    assert set(called) <= verbs
    assert verbs - {DEFAULT} <= {*called, *named}
