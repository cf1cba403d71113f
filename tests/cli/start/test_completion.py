"""Completion as a shell requests it: verbs, options of the verb on the line, and names as values."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.cli.start.config_files import presets
from harness.cli.verbs import VERBS
from harness.core.registry import BACKENDS, DATASETS, SCENARIOS
from tests.builders.refusals import refused
from tests.faults.command import run_here

pytest.importorskip("argcomplete")
ROOT = Path(__file__).parents[3]


def completed(line: str, folder: Path, start: int = 1) -> list[str]:
    """Returns the words that complete the line. start: 3 for `python -m harness`, as argcomplete's shell code passes
    it.
    """
    answer = folder / ".answer"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE": str(start),
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }
    command = [sys.executable, "-m", "harness"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    return answer.read_text().split("\n") if answer.read_text() else []


FIRST = dict.fromkeys(name.partition(" ")[0] for name in VERBS)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [*FIRST, "help"]),
        ("pe", ["peak"]),
        ("submit ", ["plan", "run", "pack", "check"]),
        ("submit run --reh", ["--rehearsal"]),
        ("help lo", ["load-host", "load"]),
        ("--scenario ", [*SCENARIOS]),
        ("peak --probe 1s --backend ", [*BACKENDS]),
        ("--mode ", ["performance", "accuracy", "both"]),
        ("data check ", [*DATASETS]),
        ("schema ", ["config", "manifest", "result"]),
        ("--duration ", []),
        ("peak --pro", ["--probe", "--probe-rate", "--provider", "--provider-option"]),
        ("nosuch --x", []),
    ],
)
def test_completion_offers_the_words_valid_at_the_cursor(
    line: str, words: Sequence[str], tmp_path: Path
) -> None:
    offered = completed(f"mlperf-harness {line}", tmp_path)
    options = [word for word in offered if word not in words]
    assert {*words} <= {*offered}
    assert all(word.startswith("--") for word in options), "an argument's place also takes options"
    assert not options or line.endswith(" ")


def test_python_m_harness_is_completed_like_the_command(tmp_path: Path) -> None:
    assert completed("python -m harness tu", tmp_path, start=3) == ["tune"]


def test_results_presets_models_and_files_are_offered(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "result.json").write_text("{}")
    for name in ("quiet.yaml", "digits_mine.onnx"):
        (tmp_path / name).write_text("")
    assert {"results/a", "results/b"} <= {*completed("mlperf-harness check results/", tmp_path)}
    words = completed("mlperf-harness --config ", tmp_path)
    assert {*presets(), "results/a", "quiet.yaml"} <= {*words}
    assert {"digits", "digits_mine.onnx"} <= {*completed("mlperf-harness --model dig", tmp_path)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_by_the_code_that_the_verb_prints(tmp_path: Path) -> None:
    status, code, _ = run_here("completion", "bash")
    assert status == 0
    script = tmp_path / "mlperf-harness"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m harness "$@"\n')
    script.chmod(0o755)
    line = "mlperf-harness --scenario off"
    words = f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_TYPE=9 COMP_WORDS=(mlperf-harness)"
    call = f"{words}; _python_argcomplete mlperf-harness; printf '%s' \"${{COMPREPLY[*]}}\""
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", f"{code}\n{call}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "offline", done.stderr


def test_an_unknown_shell_is_reported_in_one_line() -> None:
    assert refused("completion", "sh") == [
        "SHELL: 'sh' is not one of bash, zsh, fish, tcsh, powershell"
    ]
