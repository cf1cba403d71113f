"""Every command and every code block of the README is run as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.verbs import DEFAULT, VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    (python -m harness[ .].*|\./\S+\.sh.*)$", README, re.MULTILINE)
# Runs of their own: the first is the suite this test is part of, the second needs a model file.
ELSEWHERE = ("./test.sh", "nearest.py", "model.onnx")
RUNNABLE = [c.partition("#")[0].strip() for c in COMMANDS if not any(e in c for e in ELSEWHERE)]


def run(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    words = command.split()
    if words[:3] == ["python", "-m", "harness.models.build_examples"]:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_BUILD}"
        words[:3] = [sys.executable, "-c", code]
    elif words[0] == "python":
        words[0] = sys.executable
        # As from the root of the checkout, which is where the README is read.
        words[1:3] = ["-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_MAIN}"]
    else:
        words[0] = str(ROOT / words[0])
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


_BUILD = "from harness.models.build_examples import main; main()"
_MAIN = "from harness.cli.main import main; sys.exit(main())"


@pytest.mark.slow
def test_every_command_of_the_readme_works(tmp_path: Path) -> None:
    """In one folder and in this order: some of them use the results of those before."""
    assert len(RUNNABLE) >= 8
    for command in RUNNABLE:
        done = run(command, tmp_path)
        # The null backend's answers are wrong on purpose, in performance mode nobody asks.
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


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
    commands = [c for c in COMMANDS if "model.onnx" in c]
    assert len(commands) == 2
    for command in commands:
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not measured: synthetic data" in done.stdout


def test_the_backend_of_the_readme_works_as_written(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "nearest.py").write_text(code)
    (command,) = [c for c in COMMANDS if "nearest.py" in c]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("VALID  offline  nearest.py:Nearest  digits")


def test_the_readme_shows_the_output_of_a_real_run() -> None:
    (output,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    for word in ("VALID", "headline", "p99", "accuracy", "infer", "results/"):
        assert word in output


def test_the_readme_names_every_verb_and_no_other() -> None:
    verbs = {name.partition(" ")[0] for name in VERBS}
    called = re.findall(r"python -m harness ([a-z][a-z-]*)", README)
    named = re.findall(r"`([a-z]+)(?: [a-z]+)?`", README)
    assert set(called) <= verbs
    assert verbs - {DEFAULT} <= {*called, *named}
