"""The metrics of short runs reach a real Pushgateway; without one, the run is unchanged."""

import re
import socket
from pathlib import Path

import pytest

from harness import RunConfig
from harness.core.config.run_config import to_plain
from harness.core.shown.private import host_id
from harness.errors import ConfigError
from harness.run.supervisor.metrics.endpoint import MetricsEndpoint
from tests.faults.command import run
from tests.stand_ins.servers.metrics.pushgateway import pushed, pushgateway

QUICK = ("--scenario", "single-stream", "--mode", "performance", "--no-metrics", "--quiet")


def test_no_gateway_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    config = RunConfig.of(scenario="server", metrics_push=url, no_metrics=True)
    MetricsEndpoint(config, quiet=True).push()
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        rf"harness: --metrics-push {url} did not accept the metrics \(.*refused.*\): check that a Pushgateway listens there",
        line,
    )


def test_no_file_names_the_gateway_and_its_url_has_no_password() -> None:
    config = RunConfig.of(scenario="server", metrics_push="http://gateway:9091/x")
    assert "gateway" not in str(to_plain(config))
    with pytest.raises(ConfigError, match="is not a Pushgateway: write http://HOST:PORT"):
        RunConfig.of(scenario="server", metrics_push="http://user:password@gateway:9091")


@pytest.mark.slow
def test_a_gateway_keeps_the_newest_run_of_each_workload(tmp_path: Path) -> None:
    with pushgateway(tmp_path) as url:
        for name, backend in (("a", "null"), ("b", "ort"), ("c", "ort")):
            words = (
                "--backend",
                backend,
                "--queries",
                "100",
                "--threads",  # without this option, the warm-up may choose the number and print a line
                "1",
                "--slo",
                "p90=5s",
                "--metrics-push",
                url,
                "--out",
                str(tmp_path / name),
            )
            done = run(*QUICK, *words)
            assert (done.status, done.said) == (0, ""), done.said
        page = pushed(url)
    valid = dict(re.findall(r"^harness_run_valid\{(.*)\} (\d)$", page, re.MULTILINE))
    assert set(valid.values()) == {"1"}
    runs = {re.search(r'run="(\w+)"', labels)[1]: labels for labels in valid}  # type: ignore[index]
    assert runs.keys() == {"a", "c"}
    for label in ('job="mlperf-harness"', f'instance="{host_id()}"', 'backend="null"'):
        assert label in runs["a"]
    assert "harness_latency_seconds_bucket{" in page
    for path in tmp_path.glob("[abc]/**/*"):
        assert not path.is_file() or url.encode() not in path.read_bytes(), path
