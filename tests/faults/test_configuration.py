"""A user's mistakes: one line per problem, all problems at once, status 2, and no files left behind."""

from pathlib import Path

import pytest
import yaml

from harness.machine.cores import available
from tests.faults.command import ROOT, SERVER, run, run_here

HERE = available()
DIGITS = yaml.safe_load((ROOT / "harness/models/shipped/digits.yaml").read_text(encoding="utf-8"))


def refused(folder: Path, *arguments: str) -> list[str]:
    """Returns the error lines of a command, and checks that it left no files."""
    before = set(folder.iterdir())
    done = run_here(*arguments, "--out", str(folder / "r"))
    assert done.status == 2, done.said + done.printed
    assert done.printed == ""
    assert set(folder.iterdir()) == before
    lines = done.said.splitlines()
    assert all(line.startswith("harness: ") for line in lines)
    return [line.removeprefix("harness: ") for line in lines]


OUT_OF_RANGE = [
    ("--scenario", "nosuch"),
    ("--backend", "nosuch"),
    ("--model", "nosuch"),
    ("--dataset", "nosuch"),
    ("--metric", "nosuch"),
    ("--data-dir", "/nosuch"),
    ("--mode", "fast"),
    ("--duration", "10"),
    ("--duration", "0s"),
    ("--queries", "0"),
    ("--slo", "p101=1ms"),
    ("--slo", "p99=0ms"),
    ("--target-qps", "0"),
    ("--target-qps", "nan"),
    ("--samples-per-query", "0"),
    ("--performance-count", "-1"),
    ("--seed", "-1"),
    ("--instances", "0"),
    ("--threads", "x"),
    ("--dispatch", "lazy"),
    ("--batch-wait", "5"),
    ("--max-batch", "65536"),
    ("--provider", "NoSuchProvider"),
    ("--input-shape", "ids=0"),
    ("--backend-option", "spinning"),
    ("--backend-option", "nosuch=1"),
    ("--hang-timeout", "0s"),
    ("--user-conf", "/nosuch.conf"),
    ("--config", "/nosuch.yaml"),
]


