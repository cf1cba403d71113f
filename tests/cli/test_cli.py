"""The harness refuses a wrong command line with one line per mistake and status 2, and writes nothing to disk."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.cli.data import PARTS, list_names
from harness.cli.main import main
from harness.cli.run import parser
from harness.cli.verbs import Verb
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.extras import how_to_install
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.model import Model
from harness.results import database
from tests.builders.refusals import refused
from tests.builders.result import stored_result
from tests.faults.command import ROOT, run_here

SCENARIOS = "choose from single-stream, multi-stream, server, offline"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Returns the configurations that the command line would run."""
    configs: list[RunConfig] = []

    def execute(config: RunConfig, **_: Any) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr("harness.run.supervisor.job.execute", execute)
    return configs


def problems(*words: str) -> list[str]:
    """Returns the lines of a refusal that writes nothing to disk."""
    before = sorted(Path().iterdir())
    lines = refused(*words)
    assert sorted(Path().iterdir()) == before
    return lines


REMOTE = "--scenario server --backend openai --url http://127.0.0.1:9 --model tinylm"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run", f"--scenario is missing: {SCENARIOS}"),
        ("--scenario serve", f"--scenario: no scenario named 'serve': {SCENARIOS}"),
        ("--scenario serve --target-qps 5", f"--scenario: no scenario named 'serve': {SCENARIOS}"),
        ("--scenario server --target-qps 0", "--target-qps: 0 must be more than 0 and at most 1e9 queries/s"),
        ("--scenario server --duration 10", "--duration: '10' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s"),
        ("--scenario server --model missing.onnx", "--model missing.onnx does not exist"),
        ("--scenario server --model nosuch", "no model named 'nosuch': see `python -m harness list`, or give a path to a file"),
        (
            "--scenario server --backend nosuch",
            "no backend named 'nosuch': choose from ort, tensorflow, openvino, litert, torch, executorch, trees, ncnn, mnn, tract, kserve, openai, http-raw, http-json, null, ort-genai, openvino-genai, llama-cpp, ort-whisper, openvino-whisper",
        ),
        ("--scenario server --backend nul", "no backend named 'nul': did you mean 'null'?"),
        ("--scenario server --dataset digit", "no dataset named 'digit': did you mean 'digits'?"),
        ("--scenario server --metric topp1", "no metric named 'topp1': did you mean 'top1'?"),
        ("--scenario server --data-dir nowhere", "--data-dir nowhere does not exist"),
        ("--scenario server --mode quick", "--mode: 'quick' is not one of performance, accuracy, both"),
        ("--config no.yaml", "no.yaml cannot be read: No such file or directory"),
        ("--scenario server --target-qp=5", "unknown option --target-qp: did you mean --target-qps?"),
        ("--scenario server --target-qp 5", "unknown option --target-qp: did you mean --target-qps?"),
        ("--scenario server --xyzzy", "unknown option --xyzzy: see --help"),
        ("--scenario server --cache cold", "unknown option --cache: it is an option of `sweep`"),
        ("bricks --model a --model b", "unknown option --model: pass MODEL alone, without an option"),
        ("peak --scenario server --repeats 3", "unknown option --repeats: it is an option of `run`, `machine`, `rerun`"),
        ("--scenario server --backend null --out x.partial", "x.partial: --out must not end in .partial: unfinished runs have that name"),
        ("--scenario server --repeats 1", "--repeats: 1 must be between 2 and 1,000"),
        ("--scenario server --queries 5 --duration 1s", "--queries and --duration both set the length of the run: keep one"),
        ("--scenario server --mode accuracy --queries 5", "--queries sets the length of the performance run: drop it with --mode accuracy"),
        ("--scenario server --mode accuracy --duration 1s", "--duration sets the length of the performance run: drop it with --mode accuracy"),
        ("--scenario server --dataset synthetic --metric top1", "--metric cannot score synthetic data, which has no labels: drop it, or pass a different --dataset"),
        ("--scenario server offline", "unexpected argument 'offline': see --help"),
        ("--scenario server --queries", "--queries needs a value: --queries N"),
        ("--scenario server --quiet=3", "--quiet takes no value: drop '3'"),
        ("--scenario server --duration -3s", "--duration: '-3s' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s"),
        ("--scenario server --duration --json", "--duration needs a value: --duration TIME"),
        ("--scenario server --threads -1", "--threads: -1 must be between 1 and 1,024"),
        ("--scenario server -3s", "unknown option -3s: see --help"),
        ("--scenario server --count 10", "use --queries N in place of --count"),
        ("--scenario server --count=10", "use --queries N in place of --count"),
        ("--scenario server --accuracy", "use --mode accuracy in place of --accuracy"),
        ("--scenario server --time 10s", "--duration: '10ss' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s"),
        ("runs --limit many", "--limit: 'many' is not a whole number"),
        ("compare", "SIDE is missing: a run, or runs of one configuration, e.g. results/a 'results/b-*'"),
        ("profile digits", "unexpected argument 'digits': did you mean --model digits?"),
        ("cold --model digits", "unknown option --model: pass MODEL alone, without an option"),
        ("check", "RUN is missing: the folder of a run, e.g. results/latest, or of a study"),
        ("check a b", "unexpected argument 'b': see --help"),
        ("data chekc npz", "no verb 'data chekc': did you mean 'data check'?"),
        ("runs --formt csv", "unknown option --formt: did you mean --format?"),
        ("data check npz --data-dir ~nobody-here/x", "~nobody-here/x: this home folder does not exist"),
        ("list --all", "unknown option --all: see --help"),
        # Bug: the message was `the run would not end`, although probes run beside a load that ends.
        (f"{REMOTE} --probe-rate 0.001", "--probe-rate 0.001 is less than one probe in this run of 10 s, which would show nothing: raise it above 0.1, or raise --duration"),
        ("--scenario server --probe-rate 0", "--probe-rate: 0 must be more than 0 probes per second"),
        ("--scenario server --probe-rate 200", "--probe-rate: '200' is above 100 probes per second, which would load the server noticeably"),
        ("--scenario server --probe-rate x", "--probe-rate: 'x' is not a number"),
        # Bug: the message advised --concurrency, which makes `peak` search for something else.
        ("peak --scenario server --until steady", "--until lets one run go on until it is decided, but peak plans the length of its runs: drop it"),
        ("sweep --scenario server --until 2%", "--until lets one run go on until it is decided, but sweep plans the length of its runs: drop it"),
        ("tune --scenario server --until 2%", "--until lets one run go on until it is decided, but tune plans the length of its runs: drop it"),
        ("arrivals burst --rate 5 --out x", "KIND: 'burst' is not one of constant, steps, ramp, gamma, loadgen"),
    ],
)  # fmt: skip
def test_a_mistake_prints_one_line_and_exits_with_2(arguments: str, line: str) -> None:
    assert problems(*arguments.split()) == [line]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            "arrivals",
            [
                "KIND is missing: kind of schedule, e.g. constant",
                "--rate is missing: rates in queries/s, without thousands separators",
                "--out is missing: file to write, which must not exist yet",
            ],
        ),
        (
            "--scenario offline --target-qps 5 --duration 10 --threads 0 --quite",
            [
                "unknown option --quite: did you mean --quiet?",
                "--duration: '10' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s",
                "--threads: 0 must be between 1 and 1,024",
                "--target-qps belongs to --scenario server: drop it for offline",
            ],
        ),
        (  # Bug: three more lines complained about options that belong to the refused scenario.
            "--scenario offline --arrivals x --concurrency 4 --target-qps 5",
            [
                "--target-qps belongs to --scenario server: drop it for offline",
                "--arrivals belongs to --scenario server: drop it for offline",
                "--concurrency belongs to --scenario server: drop it for offline",
            ],
        ),
        (
            "--scenario server --meter rappl --meter nosuch.py:Meter",
            [
                "no meter named 'rappl': did you mean 'rapl'?",
                "meter 'nosuch.py:Meter': the file nosuch.py does not exist",
            ],
        ),
    ],
)
def test_every_mistake_is_reported_at_once_and_once(arguments: str, lines: list[str]) -> None:
    assert problems(*arguments.split()) == lines


