"""Every verb's --help: it prints, fits, is quick, and imports nothing heavy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cli.parser import MOST_COLUMNS, PROGRAM, Parser
from harness.cli.verbs import DEFAULT, VERBS
from harness.explain.advise import job as advise_job
from harness.explain.advise import options as advise_options

ROOT = Path(__file__).parents[2]
GROUPS = ("submit", "data")
HEAVY = (
    *("onnx", "onnxruntime", "tensorflow", "openvino", "ai_edge_litert", "torch"),
    *("mlperf_loadgen", "numpy", "pydantic", "PIL", "rich"),
)
MOST_CPU_S = 0.3
ATTEMPTS = 3

CODE = f"""
import json, sys
from harness.cli.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as e:
    status = e.code
print(json.dumps([status, [m for m in {HEAVY} if m in sys.modules]]), file=sys.stderr)
"""


def help_page(words: list[str]) -> tuple[list[str], str, float]:
    """Lines of `VERB --help`, the last line on stderr, and the CPU time of the process in s."""
    command = [sys.executable, "-c", CODE, *words, "--help"]
    wide = {**os.environ, "COLUMNS": "300"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=wide, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = process.stdout.read(), process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return output.splitlines(), errors, used.ru_utime + used.ru_stime


@pytest.mark.parametrize("verb", ["", *VERBS, *GROUPS])
def test_the_help_of_every_verb_prints_fits_and_is_quick(verb: str) -> None:
    """Bug: `sweep --help` was a traceback, an unescaped % in one option's text.

    The CPU time is the best of three: on a busy machine the others may well be higher.
    """
    lines, errors, cpu_s = help_page(verb.split())
    for _ in range(ATTEMPTS - 1):
        if cpu_s > MOST_CPU_S:
            cpu_s = help_page(verb.split())[2]
    assert cpu_s <= MOST_CPU_S
    assert json.loads(errors) == [0, []]
    name = "" if verb == DEFAULT else verb
    assert [line for line in lines if line.startswith(f"usage: {PROGRAM} {name}".strip())]
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


def test_a_percent_sign_in_a_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("p", "10% of it", "--rate 5%", notes="peak:\n  50% of it")
    parser.add_argument("--rate", metavar="R", help="10%..110% (default 25 %s)")
    parser.add_argument_group("more").add_argument("--peak", metavar="Q", help="100 % of it")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    printed = capsys.readouterr().out
    for text in (
        "10% of it",
        "--rate 5%\n",
        "  50% of it\n",
        "10%..110% (default 25 %s)",
        "100 % of it",
    ):
        assert text in printed


@pytest.mark.parametrize("verb", ["profile", "sweep", "advise", "bricks"])
def test_a_usage_asks_for_no_scenario_where_a_default_stands_for_it(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `profile --help` said `profile --scenario NAME [options]`, which works without."""
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    usage = capsys.readouterr().out.split("\n\n")[1]
    assert any("--scenario" not in line for line in usage.splitlines())


def test_the_parts_of_advise_that_help_names_are_those_there_are() -> None:
    assert tuple(advise_job.PARTS) == advise_options.PARTS