@pytest.mark.parametrize(("option", "value"), OUT_OF_RANGE, ids=lambda text: text)
def test_a_value_out_of_range_is_reported_in_one_line(
    option: str, value: str, tmp_path: Path
) -> None:
    more = ("--mlperf",) if option == "--user-conf" else ("--target-qps", "100")
    scenario = "multi-stream" if option == "--samples-per-query" else "server"
    given = () if option in ("--scenario", "--target-qps") or scenario != "server" else more
    arguments = ("--scenario", scenario, *given) if option != "--scenario" else ()
    (line,) = refused(tmp_path, *arguments, option, value)
    assert value.partition("=")[0] in line or option.lstrip("-") in line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--scenario", "offline", "--target-qps", "5"),
            "--target-qps belongs to --scenario server: drop it for offline",
        ),
        (
            ("--scenario", "single-stream", "--instances", "2"),
            "--instances 2 has no effect, because single-stream issues one query at a time, which one instance answers: drop it",
        ),
        (
            (*SERVER, "--instances", "1024", "--threads", "1024"),
            (
                f"1,024 instances x 1,024 threads need 1048576 threads, but {HERE.threads} can compute at the "
                f"same time ({HERE}): lower --instances or --threads, or add --oversubscribe"
            ),
        ),
        (
            (*SERVER, "--pin", "--oversubscribe"),
            "--pin gives each thread a separate core, --oversubscribe shares cores: drop one",
        ),
        (
            ("--scenario", "offline", "--batch-wait", "1ms"),
            "--batch-wait belongs to --scenario server: drop it for offline",
        ),
        (
            ("--scenario", "single-stream", "--dispatch", "deadline"),
            "--dispatch belongs to --scenario server: drop it for single-stream",
        ),
        (
            (*SERVER, "--slo", "p99=50ms", "--batch-wait", "50ms"),
            (
                "--batch-wait 50 ms is not shorter than the SLO p99=50ms, so a query could miss the SLO while its batch "
                "waits: set a shorter --batch-wait"
            ),
        ),
        (
            (*SERVER, "--concurrency", "4", "--batch-wait", "1ms"),
            (
                "--concurrency 4 never fills a larger batch, so each batch would wait for --batch-wait: drop it, or add "
                "--max-batch 4"
            ),
        ),
        (
            (*SERVER, "--batch-wait", "1ms", "--max-batch", "1"),
            "--batch-wait has no effect with --max-batch 1: drop it",
        ),
        (
            (*SERVER, "--mlperf", "--queries", "5"),
            "--queries cannot be set with --mlperf: LoadGen sets the count",
        ),
        (
            (*SERVER, "--input-shape", "a=1x2", "--input-shape", "a=1x3"),
            "--input-shape a appears twice: keep one",
        ),
        (
            (*SERVER, "--backend", "null", "--provider", "CPUExecutionProvider"),
            "backend 'null' takes only --device cpu, no --provider and no --backend-option",
        ),
        (
            ("--backend", "ort"),
            "--scenario is missing: choose from single-stream, multi-stream, server, offline",
        ),
    ],
)
def test_a_contradiction_is_reported_in_one_line(
    arguments: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    assert refused(tmp_path, *arguments) == [line]


def test_several_mistakes_are_all_reported(tmp_path: Path) -> None:
    config = tmp_path / "my.yaml"
    config.write_text("scenario: server\nqueriez: 5\nmax_batch: 0\n")
    lines = refused(
        tmp_path,
        "--config", str(config), "--slo", "fast", "--queries", "-1", "--nosuch",
        "--backend", "nosuch", "--model", "missing.onnx",
    )  # fmt: skip
    assert [line.partition(":")[0] for line in lines] == [
        "unknown option --nosuch",
        str(config),
        str(config),
        "--queries",
        "--slo",
        "no backend named 'nosuch'",
        "--model missing.onnx does not exist",
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "schema_version: 999\nscenario: server\n",
            "has schema_version 999, this harness reads up",
        ),
        ("- scenario\n", "is not a configuration: it must map option names to values"),
        ("scenario: [server\n", "is not valid YAML: "),
        ("a: &a [x, x]\nb: &b [*a, *a]\nscenario: *b\n", "aliases are not allowed here"),
        (
            "scenario: !!python/object/apply:os.system [id]\n",
            "line 1: tags such as '!!python/object/apply:os.system' are not allowed here",
        ),
        ("x" * ((1 << 20) + 1), "is larger than 1 MiB"),
        ("scenario: server\nbackend: {a: 1}\n", "backend: {'a': 1} is not a single value"),
    ],
)
def test_an_invalid_configuration_is_reported_in_one_line(
    content: str, told: str, tmp_path: Path
) -> None:
    config = tmp_path / "my.yaml"
    config.write_text(content)
    (line,) = refused(tmp_path, "--config", str(config))
    assert line.startswith(str(config))
    assert told in line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("*.Server.target_qps=5\n", "is not 'model.Scenario.key = value' with spaces around '='"),
        ("*.server.target_qps = 5\n", "scenario 'server' is not known to LoadGen: write Server"),
        ("*.Server.target_qsp = 5\n", "unknown key 'target_qsp': did you mean 'target_qps'?"),
        ("*.Server.min_duration = 1000\n", "official runs need at least 600000 ms"),
    ],
)
def test_a_user_conf_that_loadgen_would_misread_is_reported_in_one_line(
    content: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "user.conf"
    path.write_text("*.Server.target_qps = 10\n" + content)
    (line,) = refused(tmp_path, *SERVER, "--mlperf", "--user-conf", str(path))
    assert line.startswith(f"{path}, line 2: ")
    assert told in line


def _manifest(folder: Path, **changes: object) -> str:
    """Writes a changed copy of digits.yaml next to the model."""
    content = {k: v for k, v in {**DIGITS, **changes}.items() if v != "absent"}
    (folder / "model").mkdir()
    (folder / "model/digits.onnx").write_bytes(
        (ROOT / "harness/models/shipped/digits.onnx").read_bytes()
    )
    path = folder / "model/digits.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"name": "absent"}, "field 'name' is missing"),
        ({"files": {"onnx": {"path": "digits.onnx", "sha256": "0" * 64}}}, "SHA-256 is "),
        (
            {"files": {"onnx": {"path": "../x.onnx", "sha256": "0" * 64}}},
            "is outside the manifest's",
        ),
        (
            {"files": {"onnx": {"path": "/etc/passwd", "sha256": "0" * 64}}},
            "is outside the manifest's",
        ),
        ({"files": {"tflite": DIGITS["files"]["tflite"]}}, "has no file in a format this backend"),
        ({"outputs": [{"name": "nosuch", "postprocess": "argmax"}]}, "'nosuch' is not among the"),
    ],
)
def test_a_manifest_with_a_fault_is_reported_in_one_line(
    changes: dict[str, object], told: str, tmp_path: Path
) -> None:
    lines = refused(
        tmp_path, *SERVER, "--target-qps", "100", "--model", _manifest(tmp_path, **changes)
    )
    assert [line for line in lines if told in line] == lines
    assert len(lines) == 1


def test_a_run_works_with_the_python_fault_handler(tmp_path: Path) -> None:
    """Bug: Python's fault handlers could not be restored, and the run ended with a traceback."""
    words = ("--scenario", "single-stream", "--backend", "null", "--mode", "performance")
    done = run(
        *words, "--queries", "100", "--out", f"{tmp_path}/r", env={"PYTHONFAULTHANDLER": "1"}
    )
    assert done.status == 0, done.said
