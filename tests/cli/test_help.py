"""Every verb's --help prints quickly, fits the terminal, and imports no large package."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cli.parser import BASIC, MOST_COLUMNS, Parser
from harness.cli.verbs import DEFAULT, VERBS, Verb
from harness.core.console import CANONICAL, PROGRAM_VARIABLE
from harness.explain.advise import job as advise_job
from harness.explain.advise import options as advise_options
from tests.builders.refusals import refused
from tests.faults.command import ROOT, run_here

GROUPS = ("submit", "data")
HEAVY = (
    *("onnx", "onnxruntime", "tensorflow", "openvino", "ai_edge_litert", "torch"),
    *("ncnn", "MNN", "tract"),
    *("onnxruntime_genai", "openvino_genai", "xllamacpp"),
    *("mlperf_loadgen", "numpy", "pydantic", "PIL", "rich"),
)
MOST_CPU_S = 0.6
"""The help takes 0.2 s of CPU time on an idle machine and 0.4 s on a busy one; importing a large package takes longer.
"""
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
    """Returns the lines of `VERB --help`, the last line on stderr, and the process's CPU time in s."""
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
def test_the_help_of_every_verb_prints_without_error_and_is_quick(verb: str) -> None:
    """Bug: an unescaped % in an option's text ended `sweep --help` with a traceback.

    Takes the shortest CPU time of three attempts, because a busy machine increases the CPU time.
    """
    lines, errors, cpu_s = help_page(verb.split())
    for _ in range(ATTEMPTS - 1):
        if cpu_s > MOST_CPU_S:
            cpu_s = help_page(verb.split())[2]
    assert cpu_s <= MOST_CPU_S
    assert json.loads(errors) == [0, []]
    name = "" if verb == DEFAULT else verb
    assert [line for line in lines if line.startswith(f"usage: {CANONICAL} {name}".strip())]
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


def test_a_percent_sign_in_a_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("p", "10% of it", "--rate 5%", notes="peak:\n  50% of it")
    parser.add_argument("--rate", metavar="R", help="10%..110% (default 25 %s)")
    parser.add_argument_group("more").add_argument("--peak", metavar="Q", help="100 % of it")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    printed = capsys.readouterr().out
    texts = (
        "10% of it",
        "--rate 5%\n",
        "  50% of it\n",
        "10%..110% (default 25 %s)",
        "100 % of it",
    )
    assert [text for text in texts if text not in printed] == []


def page_of(words: str) -> str:
    with redirect_stdout(StringIO()) as page, pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 0
    return page.getvalue()


def flags(page: str) -> list[str]:
    return [line.split()[0] for line in page.splitlines() if line.startswith("  --")]


@pytest.mark.parametrize("verb", ["profile", "sweep", "advise", "bricks"])
def test_the_usage_omits_scenario_when_it_has_a_default(verb: str) -> None:
    """Bug: `profile --help` printed `profile --scenario NAME [options]`, but --scenario is optional."""
    usage = page_of(f"{verb} --help").split("\n\n")[1]
    assert any("--scenario" not in line for line in usage.splitlines())


@pytest.mark.parametrize(
    ("verb", "refused", "texts"),
    [
        (
            "peak",
            "--queries --audit --arrivals --mlperf",
            (
                "(default: half of the calibrated capacity)",
                "results/TIME-peak-SCENARIO-BACKEND-MODEL",
            ),
        ),
        (
            "tune",
            "--queries --audit --arrivals --mlperf --mode --meter --concurrency",
            ("(default 1500ms)", "meets the latency bound)", "3 to 1,000", "results/TIME-tune-"),
        ),
        (
            "sweep",
            "--target-qps --audit --arrivals --mlperf --concurrency",
            ("results/TIME-sweep-server-BACKEND-MODEL",),
        ),
    ],
)
def test_the_help_of_a_search_lists_its_defaults_and_allowed_options(
    verb: str, refused: str, texts: Sequence[str]
) -> None:
    """Bug: `tune --help` printed the defaults of `run`, and no bounds for --rounds."""
    printed = page_of(f"{verb} --help-all")
    page = " ".join(printed.split())
    assert [text for text in texts if text not in page] == []
    assert {*flags(printed)}.isdisjoint(refused.split())
    assert "default 10s" not in page or verb != "tune"


def test_the_short_page_has_the_verbs_own_options_then_the_basic_ones() -> None:
    """Bug: `peak --help` buried its two options among 110 lines of a run's options."""
    page = page_of("peak --help")
    own, basic = page.index("  --probe "), page.index(f"\n{BASIC}:\n")
    assert own < basic < page.index("\ngeneral:\n")
    assert "45 more options: `python -m harness peak --help-all`" in " ".join(page.split())
    assert not {"--hook", "--audit", "--user-conf"} & {*flags(page)}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_the_page_of_all_options_fits(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    page = verb.parser().format_full_help()
    assert max(map(len, page.splitlines())) <= MOST_COLUMNS


def test_a_run_has_a_dozen_basic_options() -> None:
    short, full = page_of("run --help"), page_of("run --help-all")
    basic = flags(short[short.index(f"\n{BASIC}:\n") : short.index("\nrepeats:\n")])
    assert 10 <= len(basic) <= 14
    (count,) = [line.split()[0] for line in short.splitlines() if " more options: " in line]
    assert len(flags(full)) - len(flags(short)) == int(count)
    assert {*flags(short)} < {*flags(full)}


def test_the_groups_that_the_short_page_names_can_be_printed() -> None:
    page = " ".join(page_of("run --help").split())
    groups = page.rpartition("where GROUP is ")[2].replace(" or ", ", ").split(", ")
    wanted = "scenario load instances backend server nodes power mlperf output"
    assert " ".join(groups) == wanted
    pages = [run_here("help", group) for group in groups]
    assert {page.status for page in pages} == {0}
    listed = [flag for page in pages for flag in flags(page.printed)]
    assert {*listed} >= {*flags(page_of("run --help-all"))} - {"--help-all"} - {
        *("--version", "--config", "--trust", "--json", "--quiet", "--repeats", "--details")
    }


CALLED = [
    ([sys.executable, "-m", "harness"], f"{sys.executable} -m harness"),
    ([sys.executable, "-P", "-m", "harness"], f"{sys.executable} -P -m harness"),
    (["{folder}/mlperf-harness"], "{folder}/mlperf-harness"),
    (["mlperf-harness"], "mlperf-harness"),
]


@pytest.mark.parametrize(("words", "name"), CALLED, ids=["-m", "-P -m", "path", "on PATH"])
def test_the_help_uses_the_program_name_of_the_call(
    words: list[str], name: str, tmp_path: Path
) -> None:
    """Bug: `mlperf-harness help` printed `python -m harness`, which may be a different program in that folder."""
    script = tmp_path / "mlperf-harness"  # the test writes the script in the form that pip uses
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom harness.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    path = os.environ["PATH"]
    if words == ["mlperf-harness"]:
        path = f"{tmp_path}:{path}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    environment.pop(PROGRAM_VARIABLE, None)
    command = [word.format(folder=tmp_path) for word in [*words, "data", "--help"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    called = name.format(folder=tmp_path)
    assert done.stdout.startswith(f"usage: {called} data VERB [options]\n")
    assert f"`{called} data VERB --help`" in done.stdout


def test_a_message_names_run_sh_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRAM_VARIABLE, "../run.sh")
    (line,) = refused("--scenario", "server", "--model", "nosuch")
    assert "see `../run.sh list`" in line


def test_the_parts_of_advise_in_the_help_match_the_code() -> None:
    assert tuple(advise_job.PARTS) == advise_options.PARTS