def stopped() -> None:
    raise KeyboardInterrupt


def stopped_in_an_import() -> None:
    """Python up to 3.12 turns Ctrl-C into a RuntimeError while it creates a dataclass."""
    raise RuntimeError("Error calling __set_name__ on 'Field'") from KeyboardInterrupt()


def full() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("all that was measured")


@pytest.mark.parametrize(
    ("fails", "status", "line"),
    [
        (stopped, 130, "stopped by Ctrl-C"),
        (stopped_in_an_import, 130, "stopped by Ctrl-C"),
        (
            full,
            4,
            "a file cannot be written (No space left on device): free space there, or write elsewhere",
        ),
    ],
)
def test_an_interrupt_or_a_full_disk_ends_a_verb_in_one_line(
    fails: Callable[[], None], status: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bugs: Ctrl-C in the first seconds ended a run silently, and ended `machine` with a traceback."""
    monkeypatch.setattr(Verb, "__call__", lambda _verb, _words: fails())
    assert run_here("bricks") == (status, "", f"harness: {line}\n")


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ("--qps 100", "target_qps", 100.0),
        ("--qps=100", "target_qps", 100.0),
        ("--max-batchsize 32", "max_batch", 32),
        ("--dataset-path data", "data_dir", Path("data")),
        ("--output out", "out", Path("out")),
        ("--time 60", "duration_ns", 60 * NS_PER_S),
        ("--time=0.5", "duration_ns", 500 * NS_PER_MS),
        ("--max-latency 0.015", "slo", (Slo(0.99, 15 * NS_PER_MS),)),
        ("--max-latency=0.1", "slo", (Slo(0.99, 100 * NS_PER_MS),)),
    ],
)
def test_the_reference_harness_spelling_is_understood(
    arguments: str, field: str, value: object, executed: list[RunConfig]
) -> None:
    assert main(["--scenario", "Server", *arguments.split()]) == 0
    (config,) = executed
    assert getattr(config, field) == value


def test_run_is_the_default_verb(executed: list[RunConfig]) -> None:
    assert main(["--scenario", "server"]) == 0
    assert main(["run", "--scenario", "server"]) == 0
    assert executed == [RunConfig(scenario="server")] * 2


def test_an_option_that_may_be_repeated_keeps_every_value(executed: list[RunConfig]) -> None:
    main(["--scenario", "server", "--input-shape", "a=1x2", "--input-shape", "b=1x3"])
    assert executed[0].input_shape == (("a", (1, 2)), ("b", (1, 3)))


def test_the_command_line_has_at_most_75_options() -> None:
    options = [a for a in parser()._actions if a.option_strings]
    assert len(options) <= 75


def test_every_option_has_a_sentence_of_help() -> None:
    assert [a.option_strings for a in parser()._actions if not a.help] == []


def write(text: str) -> str:
    Path("my.yaml").write_text(text, encoding="utf-8")
    return "my.yaml"


def test_options_come_from_a_file_and_the_command_line_wins(executed: list[RunConfig]) -> None:
    file = write("schema_version: 1\nscenario: server\nqueries: 700\ntarget_qps: 20\n")
    assert main(["--config", file, "--queries", "800"]) == 0
    assert executed == [RunConfig(scenario="server", queries=800, target_qps=20.0)]


def test_a_run_folder_can_be_used_as_a_configuration(executed: list[RunConfig]) -> None:
    """Bug: `--config results/latest` failed with `Is a directory`."""
    Path("run").mkdir()
    Path("run/config.yaml").write_text("scenario: server\nqueries: 700\n", encoding="utf-8")
    Path("latest").symlink_to("run")
    assert main(["--config", "latest"]) == 0
    assert executed == [RunConfig(scenario="server", queries=700)]


def test_a_folder_without_a_configuration_is_reported_in_one_line() -> None:
    Path("run").mkdir()
    lines = problems("--config", "run")
    assert lines == ["--config: run has no config.yaml: check that it is a run's folder"]


def test_a_backend_called_null_in_yaml_is_the_null_backend(executed: list[RunConfig]) -> None:
    """Bug: `backend: null` was read as a missing value, so ONNX Runtime silently ran instead."""
    main(["--config", write("scenario: server\nbackend: null\n")])
    assert [c.backend for c in executed] in ([], ["null"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("scenario: server\nquerys: 7\n", "my.yaml: unknown key 'querys': did you mean 'queries'?"),
        ("schema_version: 2\nscenario: server\n", "my.yaml has schema_version 2, this harness reads up to 1: update the harness"),
        ("schema_version: '1'\nscenario: server\n", "my.yaml has schema_version '1', this harness reads up to 1: update the harness"),
        ("- server\n", "my.yaml is not a configuration: it must map option names to values"),
        ("1: server\n", "my.yaml is not a configuration: it must map option names to values"),
        ("", "my.yaml is not a configuration: it must map option names to values"),
        ("scenario: server\nqueries: 0\n", "my.yaml: queries: 0 must be between 1 and 2,147,483,647"),
        ("a: &a [1, 1]\nb: [*a, *a]\n", "my.yaml line 2: aliases are not allowed here"),
        ("x" * (1 << 20) + "x", "my.yaml is larger than 1 MiB: pass the path of a configuration or a manifest"),
    ],
    ids=lambda x: x[:20],
)  # fmt: skip
def test_a_bad_configuration_file_is_reported_in_one_line(text: str, line: str) -> None:
    assert problems("--config", write(text)) == [line]


@pytest.mark.parametrize(
    "text", ["scenario: [server", "a: !!python/object:os.x {}", "\x00", "[" * 5000]
)
def test_a_file_that_is_not_yaml_is_named_in_one_line(text: str) -> None:
    (line,) = problems("--config", write(text))
    assert re.match(r"^my\.yaml (is not valid YAML: \S|line 1: tags such as '!!python)", line)


def test_list_names_every_plug_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    words = capsys.readouterr().out.split()
    assert {"server", "ort", "null", "digits", "synthetic", "top1"} <= set(words)


def test_list_of_one_part_leaves_out_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: `list models` was refused as an unexpected argument."""
    parts = []
    for part in PARTS:
        assert main(["list", part]) == 0
        parts.append(capsys.readouterr().out)
    assert main(["list"]) == 0
    names = [line.split("  ")[1] for line in "".join(parts).splitlines() if line.startswith("  ")]
    assert names == [
        line.split("  ")[1]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ")
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["model"],
            "list model: choose from scenarios, backends, datasets, metrics, meters, benchmarks, models, presets",
        ),
        (["models", "--nodes", "a:1"], "--nodes lists only nodes: drop 'models'"),
    ],
)
def test_list_refuses_a_part_that_it_cannot_list(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        list_names(words)


def test_list_separates_every_name_from_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: `list` printed `synthetic-promptsprompts of given lengths`."""
    main(["list"])
    rows = [line[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    names = {len(row) - len(row.partition("  ")[2].lstrip()) for row in rows}
    assert len(names) == 1  # all texts begin in the same column


def test_list_says_what_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.core.registry.Entry.installed", False)
    main(["list"])
    (line,) = [n for n in capsys.readouterr().out.splitlines() if n.startswith("  ort ")]
    assert line.endswith(f"(not installed: {how_to_install('ort')})")


def test_list_says_which_meters_work_here_and_why_the_others_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("harness.machine.power.meters.rapl.ROOT", tmp_path)
    main(["list"])
    printed = capsys.readouterr().out.splitlines()
    lines = {line.split()[0]: line for line in printed if line.startswith("  ")}
    assert f"(not here: {tmp_path} has no energy counters" in lines["rapl"]
    assert lines["estimate"].endswith("estimated, never measured")
    assert lines["command"].endswith("a program that prints watts or joules")


def test_runs_without_a_database_says_how_to_get_one() -> None:
    no_runs = "harness: no runs in results: make one, or pass --results DIR\n"
    assert run_here("runs") == (0, "", no_runs)


def test_runs_refuses_an_empty_folder_name() -> None:
    """Bug: with an unset shell variable, `--results "$DIR"` meant the working directory."""
    assert problems("runs", "--results", "") == ["'' is not a path: name a file or a folder"]


def test_runs_lists_the_newest_first_with_dashes_for_missing_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    database.add(tmp_path, "first", stored_result("2026-01-01"))
    nothing = {"headline": None, "latency_ns": None, "throughput_per_s": None, "accuracy": None}
    reasons = [{"code": "hung", "text": "it hung"}, {"code": "clock-jumped", "text": "by 1 s"}]
    failed = stored_result("2026-01-02", **nothing, verdict="INVALID", reasons=reasons)
    database.add(tmp_path, "second.partial", failed)
    database.add(tmp_path, "third", stored_result("2026-01-03", scenario="offline"))
    for name in ("first", "second.partial", "third"):
        (tmp_path / name).mkdir()
    assert main(["runs", "--results", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["folder", "verdict", "headline", "p99", "accuracy", "reasons"],
        # The p99 is `-`, because Offline has no latency.
        ["third", "VALID", "2,000", "queries/s", "-", "99.20"],
        ["second.partial", "INVALID", "-", "-", "-", "hung", "clock-jumped"],
        ["first", "VALID", "2,000", "queries/s", "1.50", "ms", "99.20"],
    ]
    main(["runs", "--results", str(tmp_path), "--limit", "1"])
    assert "first" not in capsys.readouterr().out


def test_a_file_that_is_not_a_database_is_reported_in_one_line() -> None:
    """Bug: a corrupt runs.sqlite ended the command with a traceback."""
    Path("runs.sqlite").write_text("not a database")
    (line,) = problems("runs", "--results", ".")
    assert re.match(r"^(\./)?runs\.sqlite .*file is not a database", line)


def _command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments], capture_output=True, text=True, check=False
    )


def test_the_real_command_refuses_without_a_traceback() -> None:
    done = _command("--scenario", "server", "--qpss=5")
    line = "harness: unknown option --qpss: see --help\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert list(Path().iterdir()) == []


def test_the_version_option_prints_the_package_version() -> None:
    done = _command("--version")
    assert (done.returncode, done.stdout) == (0, f"mlperf-harness {__version__}\n")


def test_a_closed_pipe_prints_no_traceback() -> None:
    shell = f"{sys.executable} -m harness list | head -n 0; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_behind_the_output_changes_no_exit_status(stream: str) -> None:
    words = ["list"] if stream == "stdout" else ["check", "/nowhere"]
    code = "import sys; from harness.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with Path("/dev/full").open("w") as disk:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            stdout=disk if stream == "stdout" else None,
            stderr=disk if stream == "stderr" else subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == (0 if stream == "stdout" else 2)
    if stream == "stdout":
        assert (
            "stdout cannot be written, so its output is incomplete: No space left on device"
            in done.stderr
        )


def test_list_names_a_model_whose_package_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: `list` printed nothing if the package onnx, which makes light/alexnet, was missing."""

    def missing(_: Model) -> int:
        raise PluginUnavailable("no onnx")

    monkeypatch.setattr(Model, "file_bytes", property(missing))
    assert main(["list"]) == 0
    assert "  light/alexnet " in capsys.readouterr().out


def test_a_model_without_its_option_is_reported_with_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bug: `advise net.onnx` printed only `see --help`."""
    assert main(["advise", "net.onnx"]) == 2
    said = capsys.readouterr().err
    assert "unexpected argument 'net.onnx': did you mean --model net.onnx?" in said
