"""Lines of user.conf that LoadGen would misread are reported as problems with line numbers."""

import re
from pathlib import Path

import pytest

from harness.core.config.parse import parse_slo
from harness.errors import ConfigError
from harness.loadgen.official import official_load
from harness.loadgen.user_conf import compose, lint, server_text

GOOD = """\
# a comment
  # and another
*.Server.target_qps = 20.5
resnet50.Offline.target_qps = 60
*.SingleStream.target_latency = 0.5

*.*.min_duration = 600000
*.Server.target_latency = 15
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "user.conf"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        lint(path)
    prefix = re.compile(rf"^{re.escape(str(path))}, line (\d+): ")
    return [prefix.sub(r"\1: ", line) for line in str(caught.value).splitlines()]


def test_a_correct_file_is_returned_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "user.conf"
    path.write_text(GOOD)
    assert lint(path) == GOOD


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("*.Server.target_qp = 20", "unknown key 'target_qp': did you mean 'target_qps'?"),
        (
            "*.Server.target_qps=20",
            "'*.Server.target_qps=20' is not 'model.Scenario.key = value' with spaces around '='",
        ),
        (
            "*.Server.target_qps = 20 30",
            "'*.Server.target_qps = 20 30' is not 'model.Scenario.key = value' with spaces around '='",
        ),
        ("target_qps = 20", "'target_qps' is not model.Scenario.key, e.g. *.Server.target_qps"),
        (
            "*.server.target_qps = 20",
            "scenario 'server' is not known to LoadGen: write Server",
        ),
        (
            "*.single-stream.target_latency = 1",
            "scenario 'single-stream' is not known to LoadGen: write SingleStream",
        ),
        (
            "*.Chess.target_qps = 20",
            (
                "scenario 'Chess' is not known to LoadGen: choose from SingleStream, MultiStream, "
                "Server, Offline, Interactive or *"
            ),
        ),
        (
            "*.*.min_duration = 600000.0",
            "min_duration = 600000.0: LoadGen reads whole numbers here, without an exponent",
        ),
        (
            "*.*.min_duration = 6e5",
            "min_duration = 6e5: LoadGen reads whole numbers here, without an exponent",
        ),
        (
            "*.*.min_duration = 60000",
            "min_duration = 60000: official runs need at least 600000 ms",
        ),
        (
            "*.*.max_duration = 700000",
            "max_duration is not allowed: an official run must not be cut short",
        ),
        (
            "*.Server.max_query_count = 10",
            "max_query_count is not allowed: an official run must not be cut short",
        ),
        ("*.*.mode = 2", "mode is not allowed: the harness sets it"),
        (
            "*.Server.target_latency = 0.5",
            "Server.target_latency = 0.5: LoadGen truncates it to whole milliseconds",
        ),
        ("*.Server.target_qps = fast", "target_qps = fast: LoadGen reads plain decimal numbers here"),
        ("*.Server.target_qps = 1e3", "target_qps = 1e3: LoadGen reads plain decimal numbers here"),
        ("*.Server.target_qps = -5", "target_qps = -5: LoadGen reads plain decimal numbers here"),
        ("*.Server.target_qps = 0", "target_qps = 0: it must be more than 0"),
        ("*.SingleStream.target_latency = 0.0", "target_latency = 0.0: it must be more than 0"),
    ],
)  # fmt: skip
def test_a_line_that_loadgen_would_misread_is_a_problem(
    line: str, problem: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, f"# first\n{line}\n") == [f"2: {problem}"]


@pytest.mark.parametrize("value", ["0.99", "0", "100", "250"])
def test_a_percentile_that_is_not_in_percent_is_a_problem(value: str, tmp_path: Path) -> None:
    """LoadGen expects percent: 0.99 would mean a percentile of 0.0099, which every run meets."""
    (problem,) = problems(tmp_path, f"*.Server.target_latency_percentile = {value}\n")
    assert problem.startswith(f"1: target_latency_percentile = {value}: ")


@pytest.mark.parametrize(
    "line",
    [
        "*.Server.target_qps = 20",
        "*.Server.target_qps  =  20",
        "  *.Server.target_qps = 20  ",
        "#*.Server.target_qps = 20",
        "*.Server.target_qps = 20 # queries/s",
        "*.Server.target_qps = 20# queries/s",
        "*.Server.target_qps\t= 20",
    ],
)
def test_loadgen_accepts_every_line_without_a_problem(line: str, tmp_path: Path) -> None:
    path = tmp_path / "user.conf"
    path.write_text(f"{line}\n")
    try:
        path.write_text(compose(lint(path), iter(())))
    except ConfigError:
        return
    official_load("server", "resnet50", str(path), 1024, 1024)


def test_all_wrong_lines_are_reported_at_once(tmp_path: Path) -> None:
    text = "a=1\n*.Server.target_qps = 5\n*.serve.target_qp = 5\n"
    assert problems(tmp_path, text) == [
        "1: 'a=1' is not 'model.Scenario.key = value' with spaces around '='",
        "3: scenario 'serve' is not known to LoadGen: write Server",
        "3: unknown key 'target_qp': did you mean 'target_qps'?",
    ]


def test_a_missing_file_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--user-conf \S+/no\.conf cannot be read: .+$"):
        lint(tmp_path / "no.conf")


SIZED = [("Server.target_qps", "100.000000")]


def test_sizes_come_from_the_calibration_without_a_file() -> None:
    assert compose("", iter(SIZED)) == "# sized by calibration\n*.Server.target_qps = 100.000000\n"
    assert compose("", iter(())) == ""


@pytest.mark.parametrize(
    ("text", "qps"),
    [
        ("", 100),
        ("*.Server.target_qps = 20\n", 20),
        ("resnet50.Server.target_qps = 20\n", 20),
        ("*.*.target_qps = 20\n", 20),
        ("resnet50.*.target_qps = 20\n", 20),
        ("  *.Server.target_qps = 20\n", 20),
        ("*.Offline.target_qps = 20\n", 100),
        ("# *.Server.target_qps = 20\n", 100),
        ("#*.Server.target_qps = 20\n", 100),
    ],
)
def test_the_users_rate_replaces_the_calibrated_one(text: str, qps: float, tmp_path: Path) -> None:
    """LoadGen reads the keys in this order: model.Scenario, *.Scenario, model.*, *.*."""
    path = tmp_path / "user.conf"
    path.write_text(compose(text, iter(SIZED)))
    assert official_load("server", "resnet50", str(path), 1024, 1024).target_qps == qps


@pytest.mark.parametrize("name", ["bert.Server", "bert.*"])
def test_a_rate_for_another_model_keeps_the_calibrated_rate(name: str, tmp_path: Path) -> None:
    """Bug: a line for bert discarded the calibrated rate, and resnet50 ran at 1 query/s."""
    path = tmp_path / "user.conf"
    path.write_text(compose(f"{name}.target_qps = 20\n", iter(SIZED)))
    assert official_load("server", "resnet50", str(path), 1024, 1024).target_qps == 100


@pytest.mark.parametrize(
    ("slo", "lines"),
    [
        ("p99=15ms", ["*.Server.target_latency = 15"]),
        ("p99=500us", ["# p99=500us: LoadGen reads whole ms, so the bound of the rules applies"]),
        (
            "p99.9=2s",
            ["*.Server.target_latency = 2000", "*.Server.target_latency_percentile = 99.9"],
        ),
    ],
)
def test_loadgen_reads_the_file_of_a_peak_rate(slo: str, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "user.conf"
    path.write_text(server_text(1234.5, [parse_slo(slo)], "found here\nand so"))
    head = ["# found here", "# and so", "*.Server.target_qps = 1234.500000"]
    assert lint(path).splitlines() == [*head, *lines]
    load = official_load("server", "resnet50", str(path), 100, 100)
    assert load.target_qps == 1234.5


def test_the_file_of_a_peak_under_slos_of_tokens_has_their_bounds(tmp_path: Path) -> None:
    path = tmp_path / "user.conf"
    slos = [
        parse_slo(text) for text in ("p99=5s", "ttft:p90=2s", "tpot:p99=200ms", "tpot:p99.9=1.5ms")
    ]
    path.write_text(server_text(3.25, slos, "found"))
    assert lint(path).splitlines() == [
        "# found",
        "*.Server.target_qps = 3.250000",
        "*.Server.use_token_latencies = 1",
        "# p99=5s: LoadGen judges tokens instead",
        "*.Server.ttft_latency = 2000",
        "*.Server.tpot_latency = 200",
        "# tpot:p99.9=1500us: LoadGen reads whole ms, so the bound of the rules applies",
        "*.Server.target_latency_percentile = 99.9",
    ]
    load = official_load("server", "resnet50", str(path), 100, 100)
    assert (load.target_qps, load.token_latencies, load.latency_bound_ns) == (3.25, True, None)
