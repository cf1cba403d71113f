"""Runs whose load several hosts share, on a real server: merged, stopped when a host is lost, and checked from the
files.
"""

import itertools
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.stats import percentile_ns
from harness.loadgen.schedule import server_schedule_ns
from harness.results.load_hosts.section import HOST
from tests.cluster.load_hosts.shared_runs import BUSY, Started, columns_of, result_of, words
from tests.cluster.runs import codes

pytestmark = pytest.mark.slow


def test_four_hosts_make_one_run(tmp_path: Path, url: str) -> None:
    out = tmp_path / "run"
    more = ("--target-qps", "200", "--queries", "600", "--load-hosts", "4", "--connections", "8")
    main(words(url, out, *more))
    result, columns = result_of(out), columns_of(out)
    assert codes(result) <= BUSY, result["reasons"]
    assert "4 load hosts in place of one LoadGen" in result["not_for_submission"]
    assert result["accuracy"]["value"] == pytest.approx(99.2)
    assert result["accuracy"]["compared"]["answers"] > 300
    assert result["accuracy"]["compared"]["differing"] == 0
    seeds = json.loads((out / "environment.json").read_text())["loadgen"]["seeds"]
    due_ns = server_schedule_ns(600, 200.0, seeds["schedule"])
    assert np.array_equal(columns["scheduled_ns"] - columns["scheduled_ns"][0], due_ns)
    latency_ns = np.sort(columns["completed_ns"] - columns["scheduled_ns"])
    for name, fraction in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        assert result["latency_ns"][name] == percentile_ns(latency_ns, fraction)
    order = ("scheduled", "entry", "taken", "sent", "arrived", "read", "decoded", "completed")
    stamps = [columns[f"{name}_ns"] for name in order]
    assert all((one <= other).all() for one, other in itertools.pairwise(stamps))
    hosts = result["load_hosts"]
    assert [host["name"] for host in hosts] == [f"local-{n}" for n in (1, 2, 3, 4)]
    assert sum(host["answered"] for host in hosts) == 600
    assert [int((columns[HOST] == n).sum()) for n in range(4)] == [h["queries"] for h in hosts]
    assert all(0 <= host["start_skew_ns"] < 1e9 and host["lost"] == "" for host in hosts)
    assert result["client"]["connections"] == 32
    assert "Load hosts" in (out / "report.html").read_text()
    assert main(["check", str(out)]) == 0  # `check` finds no contradiction among the run's files


def test_a_recorded_schedule_is_shared_too(tmp_path: Path, url: str) -> None:
    arrivals = tmp_path / "arrivals.csv"
    arrivals.write_text("".join(f"{n * 0.01:.3f}\n" for n in range(100)))
    out = tmp_path / "run"
    more = ("--arrivals", str(arrivals), "--load-hosts", "2", "--mode", "performance")
    main(words(url, out, *more))
    columns = columns_of(out)
    since_ns = columns["scheduled_ns"] - columns["scheduled_ns"][0]
    assert since_ns.tolist() == [n * 10_000_000 for n in range(100)]
    assert set(columns[HOST].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("number", "text"),
    [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGSTOP, "the measured process hung")],
)
def test_a_lost_host_ends_the_run_and_nothing_measured_is_lost(
    tmp_path: Path, url: str, number: signal.Signals, text: str
) -> None:
    out = tmp_path / "run"
    more = ("--target-qps", "100", "--duration", "60s", "--load-hosts", "3")
    with Started(url, out, *more, "--hang-timeout", "20s", "--mode", "performance") as started:
        started.until(r"performance \d+ %")
        hosts = started.hosts()
        assert len(hosts) == 3
        os.kill(hosts[1].pid, number)
        assert started.end() == 5, started.printed
    assert re.search(f"load host local-\\d is lost \\(.*{text}.*the run was ended", started.printed)
    left = tmp_path / "run.partial"
    result, columns = result_of(left), columns_of(left)
    assert result["verdict"] == "INVALID"
    assert codes(result) == {"load-host-lost"}
    assert len(columns["order"]) == sum(host["answered"] for host in result["load_hosts"]) > 0
    assert sum(bool(host["lost"]) for host in result["load_hosts"]) == 1
    assert result["latency_ns"]["source"] == "interrupted, from the journal"
    assert not any(host.is_running() for host in hosts)
    assert main(["check", str(left)]) == 0  # `check` finds no contradiction among the run's files


def test_ctrl_c_ends_all_hosts_and_keeps_what_they_measured(tmp_path: Path, url: str) -> None:
    out = tmp_path / "run"
    more = ("--target-qps", "100", "--duration", "60s", "--load-hosts", "2")
    with Started(url, out, *more) as started:
        started.until(r"performance \d+ %")
        hosts = started.hosts()
        os.kill(started.process.pid, signal.SIGINT)
        assert started.end() == 130
    result = result_of(tmp_path / "run.partial")
    assert codes(result) == {"interrupted"}
    assert all(host["answered"] > 0 for host in result["load_hosts"])
    assert not any(host.is_running() for host in hosts)


def test_more_hosts_than_queries_are_refused(
    tmp_path: Path, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    more = ("--target-qps", "100", "--queries", "1", "--load-hosts", "2", "--mode", "performance")
    assert main(words(url, out, *more)) == 2
    assert re.search(
        r"none of 1 query is drawn for local-\d: list fewer hosts", capfd.readouterr().err
    )
    assert not list(tmp_path.iterdir())
